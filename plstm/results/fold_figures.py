"""The figure of a table of cross-validations, such as the paper's Table 1: our accuracies beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plstm.drawing import legend_below, new_figure, save, style
from plstm.results.baselines import read_baselines
from plstm.results.definitions import TableDefinition
from plstm.results.fold_tables import Cell, at_best, at_last, choose, find_cells
from plstm.results.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPER = "#0072B2", "#D55E00"  # here a colour tells whose figure it is; the line tells the model


def draw_cells(table: TableDefinition, records: Sequence[RunRecord], results_dir: Path) -> list[Path]:
    """Draw test accuracies, a panel a data set and a line a model.

    A filled dot is ours at the epoch of best validation accuracy, the bar through it the 90% t interval over seeds
    (where there are several), a hollow dot ours at the last epoch, a diamond the paper's figure; baselines are dashed.
    Only what the table shows is drawn: whole seeds, at the chosen depth.

    Returns:
        `figures/<name>-accuracies.png` and `.svg`; nothing is drawn, and the list is empty, without a whole seed.
    """
    from matplotlib.ticker import MaxNLocator

    cells = [cell for cell in choose(table, find_cells(table, records)[0]) if cell.seeds]
    if not cells:
        return []
    columns = {key: title for key, title in table.columns.items() if any(cell.column == key for cell in cells)}
    names = [row.name for row in table.rows if any(cell.row is row for cell in cells)]
    baselines = read_baselines(table, results_dir)
    with style():
        figure = new_figure(2.0 + 2.4 * len(columns), 1.2 + 0.25 * len(names))
        axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for (column, title), axis in zip(columns.items(), axes, strict=True):
            for cell in cells:
                if cell.column == column:
                    _draw_cell(axis, cell, names.index(cell.row.name))
            for entry in baselines:
                if column in entry:
                    axis.axvline(entry[column], color="0.45", lw=0.9, ls=(0, (6, 3)), label=entry["name"], zorder=0)
            axis.set(title=title, xlabel="Test accuracy")
            axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axis.grid(color="0.92", lw=0.7)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].invert_yaxis()
        legend_below(figure, axes)
        return save(figure, results_dir / "figures" / f"{table.name}-accuracies")


def _draw_cell(axis: Axes, cell: Cell, line: int) -> None:
    best, last = cell.mean(at_best("test")), cell.mean(at_last("test"))
    if best.half_width is not None:
        ends = [best.mean - best.half_width, best.mean + best.half_width]
        axis.plot(ends, [line, line], color=OURS, lw=1.6, label="90% interval over seeds")
    axis.plot(last.mean, line, "o", color=OURS, mfc="white", ms=5, label="ours, last epoch")
    axis.plot(best.mean, line, "o", color=OURS, ms=5, label="ours, best validation epoch")
    if cell.paper:
        axis.plot(cell.paper[0], line + 0.25, "D", color=PAPER, ms=4.5, label="paper")
