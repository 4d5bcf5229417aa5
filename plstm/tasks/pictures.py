"""Pictures of a trained model: samples with its predictions (as Figure 5), and what a node passes on (as Figure 1)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from plstm.drawing import new_figure, save, style
from plstm.models.vision import gating_patterns
from plstm.training.steps import Batch

SAMPLES = 6  # images a split
RIGHT, WRONG = "#00735C", "#C04A00"


def draw_samples(
    samples: Mapping[str, tuple[np.ndarray, Batch, jax.Array]], class_names: Sequence[str], path: Path
) -> list[Path]:
    """Draws the first images of each split, each with the predicted class and its probability, as the paper's Figure 5.

    samples: by split its first images, uint8 [n, S, S, 1 or 3], their batch and the logits [n, classes]. path: without
    the suffix. Returns the .png; an .svg lies beside it.
    """
    counts = {name: min(SAMPLES, int(batch["mask"].sum())) for name, (_, batch, _) in samples.items()}
    with style():
        axes = iter(_picture_grid(sum(counts.values()), columns=6, width=1.6, height=2.0))
        for name, (pixels, batch, logits) in samples.items():
            probabilities = np.asarray(jax.nn.softmax(logits))
            for n in range(counts[name]):
                axis, predicted = next(axes), int(np.argmax(probabilities[n]))
                axis.imshow(np.asarray(pixels[n]), cmap="gray", vmin=0, vmax=255)
                mark, colour = ("✓", RIGHT) if predicted == batch["label"][n] else ("✗", WRONG)
                title = f"{mark} {class_names[predicted]} {probabilities[n, predicted]:.2f}"
                axis.set_title(title, color=colour, fontsize=9, pad=3)
                axis.set_xlabel(f"{name} {n}", fontsize=8, color="0.3")
        return save(axis.figure, path)[:1]


def draw_gating(model: nnx.Module, image: jax.Array, path: Path) -> list[Path]:
    """Draws what a node in the middle of a normalised image passes on in the first layer of each mode, as Figure 1.

    Red is positive, blue negative; colours are linear up to a thousandth of a pattern's largest magnitude and
    logarithmic above. Draws nothing for a model without gates. Returns the .png.
    """
    from matplotlib.colors import SymLogNorm

    row, column = image.shape[0] // model.patch_size // 2, image.shape[1] // model.patch_size // 2
    graphdef, weights = nnx.split(model)
    patterns = jax.jit(lambda weights, image: gating_patterns(nnx.merge(graphdef, weights), image, (row, column)))
    shown = sorted((int(n), mode, np.asarray(pattern[0])) for mode, (n, pattern) in patterns(weights, image).items())
    if not shown:
        return []
    with style():
        axes = _picture_grid(len(shown), columns=4, width=3.3, height=3.0)
        for axis, (n, mode, pattern) in zip(axes, shown, strict=True):
            largest = float(np.abs(pattern).max()) or 1.0
            norm = SymLogNorm(linthresh=largest / 1000, vmin=-largest, vmax=largest)
            picture = axis.imshow(pattern, cmap="RdBu_r", norm=norm)
            axis.plot(column, row, "o", ms=9, mfc="white", mec="black", mew=1.5)
            axis.set_title(f"{mode}-mode, layer {n + 1}, head 1")
            ticks = [-largest, -largest / 30, -largest / 1000, 0, largest / 1000, largest / 30, largest]
            bar = axis.figure.colorbar(picture, ax=axis, shrink=0.85, ticks=ticks, format=lambda x, _: f"{x:.1g}")
            bar.ax.minorticks_off()
            bar.outline.set_visible(False)
        return save(axis.figure, path)[:1]


def _picture_grid(count: int, columns: int, width: float, height: float) -> list[Any]:
    """`count` framed axes for pictures in one figure, in lines of at most `columns`; inches for each."""
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = new_figure(width * columns, height * lines)
    axes = [figure.add_subplot(lines, columns, index + 1, xticks=[], yticks=[]) for index in range(count)]
    for axis in axes:
        axis.spines[:].set(visible=True, color="0.6", linewidth=0.6)
    return axes
