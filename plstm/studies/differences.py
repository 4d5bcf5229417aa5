"""How rows of a study differ where their runs have the same seeds, and so the same batches."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from plstm.studies.definitions import Column, Differences, TableDefinition
from plstm.studies.markdown import DASH, pipes
from plstm.studies.probes import AREA, roc_areas
from plstm.studies.sweeps import Cell, Group, cells_by_name, t_interval

CAPTION = """\
Runs of the same seed, which have the same batches, are compared: a model less the one against which it stands. In
brackets Student's 90% interval over n seeds."""
OF_SETS = """\
× is a ratio of errors, under 1 where the model has the smaller ones: the geometric mean over sets and seeds. Its second
interval, of 95%, is of a bootstrap over the sets. A model is ahead where both leave out 1, for neither says anything
about what the other is over."""
DRAWS = 10_000  # of the bootstrap over sets


class Difference(NamedTuple):
    """A line of differences.csv. With sets, the values are ratios of errors, else differences of the column."""

    row: str
    against: str
    metric: str  # a column, by its name, or area_under_roc@<canvas side>
    value: float  # mean over shared seeds, and geometric mean over sets
    low: float | None  # Student's 90% interval over seeds
    high: float | None
    seeds: int
    sets_low: float | None  # 95% interval of a bootstrap over the sets
    sets_high: float | None
    better: int | None  # sets on which the row has the smaller errors
    sets: int | None


def render_differences(table: TableDefinition, groups: Sequence[Group], results_dir: Path) -> dict[str, str]:
    """differences.md and differences.csv; nothing while no two rows share a seed."""
    found = [*_differences(table, groups, results_dir)]
    if not found:
        return {}
    frame = pd.DataFrame(found, dtype=object)
    numbers = frame.map(lambda value: f"{value:.9g}" if isinstance(value, float) else value)
    has_sets = any(difference.sets for difference in found)
    titles = {column.name: column.title for column in table.columns}
    titles |= {_area(side): f"ROC area, {side} pixels" for side in table.differences.roc_areas}
    head = ["Model", "Against", "Score", "Difference", "Seeds", *["Sets", "Better on"] * has_sets]
    lines = [head, *(_line(each, titles, table.digits, has_sets) for each in found)]
    text = f"# {table.title}: differences\n\n{CAPTION}\n" + f"{OF_SETS}\n" * has_sets + "\n"
    text += "\n".join(pipes(lines)) + "\n"
    return {"differences.md": text, "differences.csv": numbers.to_csv(index=False, lineterminator="\n")}


def _line(each: Difference, titles: dict[str, str], digits: int, has_sets: bool) -> list[str]:
    sign, form = ("× ", f".{digits}f") if each.sets else ("", f"+.{digits}f")

    def interval(low: float | None, high: float | None) -> str:
        return DASH if low is None else f"[{low:{form}}, {high:{form}}]"

    cells = [each.row, each.against, titles[each.metric], f"{sign}{each.value:{form}}"]
    cells.append(f"{interval(each.low, each.high)}, n={each.seeds}")
    of_sets = [interval(each.sets_low, each.sets_high), f"{each.better} of {each.sets}" if each.sets else DASH]
    return cells + of_sets * has_sets


def _differences(table: TableDefinition, groups: Sequence[Group], results_dir: Path) -> Iterator[Difference]:
    asked = table.differences
    if asked is None:
        return
    cells = cells_by_name(groups)
    columns = [column for column in table.columns if column.name in asked.columns]
    for row, against in ((row, against) for against, *others in asked.groups for row in others):
        if not {row, against} <= cells.keys():
            continue  # of no stage
        pair = cells[row], cells[against]
        for column in columns:
            sets = _sets(cells[row], column, asked)
            values = _paired(*(_values(cell, column, sets) for cell in pair))
            if len(values):
                yield Difference(row, against, column.name, *_summary(values, has_sets=bool(sets)))
        for side in asked.roc_areas:
            values = _paired(*(roc_areas(cell.runs, side, results_dir) for cell in pair))
            if len(values):
                yield Difference(row, against, _area(side), *_summary(values, has_sets=False))


def _area(side: int) -> str:
    return f"{AREA}@{side}"


def _paired(ours: dict[Any, Any], theirs: dict[Any, Any]) -> np.ndarray:
    """Differences for each seed that both have and, where there are any, each set [seeds, sets or 1]."""
    return np.array(
        [np.atleast_1d(np.subtract(ours[seed], theirs[seed])) for seed in sorted(ours.keys() & theirs.keys())]
    )


def _sets(cell: Cell, column: Column, asked: Differences) -> list[str]:
    """The metrics of the single sets that the column is the mean over, metric@set."""
    of_group = asked.sets.get(column.name)
    metric = column.metric if of_group is None else column.metric.partition("_")[0]  # wql_daily is the mean of wql@...
    metrics = cell.runs[0].metrics[column.at][column.split] if cell.runs else {}
    found = {name.removeprefix(f"{metric}@"): name for name in metrics if name.startswith(f"{metric}@")}
    return [found[name] for name in found if name not in asked.leave_out and (of_group is None or name in of_group)]


def _values(cell: Cell, column: Column, sets: Sequence[str]) -> dict[str, Any]:
    """Seed -> the logarithms of the errors on the sets, or where there are none the column's value."""
    if not sets:
        return dict(cell.means[column.name])
    of_seeds = {str(run.seed): run.metrics[column.at][column.split] for run in cell.runs}
    return {seed: np.log([metrics[name] for name in sets]) for seed, metrics in of_seeds.items()}


def _summary(values: np.ndarray, has_sets: bool) -> Iterator[float | int | None]:
    """The numbers of a `Difference`; values: of each seed and set [seeds, sets], logarithms where there are sets."""
    back = np.exp if has_sets else float
    mean, half_width, seeds = t_interval(values.mean(1).tolist())
    yield float(back(mean))
    yield from (None if half_width is None else float(back(mean + sign * half_width)) for sign in (-1, 1))
    yield seeds
    if not has_sets:
        yield from [None] * 4
        return
    of_sets = values.mean(0)
    drawn = np.random.RandomState(0).randint(0, len(of_sets), (DRAWS, len(of_sets)))
    yield from np.exp(np.quantile(of_sets[drawn].mean(1), (0.025, 0.975))).tolist()
    yield from (int((of_sets < 0).sum()), len(of_sets))
