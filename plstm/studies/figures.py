"""Figures of a study, from its run records: training curves, accuracy against size, distance or length, loss against
time, and columns beside the paper's numbers. Each says its n and what is small about its runs, and has at most `LINES`
lines an axes.
"""

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from plstm.drawing import new_figure, save, style
from plstm.studies.definitions import LINES, Column, TableDefinition, read_baselines
from plstm.studies.probes import points_by_size, read_probes, read_sizes
from plstm.studies.records import PRIMARY_METRIC, Record, read_curve
from plstm.studies.sweeps import Cell, find_groups, t_interval

# By row, the same in all studies; other rows take what is left of OTHER_COLOURS in their panel.
COLOURS = {
    "pLSTM": "#0072B2",
    "pLSTM / (P-mode only)": "#009E73",
    "pLSTM / (D-mode only)": "#CC79A7",
    "pLSTM (gates as printed)": "#E69F00",
    "ViT": "#D55E00",
    "EfficientNet": "#000000",
    "ViL": "#8A8D00",
    "ViL (released grid)": "#8A8D00",
    "Mamba2D": "#7F3C8D",
    "2DMamba": "#8B5A2B",
    "pLSTM, J_T 1": "#56B4E9",
    "pLSTM, J_T 4": "#0072B2",
    "xLSTM[1:1]": "#009E73",
    "GDN[-1,1]": "#CC79A7",
    "Transformer": "#000000",
}
OTHER_COLOURS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#0072B2")
OURS, PAPER = "#0072B2", "#D55E00"  # of dots: there a colour says whose number it is
BASELINE = {"color": "0.45", "lw": 0.9, "ls": (0, (6, 3)), "zorder": 0}
WIDTH = 8.0  # inches
PANELS = 4  # side by side, of accuracy against length
COLUMN_PANELS = 5  # of dots
TITLE_WIDTH = 14  # characters a line, of their titles
DASHES = (BASELINE["ls"], ":", "-.", (0, (2, 1)), (0, (6, 2, 1, 2, 1, 2)))  # of baselines in dots
FARTHEST = 1.3  # times our largest number: what is beyond would push all of ours together


def draw_table(table: TableDefinition, records: Sequence[Record], results_dir: Path) -> list[Path]:
    """Draws what `figure` asks for of cells with a whole seed; returns the PNG files. UserError for a missing curve."""
    grouped = [name for names in table.figure_groups.values() for name in names]
    drawn = {row.name for row in table.rows if row.own and row.name in grouped}
    groups = [group for group in find_groups(table, records) if group.chosen.row.name in drawn]
    cells = [group.chosen for group in groups if group.chosen.runs]
    every = [cell for group in groups for cell in group.cells if cell.runs]
    wanted = {
        "curves": (draw_curves, table.figure.panels, cells),
        "dots": (draw_dots, table.figure.dots, cells),
        "lengths": (draw_lengths, table.figure.lengths, cells),
        "sizes": (draw_sizes, table.figure.sizes, cells),
        "clock": (draw_clock, table.figure.clock, cells),
        "choices": (draw_choices, table.figure.choices, every),
    }
    written = []
    for name, (draw, is_wanted, own) in wanted.items():
        with style():
            figure = draw(table, own, results_dir) if is_wanted and own else None
            if figure is not None:
                written.append(save(figure, results_dir / table.name / f"{name}.png"))
    return written


def draw_curves(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> Any:
    """Accuracy over epochs as in Figures 2 and 6 of arXiv 2506.11997: a column of panels per split, a row per group."""
    wanted = table.figure
    published = _paper_curves(table, results_dir)
    curves = {cell.row.name: _mean_curves(cell.runs, results_dir) for cell in cells}
    labels = {cell.row.name: f"{cell.row.name} (n={len(cell.runs)})" for cell in cells}
    baseline = next((entry for entry in read_baselines(table, results_dir) if entry["name"] == wanted.baseline), {})
    groups = _groups(table, cells)
    figure = new_figure(WIDTH, 0.9 + 1.9 * len(groups))
    axes = figure.subplots(len(groups), len(wanted.panels), sharex=True, sharey=True, squeeze=False)
    for own_axes, (group, colours) in zip(axes, groups.items(), strict=True):
        for axis, (split, title) in zip(own_axes, wanted.panels.items(), strict=True):
            for name, colour in colours.items():
                _draw_line(axis, curves[name][split], labels[name], colour)
                if (curve := published.get((name, split))) is not None:
                    axis.plot(curve["epoch"], curve["mean"], color=colour, lw=0.8, label=f"{name} (paper)")
            if split in baseline:
                axis.axhline(baseline[split], label=wanted.baseline, **BASELINE)
            axis.set_title(", ".join(filter(None, [group, title])))
            axis.set_xlim(left=0)
            _shade_chance(axis, table.chance)
        own_axes[0].set_ylabel(PRIMARY_METRIC.capitalize())
        _legend(own_axes[-1])
    for axis in axes[-1]:
        axis.set_xlabel("Epoch")
    return _titled(figure, table, "Mean over n runs and 90% interval")


def draw_sizes(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> Any:
    """Accuracy against the canvas, from probes, a panel a group; None where no run was probed."""
    probes = {cell.row.name: read_probes(cell.runs, results_dir) for cell in cells}
    groups = _groups(table, [cell for cell in cells if probes[cell.row.name].rows])
    if not groups:
        return None
    baseline = read_sizes(table, results_dir).get(table.figure.baseline)
    figure = new_figure(WIDTH, 3.9 if len(groups) > 1 else 2.9)
    axes = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axis, (group, colours) in zip(axes, groups.items(), strict=True):
        for name, colour in colours.items():
            curve = _mean_points([points_by_size(rows) for rows in probes[name].rows.values()])
            _draw_line(axis, curve, f"{name} ({probes[name].count})", colour)
        if baseline:
            axis.plot(*zip(*points_by_size(baseline), strict=True), label=table.figure.baseline, **BASELINE)
        axis.set(title=group, xlabel="Canvas side (pixels)")
        _shade_chance(axis, table.chance)
        _legend(axis, is_below=len(groups) > 1)
    axes[0].set_ylabel("Test accuracy")
    return _titled(figure, table, "Mean over n probed runs and 90% interval")


def draw_lengths(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> Any:
    """Accuracy at each length of the split `figure.lengths`: a panel a section and group, a line a row's mean."""
    chance = next((entry for entry in read_baselines(table, results_dir) if entry["name"] == "chance"), {})
    names = [name for group in table.figure_groups.values() for name in group]
    panels = []
    for section in table.section_values:
        own = {cell.row.name: cell for cell in cells if cell.section == section}
        panels += [(section, group, own, colours) for group, colours in _groups(table, list(own.values())).items()]
    columns = min(len(panels), PANELS)
    lines = -(-len(panels) // PANELS)
    figure = new_figure(WIDTH, 1.6 * lines + 1.1)
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axis, (section, group, own, colours) in zip(axes, panels, strict=False):
        for name, colour in colours.items():
            mean = _mean_points([_points_by_length(run, table.figure.lengths) for run in own[name].runs])
            width = 3 - 0.4 * (names.index(name) % LINES)  # a line under another shows at its sides
            axis.plot(mean["x"], mean["mean"], color=colour, lw=width, label=name)
        axis.set_title(", ".join(filter(None, [table.section_title(section), group])), fontsize=8)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        _shade_chance(axis, chance.get(str(section)), bottom=0)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis in figure.axes[-columns:]:
        axis.set_xlabel("Length")
        axis.tick_params(labelbottom=True)
    figure.supylabel("Accuracy", fontsize=9)
    _legend_below(figure, names)
    n = _range(len(own[name].runs) for *_, own, colours in panels for name in colours)
    return _titled(figure, table, f"Mean over {n} runs")


def draw_clock(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> Any:
    """Training loss against the seconds of so many steps; None where no row of the section was measured."""
    clock = table.figure.clock
    seconds = _seconds_per_step(results_dir / clock.benchmark)
    timed = [cell for cell in cells if str(cell.section) == clock.section and cell.row.experiment in seconds]
    groups = _groups(table, timed)
    if not groups:
        return None
    (colours,) = groups.values()
    figure = new_figure(WIDTH, 2.9)
    axis = figure.subplots()
    for cell in (cell for cell in timed if cell.row.name in colours):
        step = seconds[cell.row.experiment]
        curves = [
            [p for p in read_curve(run, results_dir) if (p.split, p.metric) == ("train", "loss")] for run in cell.runs
        ]
        mean = _mean_points([[(step * p.step, p.value) for p in curve] for curve in curves])
        axis.plot(
            mean["x"], mean["mean"], color=colours[cell.row.name], lw=1.5, label=f"{cell.row.name} (n={len(curves)})"
        )
    axis.set(title=table.section_title(clock.section), xlabel="Seconds of training steps on one core", xscale="log")
    axis.set(ylabel="Training loss", yscale="log")
    axis.grid(color="0.92", lw=0.7)
    _legend(axis)
    return _titled(figure, table, "Mean over n runs, as far as all of them go")


def draw_choices(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> Any:
    """The first two columns at every value of `select.over`, a line a row: solid ours, with 90% intervals, dashed the
    paper's, at its sizes. None before a row has two values."""
    if all(len({cell.choice for cell in cells if cell.row is row}) < 2 for row in table.rows):
        return None
    columns = table.columns[:2]
    (colours,) = _groups(table, cells).values()
    figure = new_figure(WIDTH, 2.9)
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for number, (column, axis) in enumerate(zip(columns, axes, strict=True)):
        for name, colour in colours.items():
            own = sorted((cell.choice, *cell.interval(column)) for cell in cells if cell.row.name == name)
            places, means, widths, _ = zip(*own, strict=True)
            bars = [math.nan if width is None else width for width in widths]
            axis.errorbar(places, means, bars, color=colour, marker="o", ms=4, lw=1.5, capsize=2, label=name)
            if paper := sorted(table.figure.choices.get(name, {}).items()):
                line = [(place, values[number]) for place, values in paper]
                label = f"{name} (paper, its size)"
                axis.plot(*zip(*line, strict=True), color=colour, marker="D", ms=4, mfc="w", lw=1, ls="--", label=label)
        axis.set(title=column.title, xlabel=table.chosen_title, xscale="log")
        _shade_chance(axis, table.chance)
    axes[0].set_ylabel(PRIMARY_METRIC.capitalize())
    _legend(axes[-1])
    return _titled(figure, table, f"Mean over {_range(len(cell.runs) for cell in cells)} runs and 90% interval")


def draw_dots(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> Any:
    """The table's columns, one line per row: a filled dot is ours, the bar its 90% interval, a diamond the paper's
    number; dashed lines are baselines that are not too far off. One panel per section, where a hollow dot is ours in a
    column other than the first; without sections one panel for each of the first columns.
    """
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(name for colours in _groups(table, cells).values() for name in colours))
    sections = [section for section in table.section_values if any(cell.section == section for cell in cells)]
    first = table.columns[0]
    xlabel = f"{first.split} {first.metric}".capitalize() + " (%)" * table.percent
    panels = [(table.section_title(section), xlabel, section, str(section), table.columns) for section in sections]
    if not table.sections:
        panels = [(column.title, "", None, column.name, [column]) for column in table.columns[:COLUMN_PANELS]]
    figure = new_figure(WIDTH, 1.5 + 0.25 * len(names))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for (title, xlabel, section, key, columns), axis in zip(panels, axes, strict=True):
        for cell in (cell for cell in cells if cell.section == section):
            _draw_cell(axis, table, cell, names.index(cell.row.name), columns)
        largest = max(cell.interval(columns[0])[0] for cell in cells if cell.section == section)
        for entry, dashes in zip(read_baselines(table, results_dir), DASHES, strict=False):
            if key in entry and table.scale * entry[key] < FARTHEST * largest:
                axis.axvline(table.scale * entry[key], label=entry["name"], **BASELINE | {"ls": dashes})
        lines = (textwrap.fill(part, TITLE_WIDTH) for part in title.split(", "))
        axis.set(title="\n".join(lines), xlabel=xlabel)
        axis.xaxis.set_major_locator(MaxNLocator(4 if len(panels) < COLUMN_PANELS else 3, steps=[1, 2, 5, 10]))
        axis.grid(color="0.92", lw=0.7)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    _legend_below(figure)
    return _titled(figure, table, f"Mean over {_range(len(cell.means) for cell in cells)} seeds")


def _draw_cell(axis: Any, table: TableDefinition, cell: Cell, line: int, columns: Sequence[Column]) -> None:
    first, *others = columns
    mean, half_width, _ = cell.interval(first)
    if half_width is not None:
        axis.plot([mean - half_width, mean + half_width], [line, line], color=OURS, lw=1.6, label="90% interval")
    for column in others:
        own = {"color": OURS, "mfc": "white", "ms": 5, "label": f"ours, {column.title.lower()}"}
        axis.plot(cell.interval(column)[0], line, "o", **own)
    label = f"ours, {first.title.lower()}" if table.sections else "ours"
    axis.plot(mean, line, "o", color=OURS, ms=5, label=label)
    if paper := table.paper(cell.row, first, cell.section):
        axis.plot(paper[0], line + 0.25, "D", color=PAPER, ms=4.5, label="paper")


# ---------------------------------------------------------------------- parts of figures
def _groups(table: TableDefinition, cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """Title of a panel -> its rows that have cells, with their colours; a row keeps its colour in all panels."""
    wanted = table.figure_groups
    known = {cell.row.name for cell in cells}
    found = ((name, COLOURS.get(name.partition(", after ")[0])) for names in wanted.values() for name in names)
    colours = {name: colour for name, colour in found if colour}
    for names in wanted.values():
        free = [colour for colour in OTHER_COLOURS if colour not in {colours.get(name) for name in names}]
        for name in (name for name in names if name not in colours):
            colours[name] = free.pop(0) if free else "#777777"
    groups = {title: {name: colours[name] for name in names if name in known} for title, names in wanted.items()}
    return {title: names for title, names in groups.items() if names}


def _draw_line(axis: Any, curve: pd.DataFrame, label: str, colour: str) -> None:
    marker = "o" if len(curve) == 1 else None  # a line of one point shows nothing
    axis.plot(curve["x"], curve["mean"], color=colour, lw=1.5, marker=marker, ms=4, label=label, zorder=3)
    if curve["half_width"].notna().any():
        low, high = ((curve["mean"] + sign * curve["half_width"]).clip(0, 1) for sign in (-1, 1))
        axis.fill_between(curve["x"], low, high, color=colour, alpha=0.13, lw=0, zorder=2)


def _shade_chance(axis: Any, chance: float | None, bottom: float | None = None) -> None:
    axis.grid(axis="y", color="0.92", lw=0.7)
    if chance is not None:
        axis.axhspan(-1, chance, color="0.93", lw=0, zorder=0, label="below chance")
    axis.set_ylim(max(0.0, (chance or 0.1) - 0.1) if bottom is None else bottom, 1.03)


def _legend(axis: Any, is_below: bool = False) -> None:
    """Beside the axes, or below."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.22)} if is_below else {"loc": "center left"}
    handles, labels = axis.get_legend_handles_labels()
    labels = [textwrap.fill(label, 30) for label in labels]
    axis.legend(handles, labels, fontsize=8, handlelength=1.6, **({"bbox_to_anchor": (1.0, 0.5)} | place))


def _legend_below(figure: Any, order: Sequence[str] = ()) -> None:
    """One legend for all axes, each label once: those of `order` first."""
    axes = figure.axes
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    labels = [label for label in dict.fromkeys([*order, *handles]) if label in handles]
    inches = sum(0.5 + 0.06 * len(label) for label in labels)  # about, of marks and of text of 8 points
    rows = 1 + int(inches / figure.get_figwidth())
    columns = min(6, math.ceil(len(labels) / rows))
    place = {"loc": "outside lower center", "ncols": columns, "columnspacing": 1.2}
    figure.legend([handles[label] for label in labels], labels, fontsize=8, **place)


def _titled(figure: Any, table: TableDefinition, marks: str) -> Any:
    """Adds the study's title, and below it what is small about its runs and what the marks mean."""
    figure.suptitle("\n".join(filter(None, [table.title, table.figure.small, marks])), fontsize=9)
    return figure


def _range(counts: Iterable[int]) -> str:
    low, high = min(counts := list(counts)), max(counts)
    return f"n = {low}" + f" to {high}" * (high > low)


# ---------------------------------------------------------------------- what is drawn
def _paper_curves(table: TableDefinition, results_dir: Path) -> dict[tuple[str, str], pd.DataFrame]:
    """(Row, split) -> epoch and mean of the paper's runs; nothing where there is no file."""
    path = results_dir / (table.figure.paper or "")
    return dict(iter(pd.read_csv(path).groupby(["row", "split"]))) if path.is_file() else {}


def _mean_curves(runs: Sequence[Record], results_dir: Path) -> dict[str, pd.DataFrame]:
    """Split -> `_mean_points` over the epochs."""
    curves = [[point for point in read_curve(run, results_dir) if point.metric == PRIMARY_METRIC] for run in runs]

    def of_split(split: str) -> pd.DataFrame:
        return _mean_points([[(p.epoch, p.value) for p in curve if p.split == split] for curve in curves])

    return {split: of_split(split) for split in {point.split for curve in curves for point in curve}}


def _mean_points(curves: Sequence[Sequence[tuple[float, float]]]) -> pd.DataFrame:
    """Points (x, value) of several runs -> x, mean and half width where all of them have a point."""
    points = pd.DataFrame([point for curve in curves for point in curve], columns=["x", "value"])
    means = [(x, *t_interval(part["value"].tolist())) for x, part in points.groupby("x")]
    frame = pd.DataFrame(means, columns=["x", "mean", "half_width", "n"])
    return frame[frame["n"] == len(curves)]


def _seconds_per_step(path: Path) -> dict[str, float]:
    """Experiment -> mean over its entries of `scripts/benchmark.py steps`; nothing where there is no file."""
    rows = json.loads(path.read_bytes())["rows"] if path.is_file() else []
    frame = pd.DataFrame(
        [(row["experiment"].split()[0], row["median_seconds"]) for row in rows], columns=["experiment", "seconds"]
    )
    return frame.groupby("experiment")["seconds"].mean().to_dict()


def _points_by_length(run: Record, split: str) -> list[tuple[int, float]]:
    """The lengths of rows, and the accuracy at each after the last step."""
    prefix = f"{PRIMARY_METRIC}@"
    found = run.metrics["last"][split].items()
    return [(int(key.removeprefix(prefix)), value) for key, value in found if key.startswith(prefix)]
