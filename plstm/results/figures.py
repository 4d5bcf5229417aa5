"""Figures: training curves from run records, classified samples, gating patterns; each a .png and an .svg."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plstm.drawing import legend_below, new_figure, save, style
from plstm.errors import UserError
from plstm.results.baselines import read_baselines
from plstm.results.definitions import TableDefinition
from plstm.results.fold_figures import draw_cells
from plstm.results.intervals import Interval, t_interval
from plstm.results.records import RunRecord, read_curve
from plstm.results.tables import table_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By the model in the experiment's name: colour and line style, the same in all curves.
MODEL_STYLES = {
    "plstm": ("#0072B2", "-"),
    "plstm_no_posemb": ("#56B4E9", "-"),
    "plstm_p_mode": ("#009E73", "-"),
    "plstm_d_mode": ("#CC79A7", "-"),
    "plstm_stm_bias": ("#E69F00", "-"),
    "plstm_printed": ("#0072B2", (0, (4, 1.5))),
    "vit": ("#D55E00", "-"),
}
FINE_TUNING_LINE = (0, (4, 1.5))
OTHER_STYLES = [("#000000", style) for style in ("-", "--", "-.", ":")]
RIGHT, WRONG = "#00735C", "#C04A00"


def draw_table(table: TableDefinition, records: Sequence[RunRecord], results_dir: Path) -> list[Path]:
    """Draw what a table shows, `draw_curves` or, of cross-validations, `plstm.results.fold_figures.draw_cells`."""
    return (draw_cells if table.folds else draw_curves)(table, records, results_dir)


def draw_curves(table: TableDefinition, records: Sequence[RunRecord], results_dir: Path) -> list[Path]:
    """Draw accuracy over epochs, a panel a split and a line a model, as in Figures 2 and 6 of arXiv 2506.11997.

    A line is the mean over the runs that the table shows, its band their 90% t interval; chance is dotted, the
    definition's baseline dashed, the paper's mean curve (where the definition names a file of it) thin behind ours.

    Returns:
        `figures/<name>-curves.png` and `.svg`; nothing is drawn, and the list is empty, without `figure` in the
        definition or without a finished run. Raises UserError for a run without its curve.
    """
    rows = [row for row in table_rows(table, records)[0] if row.chosen]
    if table.figure is None or not rows:
        return []
    styles = _row_styles(table)
    curves = {row.row.name: [read_curve(run, results_dir) for run in row.chosen] for row in rows}
    paper = _paper_curves(results_dir / table.figure.paper_curves) if table.figure.paper_curves else {}
    baseline = next((b for b in read_baselines(table, results_dir) if b["name"] == table.figure.baseline), {})
    with style():
        figure = new_figure(3.4 * len(table.figure.panels), 3.5)
        axes = figure.subplots(1, len(table.figure.panels), sharey=True, squeeze=False)[0]
        for (split, title), axis in zip(table.figure.panels.items(), axes, strict=True):
            for row in rows:
                colour, line = styles[row.row.name]
                epochs, intervals = _mean_curve(curves[row.row.name], split)
                _draw_line(axis, epochs, intervals, f"{row.row.name} (n={len(row.chosen)})", colour, line)
                axis.plot(*paper.get((row.row.name, split), ([], [])), color=colour, lw=0.7, alpha=0.7, zorder=1)
            if table.chance is not None:
                axis.axhline(table.chance, color="0.45", lw=1, ls=":", label="chance", zorder=0)
            if split in baseline:
                axis.axhline(baseline[split], color="0.45", lw=0.9, ls=(0, (6, 3)), label=baseline["name"], zorder=0)
            axis.set(title=title, xlabel="Epoch")
            axis.grid(axis="y", color="0.92", lw=0.7)
            axis.set_xlim(left=0)
        axes[0].set_ylabel("Accuracy")
        if paper:
            axes[0].plot([], [], color="0.5", lw=0.7, label="thin: the paper's mean")
        legend_below(figure, axes)
        return save(figure, results_dir / "figures" / f"{table.name}-curves")


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


def _row_styles(table: TableDefinition) -> dict[str, tuple]:
    others = itertools.cycle(OTHER_STYLES)
    return {row.name: _model_style(row.experiment.rpartition("/")[2]) or next(others) for row in table.rows}


def _model_style(experiment: str) -> tuple | None:
    model = experiment.removeprefix("imagenet_").removesuffix("_finetune")
    if model not in MODEL_STYLES:
        return None
    return (MODEL_STYLES[model][0], FINE_TUNING_LINE) if experiment.endswith("_finetune") else MODEL_STYLES[model]


def _mean_curve(curves: list[list], split: str) -> tuple[list[float], list[Interval]]:
    """Epochs and accuracies over runs at the steps at which every run was evaluated."""
    runs = [{p.step: p for p in curve if p.split == split and p.metric == "accuracy"} for curve in curves]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    epochs = [runs[0][step].epoch for step in steps]
    return epochs, [t_interval([run[step].value for run in runs]) for step in steps]


def _draw_line(
    axis: Axes, epochs: list[float], intervals: list[Interval], label: str, colour: str, line: object
) -> None:
    means = np.array([interval.mean for interval in intervals])
    marker = "o" if len(epochs) == 1 else None  # a line of one point shows nothing
    axis.plot(epochs, means, color=colour, ls=line, lw=1.6, marker=marker, ms=4, label=label, zorder=3)
    if intervals and intervals[0].half_width is not None:
        half_widths = np.array([interval.half_width for interval in intervals])
        low, high = np.clip([means - half_widths, means + half_widths], 0, 1)
        axis.fill_between(epochs, low, high, color=colour, alpha=0.18, lw=0, zorder=2)


def _paper_curves(path: Path) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """(row, split) -> epochs and mean accuracies, from a CSV with the columns row, split, epoch, accuracy."""
    if not path.is_file():
        raise UserError(f"{path}: the table's key figure.paper_curves names this file; restore it or remove the key")
    curves: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        try:
            for line in lines:
                epochs, accuracies = curves.setdefault((line["row"], line["split"]), ([], []))
                epochs.append(float(line["epoch"]))
                accuracies.append(float(line["accuracy"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}, line {lines.line_num}: must be row,split,epoch,accuracy") from error
    return curves


def _picture_grid(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` framed axes for pictures, in lines of at most `columns`; inches for each."""
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = new_figure(width * columns, height * lines)
    axes = [figure.add_subplot(lines, columns, index + 1, xticks=[], yticks=[]) for index in range(count)]
    for axis in axes:
        axis.spines[:].set(visible=True, color="0.6", linewidth=0.6)
    return figure, axes
