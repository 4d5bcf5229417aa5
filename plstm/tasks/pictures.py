"""Pictures of a trained model: samples with its predictions (as Figure 5), and what a node passes on (as Figure 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from plstm.models.inspection import gating_patterns
from plstm.results.figures import gating_figure, samples_figure
from plstm.training.steps import Batch

SAMPLES = 6  # images a split


def draw_samples(
    params: Any,
    predict: Callable,
    batches: Mapping[str, Batch],
    pixels: Mapping[str, np.ndarray],
    class_names: Sequence[str],
    path: Path,
) -> list[Path]:
    """Writes the first images of each split with the predicted classes to `path` (.png and .svg); returns the .png.

    predict: (params, batch) -> logits. batches: split -> its first batch. pixels: split -> its images, uint8.
    """
    images, labels, probabilities, titles = [], [], [], []
    for name, batch in batches.items():
        count = min(SAMPLES, int(batch["mask"].sum()))
        probabilities += list(np.asarray(jax.nn.softmax(predict(params, batch)))[:count])
        images += list(np.asarray(pixels[name])[:count])
        labels += batch["label"][:count].tolist()
        titles += [f"{name} {n}" for n in range(count)]
    return _png(samples_figure(images, np.array(labels), probabilities, class_names, titles, path))


def draw_gating(model: nnx.Module, image: jax.Array, path: Path) -> list[Path]:
    """Writes what a node in the middle of a normalised image passes on in the first layer of each mode; as above.

    Nothing for a model without gates.
    """
    source = (image.shape[0] // model.patch_size // 2, image.shape[1] // model.patch_size // 2)
    graphdef, weights = nnx.split(model)
    patterns = jax.jit(lambda weights, image: gating_patterns(nnx.merge(graphdef, weights), image, source))
    shown = sorted((int(n), mode, np.asarray(pattern[0])) for mode, (n, pattern) in patterns(weights, image).items())
    if not shown:
        return []
    titles = [f"{mode}-mode, layer {n + 1}, head 1" for n, mode, _ in shown]
    return _png(gating_figure([pattern for *_, pattern in shown], titles, source, path))


def _png(paths: list[Path]) -> list[Path]:
    return [path for path in paths if path.suffix == ".png"]
