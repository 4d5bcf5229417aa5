"""Looking inside a trained pLSTM: the statistics of its gates, and what a node's output weighs (Figure 1)."""

import itertools

import jax
import jax.numpy as jnp

from plstm.models.vision import Block, PLSTMMixer, VisionModel
from plstm.ops.grid import gating_matrix


def _gate_means(block: Block, x: jax.Array) -> dict[str, jax.Array]:
    """The means of a block's gates on its input; transitions also by magnitude. Empty without gates."""
    if not isinstance(block.mixer, PLSTMMixer):
        return {}
    gates = block.mixer.gates(block.mixer_norm(x))._asdict()
    means = {name: gate.mean() for name, gate in gates.items()}
    return means | {f"{name}_magnitude": jnp.abs(gate).mean() for name, gate in gates.items() if name.startswith("t_")}


def gate_statistics(model: VisionModel, images: jax.Array) -> dict[str, jax.Array]:
    """Mean of each layer's gates over normalised images [batch, height, width, channels], heads, directions and nodes:
    {"gates/layer00_P/s_r": scalar, ...}; empty without gates."""
    _, means = model.apply_blocks(model.embed(images), look=_gate_means)
    return {
        f"gates/layer{group * len(means) + n:02d}_{model.groups.blocks[n].mixer.gates.mode}/{name}": values[group]
        for n, block_means in enumerate(means)
        for name, values in block_means.items()
        for group in range(model.groups_count)
    }


def gating_patterns(model: VisionModel, image: jax.Array, source: tuple[int, int]) -> dict[str, tuple[int, jax.Array]]:
    """What the gating matrix of the first layer of each mode passes from the node at (row, column) to all others, for
    a normalised image: {mode: (number of the layer from 0, [heads, Y, X])}; empty without gates."""
    patterns, x = {}, model.embed(image[None])
    for n, block in enumerate(itertools.islice(model.blocks(), len(model.groups.blocks))):
        if isinstance(block.mixer, PLSTMMixer) and (mode := block.mixer.gates.mode) not in patterns:
            gates = block.mixer.gates(block.mixer_norm(x))
            matrix = gating_matrix(gates, structure=block.mixer.gates.structure)
            patterns[mode] = n, matrix[0, :, source[0], source[1]]
        x = block(x)
    return patterns
