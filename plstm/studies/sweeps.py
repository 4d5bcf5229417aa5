"""The runs of a results table: which there are, in what order, which are finished, what they
should take, and for each row, section and chosen value the means over seeds. All from run records alone.
"""

import contextlib
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from scipy.stats import t

from plstm.errors import UserError
from plstm.studies.definitions import FREE, Measure, Row, TableDefinition, is_part
from plstm.studies.records import Hardware, Record, value_at


@dataclass(frozen=True)
class PlannedRun:
    """One run of a table: a row's experiment with one value for every swept key."""

    row: Row
    values: dict[str, Any]

    @property
    def key(self) -> tuple:
        """What a run's record or folder is found by: the experiment and the swept values."""
        return (self.row.experiment, *self.values.values())

    @property
    def initial_key(self) -> tuple | None:
        """The key of the run that this one fine-tunes, None where it starts anew."""
        return (self.row.init_from, *self.values.values()) if self.row.init_from else None


@dataclass(frozen=True)
class Job:
    """Runs that one process trains; they differ in the swept key `shared` only."""

    runs: tuple[PlannedRun, ...]
    shared: str | None = None

    @property
    def overrides(self) -> list[str]:
        values = self.runs[0].values
        if self.shared:
            values = values | {self.shared: ",".join(str(run.values[self.shared]) for run in self.runs)}
        return [f"experiment={self.runs[0].row.experiment}", *(f"{key}={value}" for key, value in values.items())]


def planned_runs(table: TableDefinition) -> list[PlannedRun]:
    """Every row times every swept value, or those of the table's stages, in the order to run them.

    Stage by stage, section by section, seed by seed over all rows. The value of `select.over` that the paper chose
    (else the first) comes before the others, so that a sweep cut short still fills every row; with `choose_once` a
    seed's values stay together. Of sections, rows without published numbers come last.
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

    grid = ((row, values) for row in table.rows for values in product(*(table.sweep | row.sweep).values()))
    runs = [PlannedRun(row, dict(zip(table.sweep, values, strict=True))) for row, values in grid]
    return sorted((run for run in runs if not table.stages or stage(run) < len(table.stages)), key=order)


def jobs(table: TableDefinition, runs: Sequence[PlannedRun]) -> list[Job]:
    """What to start for these runs, in their order; neighbours that only averaging tells apart share a job."""
    if not table.average_over:
        return [Job((run,)) for run in runs]
    shared = table.average_over[-1]
    groups = groupby(runs, lambda run: (run.row.experiment, run.values | {shared: None}))
    return [Job(tuple(group), shared) for _, group in groups]


def match_records(table: TableDefinition, records: Sequence[Record]) -> tuple[dict[tuple, Record], list[str]]:
    """The records by `PlannedRun.key`, and the ids of other records of the table's own rows, which do not fit.

    A record fits with the swept values of a planned run, every metric that the table shows, what the table and the row
    `require`, no further overrides, and the table's run as the one that it fine-tunes. Of two that fit, the one that
    finished first counts.
    """
    runs = {run.key: run for run in planned_runs(table)}
    found: dict[tuple, Record] = {}
    left_out = []
    for row in table.rows:  # a run that others fine-tune is of an earlier row
        for record in sorted((r for r in records if r.experiment == row.experiment), key=lambda r: r.finished):
            run = runs.get(_key(table, record.config))
            if run and _fits(table, run, record, found):
                found[run.key] = record
            elif row.own:
                left_out.append(record.id)
    return found, left_out


def _key(table: TableDefinition, config: dict[str, Any]) -> tuple:
    """What `PlannedRun.key` is of a run of the table; lists and groups, which no sweep has, as text."""
    values = (value_at(config, key) for key in ("experiment", *table.sweep))
    return tuple(str(value) if isinstance(value, list | dict) else value for value in values)


def _fits(table: TableDefinition, run: PlannedRun, record: Record, found: dict[tuple, Record]) -> bool:
    required, start = table.require | run.row.require, found.get(run.initial_key)
    allowed = (*FREE, "experiment", "init_from", *table.sweep, *required)
    return (
        run.key not in found
        and all(record.metric(m.split, m.metric, m.at) is not None for m in table.measures.values())
        and all(value_at(record.config, key, "absent") == value for key, value in required.items())
        and all(is_part(override.partition("=")[0].lstrip("+"), allowed) for override in record.overrides)
        and (not run.initial_key or (start is not None and value_at(record.config, "init_from") == start.id))
    )


def initial_override(run: PlannedRun, found: dict[tuple, Record]) -> list[str]:
    """The override that names the run to fine-tune, none for a run that starts anew; UserError where it is missing."""
    if not run.initial_key:
        return []
    if run.initial_key not in found:
        raise UserError(f"fine-tunes {run.row.init_from}, which has not finished")
    return [f'init_from="{found[run.initial_key].id}"']  # quoted, for Hydra would take some ids for numbers


def expected_seconds(
    table: TableDefinition, run: PlannedRun, found: dict[tuple, Record], hardware: Hardware
) -> float | None:
    """Mean wall seconds of the row's runs on the hardware, of its section and, if there are any, chosen value."""
    own = [r for r in found.values() if r.experiment == run.row.experiment and r.hardware == hardware]
    if key := table.sections:
        own = [record for record in own if value_at(record.config, key) == run.values[key]]
    if key := table.chosen_key:
        own = [record for record in own if value_at(record.config, key) == run.values[key]] or own
    return statistics.fmean(record.wall_seconds for record in own) if own else None


def one_each_gain(table: TableDefinition, found: dict[tuple, Record], hardware: Hardware) -> float | None:
    """How many times the throughput of one run on all devices is that of as many runs side by side, one on each: the
    mean over experiments and sections with finished runs of both kinds on these devices, None if there are none."""
    kind, count = hardware["device_kind"], hardware["device_count"]
    speeds: dict[tuple, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in found.values():
        if record.hardware["device_kind"] == kind:
            section = str(value_at(record.config, table.sections)) if table.sections else None
            speeds[record.experiment, section][record.hardware["device_count"]].append(record.examples_per_second)
    both = [by_count for by_count in speeds.values() if 1 in by_count and count in by_count]
    gains = [count * statistics.fmean(by_count[1]) / statistics.fmean(by_count[count]) for by_count in both]
    return statistics.fmean(gains) if gains else None


def started_runs(table: TableDefinition, runs_dir: Path) -> set[tuple]:
    """The `PlannedRun.key` of every run of the table's experiments with a checkpoint in its folder `runs_dir`/<id>."""
    found = set()
    for path in runs_dir.glob("*/.hydra/config.yaml"):
        if any(path.parents[1].glob("checkpoints/*")):
            with contextlib.suppress(OSError, ValueError, yaml.YAMLError, OmegaConfBaseException):  # a damaged folder
                found.add(_key(table, OmegaConf.to_container(OmegaConf.load(path))))  # as written: nothing is filled in
    return found


# ---------------------------------------------------------------------- cells
def t_interval(values: Sequence[float], level: float = 0.90) -> tuple[float | None, float | None, int]:
    """Mean and half width t((1 + level) / 2, n - 1) s / sqrt(n) of Student's interval, None where unknown, and n."""
    n = len(values)
    if n < 2:
        return [*values, None][0], None, n
    half_width = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return statistics.fmean(values), half_width, n


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


def find_groups(table: TableDefinition, records: Sequence[Record]) -> tuple[list[Group], list[str]]:
    """All cells by section and row, and the ids that `match_records` leaves out."""
    found, left_out = match_records(table, records)
    planned = _planned_keys(table)
    whole = {
        place: {seed: [found[key] for key in keys] for seed, keys in seeds.items() if found.keys() >= {*keys}}
        for place, seeds in planned.items()
    }
    means, deviations = _by_seed(table, whole)
    groups: dict[tuple, list[Cell]] = {}
    for place, seeds in planned.items():
        section, row, choice = place
        keys, runs = sum(seeds.values(), []), sum(whole[place].values(), [])
        cell = Cell(
            row=table.rows[row],
            section=table.section_values[section],
            choice=table.sweep[table.chosen_key][choice] if table.select else None,
            keys=keys,
            planned_seeds=len(seeds),
            finished=len(found.keys() & keys),
            runs=runs,
            means=means.loc[place] if runs else means[:0],
            deviations=deviations.loc[place] if runs else deviations[:0],
        )
        groups.setdefault((section, row), []).append(cell)
    return [_choose(table, group) for group in groups.values()], left_out


def _planned_keys(table: TableDefinition) -> dict[tuple, dict[str, list[tuple]]]:
    """The keys of all runs by section, row and choice, as numbers in the table's order, and by seed."""
    planned = defaultdict(lambda: defaultdict(list))
    for run in planned_runs(table):
        section, choice = (
            table.sweep[key].index(run.values[key]) if key else 0 for key in (table.sections, table.chosen_key)
        )
        seed = " ".join(str(run.values[key]) for key in table.seed_keys)
        planned[section, table.rows.index(run.row), choice][seed].append(run.key)
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


def superfluous_runs(table: TableDefinition, records: Sequence[Record]) -> set[tuple]:
    """The `PlannedRun.key` of the runs that `choose_once` saves: those of values not chosen, where one is."""
    groups = find_groups(table, records)[0] if table.choose_once else []
    return {key for group in groups for cell in group.cells for key in cell.keys if cell not in group.needed}
