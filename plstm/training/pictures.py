"""Pictures of a trained model: samples with its predictions (as Figure 5), and what a node passes on (as Figure 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from data.packed import PackedSplit, unpack
from plstm.training.inspect import gating_patterns
from plstm.training.steps import normalise

SAMPLES = 6  # images a split


def draw_pictures(
    model: nnx.Module, predict: Callable, splits: Mapping[str, PackedSplit], batch_size: int, folder: Path, name: str
) -> list[Path]:
    """Writes `<name>-samples` and, for pLSTM, `<name>-gating` (.png and .svg) into `folder`; returns the .png files.

    predict, batch_size: as for `plstm.training.evaluation.evaluate`. splits: where samples come from; the first image
    of the first split gives the gating pattern.
    """
    written = _draw_samples(model, predict, splits, batch_size, folder / f"{name}-samples")
    written += _draw_gating(model, next(iter(splits.values())), folder / f"{name}-gating")
    return [path for path in written if path.suffix == ".png"]


def _draw_samples(model, predict, splits: Mapping[str, PackedSplit], batch_size: int, path: Path) -> list[Path]:
    from plstm.experiments.figures import samples_figure

    params = nnx.state(model, nnx.Param)
    images, labels, probabilities, titles = [], [], [], []
    for name, split in splits.items():
        logits = predict(params, np.asarray(split.bits[:batch_size]), split.size)[:SAMPLES]
        probabilities += np.asarray(jax.nn.softmax(logits))[:, 1].tolist()
        images += list(unpack(np.asarray(split.bits[:SAMPLES]), split.size))
        labels += split.labels[:SAMPLES].tolist()
        titles += [f"{name} {n}" for n in range(len(logits))]
    return samples_figure(images, np.array(labels), np.array(probabilities), titles, path)


def _draw_gating(model: nnx.Module, split: PackedSplit, path: Path) -> list[Path]:
    from plstm.experiments.figures import gating_figure

    image = normalise(jnp.asarray(split.bits[:1]), split.size)[0]
    nodes = split.size // model.patch_size
    source = (nodes // 2, nodes // 2)
    layers = gating_patterns(model, image, source)
    shown = {}
    for n, (mode, pattern) in enumerate(layers):
        shown.setdefault(mode, (f"{mode}-mode, layer {n + 1}, head 1", np.asarray(pattern[0])))
    if not shown:
        return []
    titles, patterns = zip(*shown.values(), strict=True)
    return gating_figure(patterns, titles, source, path)
