"""What a results table shows: for each row, section and chosen value the means over seeds, from run records alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from plstm.results.definitions import Measure, Row, TableDefinition
from plstm.results.intervals import Interval, t_interval
from plstm.results.records import Record
from plstm.results.sweeps import match_records


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
        """Over the seeds; of n = 0 without a mean before the first is whole."""
        return t_interval(self.means[measure.name].tolist()) if self.runs else Interval(None, None, 0)

    def deviation(self, measure: Measure) -> float | None:
        """The sample deviation over `average_over`, the mean over the seeds."""
        return float(self.deviations[measure.name].mean()) if self.runs else None

    def mean(self, field: str) -> float | None:
        """Of a numeric field of the records."""
        return t_interval([getattr(run, field) for run in self.runs]).mean if self.runs else None


@dataclass(frozen=True)
class Group:
    """The cells of a row and section, one for each value of `select.over`."""

    cells: list[Cell]
    chosen: Cell  # of the highest mean of `select` over the shared seeds, or over all seeds where none is shared
    shared_seeds: set[str]  # of all cells with whole seeds
    needed: list[Cell]  # to run: with `choose_once`, the chosen one as soon as all cells share a seed


def find_groups(table: TableDefinition, records: Sequence[Record]) -> tuple[list[Group], list[str]]:
    """All cells by section and row, and the ids of other records of the rows' experiments, which are left out."""
    matched, left_out = match_records(table, records)
    measures = {m.name: m for m in table.measures}
    lines = []
    for number, (run, record) in enumerate(matched):
        line = {"number": number, "row": table.rows.index(run.row), "done": record is not None}
        for name, key in (("section", table.sections), ("choice", table.chosen_key)):
            line[name] = table.sweep[key].index(run.values[key]) if key else 0
        line["seed"] = " ".join(str(run.values[key]) for key in table.seed_keys)
        for name, m in measures.items():
            line[name] = table.scale * record.metric(m.split, m.metric, m.at) if record else None
        lines.append(line)
    cells: dict[tuple, list[Cell]] = {}
    for (section, row, choice), part in pd.DataFrame(lines).groupby(["section", "row", "choice"]):
        whole = part[part.groupby("seed")["done"].transform("all")].sort_values(["seed", "number"])
        seeds = whole.astype(dict.fromkeys(measures, float)).groupby("seed")[[*measures]]
        cell = Cell(
            row=table.rows[row],
            section=table.section_values[section],
            choice=table.sweep[table.chosen_key][choice] if table.select else None,
            keys=[matched[number][0].key for number in part["number"]],
            planned_seeds=part["seed"].nunique(),
            finished=int(part["done"].sum()),
            runs=[matched[number][1] for number in whole["number"]],
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
