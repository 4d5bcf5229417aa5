"""What a results table shows: for each row, section and chosen value the means over seeds, from run records alone."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from scipy.stats import t

from plstm.results.definitions import Measure, Row, TableDefinition
from plstm.results.records import Record
from plstm.results.sweeps import match_records, planned_runs


class Interval(NamedTuple):
    """`mean` +- `half_width` over `n` values; `half_width` is None where one value says nothing about the spread."""

    mean: float | None
    half_width: float | None
    n: int


def t_interval(values: Sequence[float], level: float = 0.90) -> Interval:
    """Student's t interval of the mean, half width t((1 + level) / 2, n - 1) s / sqrt(n); no mean of no values."""
    n = len(values)
    if n < 2:
        return Interval([*values, None][0], None, n)
    half_width = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return Interval(statistics.fmean(values), half_width, n)


@dataclass(frozen=True, eq=False)  # compared by identity
class Cell:
    """A row in one section with one value of `select.over`; a seed is whole when all its runs have finished."""

    row: Row
    section: Any
    choice: Any
    keys: list[tuple]  # the `PlannedRun.key` of all its runs
    planned_seeds: int
    finished: int  # how many runs
    runs: list[Record]  # of whole seeds
    means: pd.DataFrame  # over `average_over`: a line a whole seed, a column a measure, in the table's unit
    deviations: pd.DataFrame

    def interval(self, measure: Measure) -> Interval:
        """Over the seeds."""
        return t_interval(self.means[measure.name].tolist())

    def mean(self, field: str) -> float | None:
        """Of a numeric field of the records."""
        return statistics.fmean(getattr(run, field) for run in self.runs) if self.runs else None


@dataclass(frozen=True)
class Group:
    """The cells of a row and section, one for each value of `select.over`."""

    cells: list[Cell]
    chosen: Cell  # of the highest mean of `select` over the shared seeds, or over all seeds where none is shared
    shared_seeds: set[str]  # of all cells with whole seeds
    needed: list[Cell]  # to run: with `choose_once`, the chosen one as soon as all cells share a seed


def find_groups(table: TableDefinition, records: Sequence[Record]) -> tuple[list[Group], list[str]]:
    """All cells by section and row, and the ids of other records of the rows' experiments, which are left out."""
    runs, (found, left_out) = planned_runs(table), match_records(table, records)
    lines = []
    for number, run in enumerate(runs):
        record = found.get(run.key)
        line = {"number": number, "row": table.rows.index(run.row), "done": record is not None}
        for name, key in (("section", table.sections), ("choice", table.chosen_key)):
            line[name] = table.sweep[key].index(run.values[key]) if key else 0
        line["seed"] = " ".join(str(run.values[key]) for key in table.seed_keys)
        for name, m in table.measures.items():
            line[name] = table.scale * record.metric(m.split, m.metric, m.at) if record else None
        lines.append(line)
    cells: dict[tuple, list[Cell]] = {}
    for (section, row, choice), part in pd.DataFrame(lines).groupby(["section", "row", "choice"]):
        whole = part[part.groupby("seed")["done"].transform("all")].sort_values(["seed", "number"])
        seeds = whole.astype(dict.fromkeys(table.measures, float)).groupby("seed")[[*table.measures]]
        cell = Cell(
            row=table.rows[row],
            section=table.section_values[section],
            choice=table.sweep[table.chosen_key][choice] if table.select else None,
            keys=[runs[number].key for number in part["number"]],
            planned_seeds=part["seed"].nunique(),
            finished=int(part["done"].sum()),
            runs=[found[runs[number].key] for number in whole["number"]],
            means=seeds.mean(),
            deviations=seeds.std(),
        )
        cells.setdefault((section, row), []).append(cell)
    return [_choose(table, group) for group in cells.values()], left_out


def _choose(table: TableDefinition, cells: list[Cell]) -> Group:
    candidates = [cell for cell in cells if cell.runs]
    shared = set.intersection(*(set(cell.means.index) for cell in candidates)) if candidates else set()

    def score(cell: Cell) -> float:
        return cell.means.loc[sorted(shared) or slice(None), table.select.name].mean()

    chosen = max(candidates, key=score) if candidates and table.select else cells[0]
    is_settled = table.choose_once and shared and len(candidates) == len(cells)
    return Group(cells, chosen, shared, [chosen] if is_settled else cells)


def superfluous_runs(table: TableDefinition, records: Sequence[Record]) -> set[tuple]:
    """The `PlannedRun.key` of the runs that `choose_once` saves: those of values not chosen, where one is."""
    groups = find_groups(table, records)[0] if table.choose_once else []
    return {key for group in groups for cell in group.cells for key in cell.keys if cell not in group.needed}
