"""Pictures of a trained model: samples with its predictions (as Figure 5), and what a node passes on (as Figure 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from plstm.drawing import new_figure, save, style
from plstm.models.inspection import gating_patterns
from plstm.training.steps import Batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAMPLES = 6  # images a split
RIGHT, WRONG = "#00735C", "#C04A00"


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


def samples_figure(
    images: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
    class_names: Sequence[str],
    titles: Sequence[str],
    path: Path,
) -> list[Path]:
    """Draw classified samples, in the style of the paper's Figure 5 (arXiv 2506.11997, Appendix G.2).

    Args:
        images: uint8 [n, S, S] (gray, 255 is white) or [n, S, S, 3].
        labels: int [n], the true classes.
        probabilities: float [n, classes], the model's.
        class_names: one word or two for each class.
        titles: one line below each image, such as its split or model.
        path: where to write, without the suffix.

    Returns:
        The .png and .svg. Above every image stands the predicted class with its probability, such as "at 0.97", in
        green with a check mark where it is right, in red with a cross where it is wrong.
    """
    with style():
        figure, axes = _picture_grid(len(images), columns=6, width=1.6, height=2.0)
        for axis, image, label, row, title in zip(axes, images, labels, probabilities, titles, strict=True):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255)
            predicted = int(np.argmax(row))
            right = predicted == label
            says = f"{class_names[predicted]} {row[predicted]:.2f}"
            axis.set_title(f"{'✓' if right else '✗'} {says}", color=RIGHT if right else WRONG, fontsize=9, pad=3)
            axis.set_xlabel(title, fontsize=8, color="0.3")
        return save(figure, path)


def gating_figure(
    patterns: Sequence[np.ndarray], titles: Sequence[str], source: tuple[int, int], path: Path
) -> list[Path]:
    """Draw how one node reaches all others through the gates, as Figure 1 of arXiv 2506.11997 sketches it.

    Args:
        patterns: float [Y, X] each, what passes from the source node to every node, signed; say, one in P- and one in
            D-mode.
        titles: one a pattern.
        source: (y, x) of the source node, marked by a white dot.
        path: where to write, without the suffix.

    Returns:
        The .png and .svg. Red is positive, blue negative; colours are linear up to a thousandth of a pattern's largest
        magnitude and logarithmic above, because gatings fall off exponentially.
    """
    from matplotlib.colors import SymLogNorm

    with style():
        figure, axes = _picture_grid(len(patterns), columns=4, width=3.3, height=3.0)
        for axis, pattern, title in zip(axes, patterns, titles, strict=True):
            largest = float(np.abs(pattern).max()) or 1.0
            norm = SymLogNorm(linthresh=largest / 1000, vmin=-largest, vmax=largest)
            picture = axis.imshow(pattern, cmap="RdBu_r", norm=norm)
            axis.plot(source[1], source[0], "o", ms=9, mfc="white", mec="black", mew=1.5)
            axis.set_title(title)
            ticks = [-largest, -largest / 30, -largest / 1000, 0, largest / 1000, largest / 30, largest]
            bar = figure.colorbar(picture, ax=axis, shrink=0.85, ticks=ticks, format=lambda value, _: f"{value:.1g}")
            bar.ax.minorticks_off()
            bar.outline.set_visible(False)
        return save(figure, path)


def _picture_grid(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` framed axes for pictures, in lines of at most `columns`; inches for each."""
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = new_figure(width * columns, height * lines)
    axes = [figure.add_subplot(lines, columns, index + 1, xticks=[], yticks=[]) for index in range(count)]
    for axis in axes:
        axis.spines[:].set(visible=True, color="0.6", linewidth=0.6)
    return figure, axes
