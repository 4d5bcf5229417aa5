"""Figures of results tables, from run records: training curves, accuracy against size, distance or length, and columns
beside the paper's numbers."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from plstm.drawing import legend_below, new_figure, save, style
from plstm.studies.definitions import TableDefinition, read_baselines
from plstm.studies.probes import points_by_distance, points_by_size, read_probes, read_sizes
from plstm.studies.records import PRIMARY_METRIC, Record, read_curve
from plstm.studies.sweeps import Cell, find_groups, t_interval

DASHED = (0, (4, 1.5))
# By the model in the experiment's name: colour and line style, the same in all curves.
MODEL_STYLES = {
    "plstm": ("#0072B2", "-"),
    "plstm_no_posemb": ("#56B4E9", "-"),
    "plstm_p_mode": ("#009E73", "-"),
    "plstm_d_mode": ("#CC79A7", "-"),
    "plstm_stm_bias": ("#E69F00", "-"),
    "plstm_printed": ("#DC267F", "-"),
    "vit": ("#D55E00", "-"),
    "efficientnet": ("#000000", "-"),
    "vil": ("#8A8D00", "-"),
    "vil_released": ("#8A8D00", DASHED),
    "mamba2d": ("#7F3C8D", "-"),
    "2dmamba": ("#8B5A2B", "-"),
}
OTHER_STYLES = [("#777777", line) for line in ("-", "--", "-.", ":")]
OURS, PAPER = "#0072B2", "#D55E00"  # of dots: there a colour says whose number it is, and the line the model
BASELINE = {"color": "0.45", "lw": 0.9, "ls": (0, (6, 3)), "zorder": 0}
CHANCE = {"color": "0.45", "lw": 1, "ls": ":", "label": "chance", "zorder": 0}
GRID = {"color": "0.92", "lw": 0.7}
# Of counting and state tracking, so that a model looks the same in all their tables.
TOKEN_MODELS = ("xlstm_1_0", "xlstm_1_1", "xlstm_0_1", "mamba2", "gdn", "gdn_negative")
TOKEN_MODELS += ("plstm_1", "plstm_2", "plstm_3", "plstm_4", "transformer")
PANELS = 4  # side by side, of accuracy against length; there models have these colours, then again dashed
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
BASELINE_DASHES = [(0, (6, 3)), (0, (3, 2)), (0, (6, 2, 1, 2)), (0, (1, 1)), (0, (8, 2, 1, 2, 1, 2)), (0, (12, 3))]


def draw_table(table: TableDefinition, records: Sequence[Record], results_dir: Path) -> list[Path]:
    """Draw what `figure` asks for of cells with a whole seed; returns .png and .svg. UserError for a missing curve."""
    groups = find_groups(table, records)[0]
    cells = [group.chosen for group in groups if group.chosen.runs and group.chosen.row.own]
    wanted = {draw_curves: table.figure.panels, draw_dots: table.figure.dots, draw_sizes: table.figure.sizes}
    wanted |= {draw_lengths: table.figure.lengths}
    wanted = {draw: asked and (cells or draw is draw_curves) for draw, asked in wanted.items()}
    return [path for draw, asked in wanted.items() if asked for path in draw(table, cells, results_dir)]


def draw_curves(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> list[Path]:
    """Draw accuracy over epochs, a panel a split and a line a model, as in Figures 2 and 6 of arXiv 2506.11997.

    A line is the mean over the runs, its band their 90% t interval, and a thin line the mean over the paper's runs;
    chance is dotted, the definition's baseline dashed.
    """
    wanted, styles, published = table.figure, _styles(table), _paper_curves(table, results_dir)
    if not cells and not published:
        return []
    curves = {cell.row.name: _mean_curves(cell.runs, results_dir) for cell in cells}
    baseline = next((entry for entry in read_baselines(table, results_dir) if entry["name"] == wanted.baseline), {})
    with style():
        figure = new_figure(3.4 * len(wanted.panels), 3.5)
        axes = figure.subplots(1, len(wanted.panels), sharey=True, squeeze=False)[0]
        for (split, title), axis in zip(wanted.panels.items(), axes, strict=True):
            for cell in cells:
                colour, line = styles[cell.row.experiment]
                _draw_line(axis, curves[cell.row.name][split], f"{cell.row.name} (n={len(cell.runs)})", colour, line)
            for row in table.rows:
                if (curve := published.get((row.experiment, split))) is not None:
                    colour, line = styles[row.experiment]
                    axis.plot(curve["epoch"], curve["mean"], color=colour, ls=line, lw=0.8, label=f"{row.name} (paper)")
            if table.chance is not None:
                axis.axhline(table.chance, **CHANCE)
            if split in baseline:
                axis.axhline(baseline[split], label=baseline["name"], **BASELINE)
            axis.set(title=title, xlabel="Epoch")
            axis.grid(axis="y", **GRID)
            axis.set_xlim(left=0)
        axes[0].set_ylabel(PRIMARY_METRIC.capitalize())
        legend_below(figure, axes)
        return save(figure, results_dir / "figures" / f"{table.name}-curves")


def _paper_curves(table: TableDefinition, results_dir: Path) -> dict[tuple[str, str], pd.DataFrame]:
    """(Experiment, split) -> epoch and mean of the paper's runs; nothing where there is no file."""
    path = results_dir / (table.figure.paper or "")
    return dict(iter(pd.read_csv(path).groupby(["experiment", "split"]))) if path.is_file() else {}


def _styles(table: TableDefinition) -> dict[str, tuple]:
    """Experiment -> colour and line style."""
    others = itertools.cycle(OTHER_STYLES)
    return {row.experiment: _style(row.experiment) or next(others) for row in table.rows}


def _style(experiment: str) -> tuple | None:
    name = experiment.rpartition("/")[2].removeprefix("imagenet_")
    colour, line = MODEL_STYLES.get(name.removesuffix("_finetune"), (None, None))
    return colour and (colour, DASHED if name.endswith("_finetune") else line)


def _mean_curves(runs: Sequence[Record], results_dir: Path) -> dict[str, pd.DataFrame]:
    """Split -> `_mean_points` over the epochs."""
    curves = [[point for point in read_curve(run, results_dir) if point.metric == PRIMARY_METRIC] for run in runs]

    def of_split(split: str) -> pd.DataFrame:
        return _mean_points([[(p.epoch, p.value) for p in curve if p.split == split] for curve in curves])

    return {split: of_split(split) for split in {point.split for curve in curves for point in curve}}


def _draw_line(axis: Any, curve: pd.DataFrame, label: str, colour: str, line: object) -> None:
    marker = "o" if len(curve) == 1 else None  # a line of one point shows nothing
    axis.plot(curve["x"], curve["mean"], color=colour, ls=line, lw=1.6, marker=marker, ms=4, label=label, zorder=3)
    if curve["half_width"].notna().any():
        low, high = ((curve["mean"] + sign * curve["half_width"]).clip(0, 1) for sign in (-1, 1))
        axis.fill_between(curve["x"], low, high, color=colour, alpha=0.18, lw=0, zorder=2)


def draw_sizes(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> list[Path]:
    """Draw accuracy against the canvas and, on twice the training canvas, against the distance between the objects.

    A line is the mean over a row's probed runs, its band their 90% t interval; baselines are dashed.
    """
    probed = {cell: found for cell in cells if (found := read_probes(cell.runs, results_dir)).rows}
    if not probed:
        return []
    shortcuts, styles, written = read_sizes(table, results_dir), _styles(table), []
    for kind, points, label in (
        ("sizes", points_by_size, "Canvas side (pixels)"),
        ("distances", points_by_distance, "Distance between arrow and circle (pixels)"),
    ):
        with style():
            figure = new_figure(6.4, 4.4)
            axis = figure.subplots()
            for (name, rows), dashes in zip(shortcuts.items(), BASELINE_DASHES, strict=False):
                axis.plot(*zip(*points(rows), strict=True), label=name, **BASELINE | {"ls": dashes})
            for cell, probes in probed.items():
                frame = _mean_points([points(rows) for rows in probes.rows])
                _draw_line(axis, frame, f"{cell.row.name} ({probes.count})", *styles[cell.row.experiment])
            axis.axhline(0.5, **CHANCE)
            axis.set(xlabel=label, ylabel="Test accuracy")
            axis.grid(axis="y", **GRID)
            legend_below(figure, [axis], columns=2)
            written += save(figure, results_dir / "figures" / f"{table.name}-{kind}")
    return written


def _mean_points(curves: Sequence[Sequence[tuple[float, float]]]) -> pd.DataFrame:
    """Points (x, value) of several runs -> x, mean and half width where all of them have a point."""
    points = pd.DataFrame([point for curve in curves for point in curve], columns=["x", "value"])
    means = [(x, *t_interval(part["value"].tolist())) for x, part in points.groupby("x")]
    frame = pd.DataFrame(means, columns=["x", "mean", "half_width", "n"])
    return frame[frame["n"] == len(curves)]


def draw_lengths(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> list[Path]:
    """Draw the accuracy at each length of the split `figure.lengths`, a panel a section and a line a model: the mean of
    its runs, which are thin lines where there are several. Chance is dotted."""
    sections = [section for section in table.section_values if any(cell.section == section for cell in cells)]
    chance = next((entry for entry in read_baselines(table, results_dir) if entry["name"] == "chance"), {})
    columns = min(len(sections), PANELS)
    models = [row.experiment.rpartition("/")[2] for row in table.rows]
    order = TOKEN_MODELS if {*models} <= {*TOKEN_MODELS} else models
    looks = dict(zip(order, itertools.product(("-", DASHED, ":"), COLOURS), strict=False))
    styles = {row.name: looks[model] for row, model in zip(table.rows, models, strict=True)}
    with style():
        lines = -(-len(sections) // columns)
        figure = new_figure(2.6 * columns + 0.6, 2.2 * lines + 0.9)
        axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for section, axis in zip(sections, axes, strict=False):
            for cell in (cell for cell in cells if cell.section == section):
                curves = [_points_by_length(run, table.figure.lengths) for run in cell.runs]
                line, colour = styles[cell.row.name]
                for points in curves if len(curves) > 1 else ():
                    axis.plot(*zip(*points, strict=True), color=colour, ls=line, lw=0.6, alpha=0.35)
                mean = _mean_points(curves)
                axis.plot(mean["x"], mean["mean"], color=colour, ls=line, lw=1.6, label=cell.row.name)
            if str(section) in chance:
                axis.axhline(chance[str(section)], **CHANCE)
            axis.set(title=table.section_title(section), ylim=(0, 1.03))
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:.0f}")
            axis.grid(axis="y", **GRID)
        for axis in axes[len(sections) :]:
            axis.set_visible(False)
        for axis in axes[max(len(sections) - columns, 0) : len(sections)]:
            axis.set_xlabel("Length")
            axis.tick_params(labelbottom=True)
        figure.supylabel("Accuracy", fontsize=9)
        legend_below(figure, axes[: len(sections)], min(5, 2 * columns), [row.name for row in table.rows])
        return save(figure, results_dir / "figures" / f"{table.name}-lengths")


def _points_by_length(run: Record, split: str) -> list[tuple[int, float]]:
    """The lengths of rows, and the accuracy at each after the last step."""
    prefix = f"{PRIMARY_METRIC}@"
    found = run.metrics["last"][split].items()
    return [(int(key.removeprefix(prefix)), value) for key, value in found if key.startswith(prefix)]


def draw_dots(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> list[Path]:
    """Draw the table's columns, a panel a section and a line a model.

    A filled dot is ours in the first column, the bar through it the 90% t interval over seeds, a hollow dot ours in
    another column, a diamond the paper's number; baselines are dashed.
    """
    from matplotlib.ticker import MaxNLocator

    sections = [section for section in table.section_values if any(cell.section == section for cell in cells)]
    names = [row.name for row in table.rows if any(cell.row is row for cell in cells)]
    with style():
        figure = new_figure(2.0 + 2.4 * len(sections), 1.2 + 0.25 * len(names))
        axes = figure.subplots(1, len(sections), sharey=True, squeeze=False)[0]
        for section, axis in zip(sections, axes, strict=True):
            for cell in cells:
                if cell.section == section:
                    _draw_cell(axis, table, cell, names.index(cell.row.name))
            for entry in read_baselines(table, results_dir):
                value = entry.get(str(section) if table.sections else table.columns[0].split)
                if value is not None:
                    axis.axvline(table.scale * value, label=entry["name"], **BASELINE)
            first = table.columns[0]
            axis.set(title=table.section_title(section) if table.sections else first.title)
            axis.set(xlabel=f"{first.split} {first.metric}".capitalize() + " (%)" * table.percent)
            axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axis.grid(**GRID)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].invert_yaxis()
        legend_below(figure, axes)
        return save(figure, results_dir / "figures" / f"{table.name}-dots")


def _draw_cell(axis: Any, table: TableDefinition, cell: Cell, line: int) -> None:
    first, *others = table.columns
    mean, half_width, _ = cell.interval(first)
    if half_width is not None:
        ends = [mean - half_width, mean + half_width]
        axis.plot(ends, [line, line], color=OURS, lw=1.6, label="90% interval over seeds")
    for column in others:
        label = f"ours, {column.title.lower()}"
        axis.plot(cell.interval(column)[0], line, "o", color=OURS, mfc="white", ms=5, label=label)
    axis.plot(mean, line, "o", color=OURS, ms=5, label=f"ours, {first.title.lower()}")
    if paper := table.paper(cell.row, first, cell.section):
        axis.plot(paper[0], line + 0.25, "D", color=PAPER, ms=4.5, label="paper")
