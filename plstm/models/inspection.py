"""Looking inside a trained pLSTM: the statistics of its gates, and what a node's output weighs (Figure 1)."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from plstm.models.vision import VisionModel
from plstm.nn.mixers import PLSTMMixer
from plstm.ops.grid import GridGates, gating_matrix


def _layer_gates(model: VisionModel, images: jax.Array) -> Iterator[tuple[str, GridGates, str]]:
    """Each pLSTM layer's mode, gates [batch, heads, 4, Y, X] and structure, from the first layer to the last."""
    x = model.embed(images)
    for block in model.blocks():
        if isinstance(block.mixer, PLSTMMixer):
            gates = block.mixer.grid_gates(block.mixer_norm(x))
            structure = block.mixer.gates.structure
            yield ("P" if structure == "rank_one" else "D"), gates, structure
        x = block(x)


def gate_statistics(model: VisionModel, images: jax.Array) -> dict[str, jax.Array]:
    """Mean of each layer's gates over normalised images [batch, height, width, channels], heads, directions and nodes.

    Returns {"gates/layer00_P/s_r": scalar, ...}, for transitions also their mean magnitude; empty without gates.
    """
    statistics = {}
    for n, (mode, gates, _) in enumerate(_layer_gates(model, images)):
        for name, gate in gates._asdict().items():
            statistics[f"gates/layer{n:02d}_{mode}/{name}"] = gate.mean()
            if name.startswith("t_"):
                statistics[f"gates/layer{n:02d}_{mode}/{name}_magnitude"] = jnp.abs(gate).mean()
    return statistics


def gating_patterns(model: VisionModel, image: jax.Array, source: tuple[int, int]) -> dict[str, tuple[int, jax.Array]]:
    """What the gating matrix of the first layer of each mode passes from one node to all others, for one image.

    Args:
        image: [height, width, channels], normalised.
        source: the node's (row, column) on the grid of patches.

    Returns:
        {mode: (number of the layer from 0, [heads, Y, X])}; empty without gates.
    """
    first = {}
    for n, (mode, gates, structure) in enumerate(_layer_gates(model, image[None])):
        if mode not in first:
            first[mode] = n, gating_matrix(gates, structure=structure)[0, :, source[0], source[1]]
    return first
