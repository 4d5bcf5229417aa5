"""The runs of a study: which there are, in what order, which are finished, what they should take, and for each row,
section and chosen value the means over seeds. All from run records alone.
"""

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t

from plstm.errors import UserError
from plstm.runs.identity import plain_id
from plstm.runs.overrides import as_override
from plstm.studies.definitions import Measure, Row, TableDefinition
from plstm.studies.plans import planned_config
from plstm.studies.records import PRIMARY_METRIC, Record
from plstm.tasks import TASKS
from plstm.training.environment import Hardware


@dataclass(frozen=True)
class PlannedRun:
    """One run of a table: a row's experiment with one value for every swept key."""

    row: Row
    values: dict[str, Any]
    id: str
    init_from: str | None = None  # the id of the run that this one fine-tunes

    @property
    def overrides(self) -> list[str]:
        start = {"init_from": self.init_from} if self.init_from else {}
        return [*self.row.overrides, *(as_override(key, value) for key, value in (start | self.values).items())]


@dataclass(frozen=True)
class Job:
    """Runs that one process trains; they differ in the swept key `shared` only."""

    runs: tuple[PlannedRun, ...]
    shared: str | None = None

    @property
    def overrides(self) -> list[str]:
        words = self.runs[0].overrides
        if self.shared is None:
            return words
        swept = f"{self.shared}={','.join(str(run.values[self.shared]) for run in self.runs)}"
        return [swept if word.startswith(f"{self.shared}=") else word for word in words]


@functools.lru_cache(maxsize=32)
def planned_runs(table: TableDefinition) -> list[PlannedRun]:
    """Every row times every swept value, or those of the table's stages, in the order to run them.

    Stage by stage, section by section, seed by seed over all rows. The value of `select.over` that the paper chose
    (else the first) comes before the others, so that a sweep cut short still fills every row; with `choose_once` a
    seed's values stay together. Of sections, rows without published numbers come last.

    Raises UserError where a row's experiment cannot be composed or lacks a key that is set or swept.
    """
    chosen = table.chosen_key

    def order(run: PlannedRun) -> tuple:
        def place(*keys: str | None) -> list[int]:
            return [table.sweep[key].index(run.values[key]) for key in keys if key]

        preferred = run.row.paper.get(table.chosen_name, table.sweep[chosen][0] if chosen else None)
        late = chosen is not None and not table.choose_once and run.values[chosen] != preferred
        first = stage(run), table.sections is not None and not run.row.paper, place(table.sections), late
        return *first, place(*table.seed_keys), table.rows.index(run.row), place(chosen, *table.average_over)

    def stage(run: PlannedRun) -> int:
        """The first that has the run; behind all of them where none has."""
        for number, part in enumerate(table.stages):
            if run.row.name in part.rows and all(run.values[key] in known for key, known in part.sweep.items()):
                return number
        return len(table.stages)

    runs = _all_runs(table)
    return sorted((run for run in runs if not table.stages or stage(run) < len(table.stages)), key=order)


def _all_runs(table: TableDefinition) -> list[PlannedRun]:
    runs: dict[tuple, PlannedRun] = {}
    for row in table.rows:  # one that others fine-tune comes before them
        for swept in product(*(table.sweep | row.sweep).values()):
            values = dict(zip(table.sweep, swept, strict=True))
            start = None
            if row.init_from:
                of_row = [run for run in runs.values() if run.row.name == row.init_from]
                fits = [run for run in of_row if run.values == values] or of_row
                if len(fits) != 1:
                    raise UserError(f"table {table.name}: row {row.init_from!r} has no run of {values} to fine-tune")
                start = fits[0].id
            settings = row.set | values | ({"init_from": start} if start else {})
            config = planned_config(row.experiment, row.variants, settings)
            _check_measures(table, row, config)
            runs[row.name, *swept] = PlannedRun(row, values, plain_id(config), start)
    return list(runs.values())


def _check_measures(table: TableDefinition, row: Row, config: Mapping[str, Any]) -> None:
    """Raises UserError for what a column, `select` or a panel of curves shows and the runs of a row do not measure."""
    loop = config["loop"]
    for measure in table.measures.values():
        where = f"table {table.name}: {'select' if measure is table.select else 'columns'}"
        splits = loop["final_splits" if measure.at == "last" else "eval_splits"]
        if measure.split not in splits:
            what = f"split={measure.split}: runs of row {row.name!r} measure {', '.join(splits)}"
            raise UserError(f"{where}: {what}")
        if measure.at == "best" and loop["best_split"] is None:
            raise UserError(f"{where}: at=best: runs of row {row.name!r} have loop.best_split=null")
    where = f"table {table.name}: figure.panels"
    if table.figure.panels and row.own and TASKS[config["task"]].primary_metric != PRIMARY_METRIC:
        raise UserError(f"{where}: draw {PRIMARY_METRIC}, which runs of row {row.name!r} have no curve of")
    if row.own and (unknown := table.figure.panels.keys() - {"train", *loop["eval_splits"]}):
        measured = ", ".join(loop["eval_splits"])
        raise UserError(f"{where}: {min(unknown)}: runs of row {row.name!r} measure {measured} during training")


def jobs(table: TableDefinition, runs: Sequence[PlannedRun]) -> list[Job]:
    """The jobs for these runs, in their order; neighbours that differ only in the last of `average_over` share one."""
    if not table.average_over:
        return [Job((run,)) for run in runs]
    shared = table.average_over[-1]
    groups = groupby(runs, lambda run: (run.row.name, run.values | {shared: None}))
    return [Job(tuple(group), shared) for _, group in groups]


def match_records(table: TableDefinition, records: Sequence[Record]) -> dict[str, Record]:
    """The records of the table's runs by id: those that have every metric which the table shows."""
    planned = {run.id for run in planned_runs(table)}
    return {
        record.id: record
        for record in records
        if record.id in planned
        and all(record.metric(m.split, m.metric, m.at) is not None for m in table.measures.values())
    }


def expected_seconds(
    table: TableDefinition, run: PlannedRun, found: dict[str, Record], hardware: Hardware
) -> float | None:
    """Mean wall seconds of the row's finished runs on this hardware in the run's section, those with its value of
    `select.over` if there are any; None where there are no runs."""
    own = [other for other in planned_runs(table) if other.row is run.row and other.id in found]
    own = [other for other in own if found[other.id].hardware.items() <= hardware.items()]  # older records say less
    if key := table.sections:
        own = [other for other in own if other.values[key] == run.values[key]]
    if key := table.chosen_key:
        own = [other for other in own if other.values[key] == run.values[key]] or own
    return statistics.fmean(found[other.id].wall_seconds for other in own) if own else None


def started_runs(runs_dir: Path) -> set[str]:
    """The ids of the runs with a checkpoint in their folder `runs_dir`/<id>."""
    return {path.parents[1].name for path in runs_dir.glob("*/checkpoints/*")}


# ---------------------------------------------------------------------- cells
def t_interval(values: Sequence[float], level: float = 0.90) -> tuple[float | None, float | None, int]:
    """Mean and half width t((1 + level) / 2, n - 1) s / sqrt(n) of Student's interval, None where unknown, and n."""
    n = len(values)
    if n < 2:
        return (values[0] if values else None), None, n
    half_width = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return statistics.fmean(values), half_width, n


@dataclass(frozen=True, eq=False)  # compared by identity
class Cell:
    """A row in one section with one value of `select.over`; a seed is whole when all its runs have finished."""

    row: Row
    section: Any
    choice: Any
    ids: list[str]  # of all its runs
    finished: int  # how many runs
    runs: list[Record]  # of whole seeds
    means: pd.DataFrame  # over `average_over`: a line a whole seed, a column a measure, in the table's unit
    deviations: pd.DataFrame

    def interval(self, measure: Measure) -> tuple[float | None, float | None, int]:
        return t_interval(self.means[measure.name].tolist())

    def mean(self, field: str) -> float | None:
        return statistics.fmean(getattr(run, field) for run in self.runs) if self.runs else None


@dataclass(frozen=True)
class Group:
    """The cells of a row and section, one for each value of `select.over`."""

    cells: list[Cell]
    chosen: Cell  # of the best mean of `select` over the shared seeds, or over all seeds where none is shared
    shared_seeds: set[str]  # of all cells with whole seeds
    needed: list[Cell]  # to run: with `choose_once`, the chosen one as soon as all cells share a seed


def find_groups(table: TableDefinition, records: Sequence[Record]) -> list[Group]:
    """All cells by section and row."""
    found = match_records(table, records)
    planned = _planned_ids(table)
    whole = {
        place: {seed: [found[run] for run in ids] for seed, ids in seeds.items() if found.keys() >= {*ids}}
        for place, seeds in planned.items()
    }
    means, deviations = _by_seed(table, whole)
    groups: dict[tuple, list[Cell]] = {}
    for place, seeds in planned.items():
        section, row, choice = place
        ids = sum(seeds.values(), [])
        runs = sum(whole[place].values(), [])
        cell = Cell(
            row=table.rows[row],
            section=table.section_values[section],
            choice=table.sweep[table.chosen_key][choice] if table.select else None,
            ids=ids,
            finished=len(found.keys() & ids),
            runs=runs,
            means=means.loc[place] if runs else means[:0],
            deviations=deviations.loc[place] if runs else deviations[:0],
        )
        groups.setdefault((section, row), []).append(cell)
    return [_choose(table, group) for group in groups.values()]


def _planned_ids(table: TableDefinition) -> dict[tuple, dict[str, list[str]]]:
    """The ids of all runs by section, row and choice, as numbers in the table's order, and by seed."""
    planned = defaultdict(lambda: defaultdict(list))
    for run in planned_runs(table):
        section, choice = (
            table.sweep[key].index(run.values[key]) if key else 0 for key in (table.sections, table.chosen_key)
        )
        seed = " ".join(str(run.values[key]) for key in table.seed_keys)
        planned[section, table.rows.index(run.row), choice][seed].append(run.id)
    return {place: dict(sorted(seeds.items())) for place, seeds in sorted(planned.items())}


def _by_seed(table: TableDefinition, runs: dict[tuple, dict[str, list[Record]]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Means and deviations of each measure over the runs of a seed, by section, row, choice and seed; of all cells at
    once, as a call for each takes many times longer."""
    lines = [
        [*place, seed, *(table.scale * run.metric(m.split, m.metric, m.at) for m in table.measures.values())]
        for place, seeds in runs.items()
        for seed, own in seeds.items()
        for run in own
    ]
    names = ["section", "row", "choice", "seed"]
    frame = pd.DataFrame(lines, columns=[*names, *table.measures]).astype(dict.fromkeys(table.measures, float))
    return frame.groupby(names).mean(), frame.groupby(names).std()


def _choose(table: TableDefinition, cells: list[Cell]) -> Group:
    candidates = [cell for cell in cells if cell.runs]
    shared = set.intersection(*(set(cell.means.index) for cell in candidates)) if candidates else set()

    def score(cell: Cell) -> float:
        mean = cell.means.loc[sorted(shared) or slice(None), table.select.name].mean()
        return -mean if table.select.metric == "loss" else mean

    chosen = max(candidates, key=score) if candidates and table.select else cells[0]
    is_settled = table.choose_once and shared and len(candidates) == len(cells)
    return Group(cells, chosen, shared, [chosen] if is_settled else cells)


def cells_by_name(groups: Sequence[Group]) -> dict[str, Cell]:
    """For a table without sections: each row's chosen cell by the row's name, and every cell by names such as
    `pLSTM at 0.001`."""
    cells = {f"{cell.row.name} at {cell.choice}": cell for group in groups for cell in group.cells}
    return {group.chosen.row.name: group.chosen for group in groups} | cells


def probed_cells(table: TableDefinition, groups: Sequence[Group]) -> dict[str, Cell]:
    """The cells of own rows by name whose runs are probed: the chosen ones, in a study of the choice itself all."""
    cells = cells_by_name(groups).items()
    return {name: cell for name, cell in cells if cell.row.own and (name != cell.row.name) == table.shows_all_choices}


def superfluous_runs(table: TableDefinition, records: Sequence[Record]) -> set[str]:
    """The ids of the runs that `choose_once` saves: those of values not chosen, where one is."""
    groups = find_groups(table, records) if table.choose_once else []
    return {run for group in groups for cell in group.cells if cell not in group.needed for run in cell.ids}
