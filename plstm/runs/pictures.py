"""Pictures of a trained model: of images its predictions (Figure 5) and what a node passes on (Figure 1), of time
series some forecasts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from plstm.drawing import new_figure, save, style
from plstm.models.vision import VisionModel, capture_patterns
from plstm.nn import PLSTMMixer
from plstm.tasks import Task
from plstm.tasks.series import SeriesSplit, SeriesTask
from plstm.tasks.vision import VisionTask, as_pixels, normalise
from plstm.training.steps import Batch, Split

SAMPLES = 6  # images a split
RIGHT = "#00735C"
WRONG = "#C04A00"
FORECAST = "#0072B2"
ROW = ("loc", "scale", "values", "known", "label", "due")  # of a window, see `plstm.tasks.series`


def draw_run(
    task: Task, model: nnx.Module, predict: Callable, splits: Mapping[str, Split], folder: Path, name: str
) -> list[Path]:
    """Draws samples with predictions and, for pLSTM on images, what a node passes on; nothing for tasks that have
    neither images nor time series. Returns the .png files, written into `folder`."""
    if isinstance(task, SeriesTask):
        return draw_forecasts([*splits.values()][-1], predict, nnx.state(model), folder / f"{name}-samples.png")
    if not isinstance(task, VisionTask):
        return []
    weights = nnx.state(model)
    samples = {}
    for split, source in splits.items():
        batch = source.first(SAMPLES * jax.process_count())
        samples[split] = as_pixels(batch["image"]), batch, predict(weights, batch)
    written = draw_samples(samples, task.class_names, folder / f"{name}-samples.png")
    if not isinstance(model, VisionModel):
        return written
    image = normalise(next(iter(samples.values()))[0][:1])[0]
    return written + draw_gating(model, image, folder / f"{name}-gating.png")


def draw_samples(
    samples: Mapping[str, tuple[np.ndarray, Batch, jax.Array]], class_names: Sequence[str], path: Path
) -> list[Path]:
    """Draws the first images of each split with predicted class and probability, as Figure 5; returns the .png.

    samples: by split its first images, uint8 [n, S, S, 1 or 3], their batch and the logits [n, classes].
    """
    with style():
        figure = new_figure(1.6 * SAMPLES, 2.0 * len(samples))
        for line, (name, (pixels, batch, logits)) in enumerate(samples.items(), 1):
            axis = figure.add_subplot(len(samples), 1, line)  # an axis for each image takes twice as long
            probabilities = np.asarray(jax.nn.softmax(logits))
            for n in range(min(SAMPLES, int(batch["mask"].sum()))):
                left = n + 0.02
                right = n + 0.98
                predicted = int(np.argmax(probabilities[n]))
                axis.imshow(np.asarray(pixels[n]), cmap="gray", vmin=0, vmax=255, extent=(left, right, 0, 0.96))
                axis.plot([left, right, right, left, left], [0, 0, 0.96, 0.96, 0], color="0.6", lw=0.6)
                mark, colour = ("✓", RIGHT) if predicted == batch["label"][n] else ("✗", WRONG)
                title = f"{mark} {class_names[predicted]} {probabilities[n, predicted]:.2f}"
                axis.text(n + 0.5, 0.99, title, color=colour, fontsize=9, ha="center", va="bottom")
                axis.text(n + 0.5, -0.04, f"{name} {n}", fontsize=8, color="0.3", ha="center", va="top")
            axis.set(xlim=(0, SAMPLES), ylim=(-0.16, 1.12), aspect="equal")
            axis.axis("off")
        return [save(figure, path)]


def draw_forecasts(split: SeriesSplit, predict: Callable, weights: Any, path: Path) -> list[Path]:
    """Draws the first window of the first set of up to six frequencies, as `draw_forecast`; returns the .png."""
    first = {each.frequency: number for number, each in reversed([*enumerate(split.sets)])}
    chosen = np.unique(np.linspace(0, len(first) - 1, SAMPLES).round().astype(int))
    numbers = np.sort([*first.values()])[chosen]
    groups = split.windows["group"]
    rows = {name: values[np.searchsorted(groups, numbers)] for name, values in split.windows.items()}
    forecasts = np.asarray(predict(weights, rows))
    lines = -(-len(numbers) // 2)
    with style():
        figure = new_figure(9.0, 1.9 * lines)
        axes = figure.subplots(lines, 2, squeeze=False).ravel()
        for axis, number, row, forecast in zip(axes, numbers, range(len(numbers)), forecasts, strict=False):
            each = split.sets[number]
            loc, scale, values, known, label, due = (rows[key][row] for key in ROW)
            context = np.where(known, loc + scale * values, np.nan)[-4 * each.horizon :]
            label = np.where(due, loc + scale * label, np.nan)[: each.horizon]
            draw_forecast(axis, context, loc + scale * forecast[:, : each.horizon], label)
            axis.set_title(f"{each.name} ({each.frequency})")
        for axis in axes[len(numbers) :]:
            axis.remove()
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, ncols=5, loc="outside lower center")
        return [save(figure, path)]


def draw_forecast(axis: Any, context: np.ndarray, quantiles: np.ndarray, label: np.ndarray | None = None) -> None:
    """Draws a series [T], the quantiles 0.1 to 0.9 of what follows, [9, horizon], and what did follow, [horizon]."""
    steps = np.arange(quantiles.shape[1])
    axis.plot(np.arange(-len(context), 0), context, color="0.4", lw=0.8, label="series")
    for low, alpha, share in ((0, 0.15, "80%"), (2, 0.3, "40%")):
        axis.fill_between(steps, quantiles[low], quantiles[8 - low], color=FORECAST, alpha=alpha, lw=0, label=share)
    axis.plot(steps, quantiles[4], color=FORECAST, lw=1.2, label="median")
    if label is not None:
        axis.plot(steps, label, color="black", lw=0.8, label="what followed")


def draw_gating(model: nnx.Module, image: jax.Array, path: Path) -> list[Path]:
    """Draws what a node in the middle of a normalised image, float32 [size, size, 3], passes on in the first layer of
    each mode, as Figure 1.

    Draws nothing for a model without gates. Returns the .png.
    """
    blocks = model.groups.blocks
    if not any(isinstance(block.mixer, PLSTMMixer) for block in blocks):
        return []
    row = image.shape[0] // model.patch_size // 2
    column = image.shape[1] // model.patch_size // 2
    shown = {}
    for n, (mode, pattern) in enumerate(capture_flow(model, image, (row, column), len(blocks))):
        shown.setdefault(mode, (n, pattern[0]))
    with style():
        figure = new_figure(3.3 * len(shown), 3.0)
        for place, (mode, (n, pattern)) in enumerate(shown.items(), 1):
            axis = figure.add_subplot(1, len(shown), place, xticks=[], yticks=[])
            axis.spines[:].set(visible=True, color="0.6", linewidth=0.6)
            draw_scale(draw_pattern(axis, pattern, (row, column), float(np.abs(pattern).max())), axis)
            axis.set_title(f"{mode}-mode, layer {n + 1}, head 1")
        return [save(figure, path)]


def capture_flow(
    model: nnx.Module, image: jax.Array, source: tuple[int, int], layers: int
) -> list[tuple[str, np.ndarray]]:
    """`capture_patterns`, compiled: (mode, pattern [heads, rows, columns]) of each layer."""
    modes = []  # strings, which no compiled function returns

    def patterns(weights: nnx.State, image: jax.Array) -> list[jax.Array]:
        found = capture_patterns(nnx.merge(graphdef, weights), image, source, layers)
        modes.extend(mode for mode, _ in found)
        return [pattern for _, pattern in found]

    graphdef, weights = nnx.split(model)
    found = jax.jit(patterns)(weights, image)
    return list(zip(modes, map(np.asarray, found), strict=True))


def draw_pattern(axis: Any, pattern: np.ndarray, source: tuple[int, int], largest: float) -> Any:
    """Draws a pattern [Y, X] and its source; red is positive, blue negative. Colours are linear up to a hundredth of
    `largest` and logarithmic from there up to it. Returns the picture, for `draw_scale`."""
    from matplotlib.colors import SymLogNorm

    largest = largest or 1.0
    norm = SymLogNorm(linthresh=largest / 100, vmin=-largest, vmax=largest)
    picture = axis.imshow(pattern, cmap="RdBu_r", norm=norm)
    axis.plot(source[1], source[0], "o", ms=9, mfc="white", mec="black", mew=1.5)
    return picture


def draw_scale(picture: Any, axes: Any) -> None:
    """Draws the colours of a picture and their values to the right of the axes that share them."""
    largest = picture.norm.vmax
    ticks = [-largest, -largest / 10, -largest / 100, 0, largest / 100, largest / 10, largest]
    bar = picture.figure.colorbar(picture, ax=axes, shrink=0.85, ticks=ticks, format=lambda x, _: f"{x:.1g}")
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
