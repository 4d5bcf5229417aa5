"""What a results table shows: for each row, section and chosen value the means over seeds, from run records alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from plstm.results.definitions import Measure, Row, TableDefinition
from plstm.results.intervals import Interval, t_interval
from plstm.results.records import Record
from plstm.results.sweeps import match_records, planned_runs


@dataclass(frozen=True)
class Cell:
    """A row of the definition in one section with one value of `select.over`.

    `means` and `deviations` have a line for each whole seed and a column for each measure, in the table's unit; a seed is
    whole when all its runs over `average_over` have finished. `runs` are those of whole seeds; `finished` counts all.
    """

    row: Row
    section: Any
    choice: Any
    planned: int
    planned_seeds: int
    finished: int
    runs: list[Record]
    means: pd.DataFrame
    deviations: pd.DataFrame

    def interval(self, measure: Measure) -> Interval | None:
        """Over the seeds, None before the first is whole."""
        return t_interval(self.means[measure.name].tolist()) if self.runs else None

    def deviation(self, measure: Measure) -> float | None:
        """The sample deviation over `average_over`, the mean over the seeds."""
        return float(self.deviations[measure.name].mean()) if self.runs else None

    def mean(self, field: str) -> float | None:
        """Of a numeric field of the records."""
        return t_interval([getattr(run, field) for run in self.runs]).mean if self.runs else None


def find_cells(table: TableDefinition, records: Sequence[Record]) -> tuple[list[Cell], dict[str, str]]:
    """All cells by section, row and value, and why other records of the rows' experiments are left out (id -> reason)."""
    matched, left_out = match_records(table, records)
    chosen = table.select.over if table.select else None
    measures = [*table.columns, *([table.select] if table.select else [])]
    names = list(dict.fromkeys(measure.name for measure in measures))
    seed_keys = [key for key in table.sweep if key not in (table.sections, chosen, *table.average_over)]
    lines = []
    for number, (run, record) in enumerate(matched):
        line = {"number": number, "row": table.rows.index(run.row), "done": record is not None}
        for name, key in (("section", table.sections), ("choice", chosen)):
            line[name] = table.sweep[key].index(run.values[key]) if key else 0
        line["seed"] = " ".join(str(run.values[key]) for key in seed_keys)
        lines.append(line | {m.name: table.scale * m.of(record) for m in measures if record})
    frame = pd.DataFrame(lines).reindex(columns=["section", "row", "choice", "seed", "number", "done", *names])
    cells = []
    for (section, row, choice), group in frame.groupby(["section", "row", "choice"]):
        whole = group[group.groupby("seed")["done"].transform("all")]
        seeds = whole.groupby("seed")[names]
        runs = [matched[number][1] for number in whole.sort_values(["seed", "number"])["number"]]
        place = table.rows[row], table.section_values[section], table.sweep[chosen][choice] if chosen else None
        counts = len(group), group["seed"].nunique(), int(group["done"].sum())
        cells.append(Cell(*place, *counts, runs, seeds.mean(), seeds.std()))
    return cells, left_out


def groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells of each row and section."""
    found = itertools.groupby(cells, key=lambda cell: (cell.section, cell.row.experiment))
    return [list(group) for _, group in found]


def shared_seeds(group: Sequence[Cell]) -> set[str]:
    """The whole seeds that all cells of a row and section have, but for cells without any."""
    seeds = [set(cell.means.index) for cell in group if cell.runs]
    return set.intersection(*seeds) if seeds else set()


def choose(table: TableDefinition, group: Sequence[Cell]) -> Cell:
    """The cell of a row and section that the table shows: the highest mean of `select` over the seeds that all share.

    Over all seeds where there are no shared ones; the first of cells without a whole seed.
    """
    shared = shared_seeds(group)

    def score(cell: Cell) -> float:
        scores = cell.means[table.select.name]
        return scores[scores.index.isin(shared)].mean() if shared else scores.mean()

    return max((cell for cell in group if cell.runs), key=score, default=group[0]) if table.select else group[0]


def superfluous_runs(table: TableDefinition, records: Sequence[Record]) -> set[tuple]:
    """The `PlannedRun.key` of the runs that `choose_once` saves: those of values not chosen, where one is."""
    if not table.choose_once:
        return set()
    rejected = set()
    for group in groups(find_cells(table, records)[0]):
        if all(cell.runs for cell in group) and shared_seeds(group):
            chosen = choose(table, group)
            rejected |= {(c.row.experiment, c.section, c.choice) for c in group if c is not chosen}

    def is_rejected(values: dict, experiment: str) -> bool:
        return (experiment, values.get(table.sections), values[table.select.over]) in rejected

    return {run.key for run in planned_runs(table) if is_rejected(run.values, run.row.experiment)}
