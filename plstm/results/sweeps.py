"""The runs of a results table: which there are, in what order, which are finished, and what they should take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from plstm.errors import UserError
from plstm.results.definitions import FREE, Row, TableDefinition, is_part
from plstm.results.records import Hardware, RunRecord


@dataclass(frozen=True)
class PlannedRun:
    """One run of a table: a row's experiment with one value for every swept key."""

    row: Row
    values: dict[str, Any]

    @property
    def overrides(self) -> list[str]:
        """The arguments of `train.py`."""
        return [f"experiment={self.row.experiment}", *(f"{key}={value}" for key, value in self.values.items())]

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
    """Runs that one process trains: one, or the folds of a cross-validation."""

    runs: tuple[PlannedRun, ...]
    fold: str | None = None  # the swept key that tells them apart

    @property
    def overrides(self) -> list[str]:
        """The arguments of `train.py`."""
        numbers = ",".join(str(run.values[self.fold]) for run in self.runs) if self.fold else ""
        own = self.runs[0].overrides
        return [f"{self.fold}={numbers}" if self.fold and o.startswith(f"{self.fold}=") else o for o in own]


def planned_runs(table: TableDefinition) -> list[PlannedRun]:
    """Every row times every swept value, in the order to run them.

    First, seed by seed over all rows, with the value of `select.over` that the paper found best (the sweep's first
    where it gives none), then with the other values: a sweep cut short still fills every row. Cross-validations:
    column by column, seed by seed, row by row, each with all values and folds, and rows without published figures last.
    """
    if table.folds:
        return _planned_folds(table)

    def late(run: PlannedRun) -> bool:
        if table.select is None:
            return False
        preferred = (run.row.paper or {}).get(table.swept_name, table.sweep[table.select.over][0])
        return run.values[table.select.over] != preferred

    grid = itertools.product(*table.sweep.values())
    runs = [PlannedRun(row, dict(zip(table.sweep, values, strict=True))) for values in grid for row in table.rows]
    return sorted(runs, key=late)


def _planned_folds(table: TableDefinition) -> list[PlannedRun]:
    def place(run: PlannedRun) -> tuple:
        column = table.sweep[table.folds.over].index(run.values[table.folds.over])
        return run.row.paper is None, column, run.values["seed"], table.rows.index(run.row)

    runs = []
    for row in table.rows:
        sweep = table.sweep | row.sweep
        grid = itertools.product(*sweep.values())
        runs += [PlannedRun(row, dict(zip(sweep, values, strict=True))) for values in grid]
    return sorted(runs, key=place)


def jobs(table: TableDefinition, runs: Sequence[PlannedRun]) -> list[Job]:
    """What to start for these runs, in their order; neighbouring folds of one cross-validation share a job."""
    if table.folds is None:
        return [Job((run,)) for run in runs]
    fold = table.folds.fold

    def cell(run: PlannedRun) -> tuple:
        return run.row.experiment, *(value for key, value in run.values.items() if key != fold)

    return [Job(tuple(group), fold) for _, group in itertools.groupby(runs, cell)]


def match_records(
    table: TableDefinition, records: Sequence[RunRecord]
) -> tuple[list[tuple[PlannedRun, RunRecord | None]], list[RunRecord]]:
    """Find the finished ones among a table's runs.

    Returns:
        (run, its record or None) in the order to run them, and the table's records whose values the sweep does not
        list.

    Raises UserError for a record of this table that must not stand in it: another size than `require` asks for, an
    experiment or row name that the table lacks, or a second record for the same run.
    """
    found: dict[tuple, RunRecord] = {}
    for record in records:
        if record.table == table.name:
            _refuse_misplaced(table, record)
            key = (record.experiment, *(record.config_value(key) for key in table.sweep))
            if key in found:
                differences = ", ".join(_differences(record.config, found[key].config))
                raise UserError(
                    f"runs/{record.id}.json and runs/{found[key].id}.json are the same run of table {table.name} with "
                    f"different {differences or 'ids'}; keep one of them"
                )
            found[key] = record
    runs = planned_runs(table)
    for run in runs:
        if run.initial_key and run.key in found:
            _refuse_other_start(found[run.key], found.get(run.initial_key))
    matched = [(run, found.pop(run.key, None)) for run in runs]
    return matched, list(found.values())


def _refuse_other_start(record: RunRecord, initial: RunRecord | None) -> None:
    if initial is None or record.config_value("init_from") != initial.id:
        known = f"is runs/{initial.id}.json" if initial else "has no record"
        start = record.config_value("init_from")
        raise UserError(f"runs/{record.id}.json: fine-tunes {start}, but the table's run of that row {known}")


def _refuse_misplaced(table: TableDefinition, record: RunRecord) -> None:
    where = f"runs/{record.id}.json"
    rows = {row.experiment: row.name for row in table.rows}
    if rows.get(record.experiment) != record.row:
        raise UserError(f"{where}: table {table.name} has no row {record.row!r} with experiment {record.experiment!r}")
    own = next(row for row in table.rows if row.experiment == record.experiment)
    required = {**table.require, **own.require}
    for key, value in required.items():
        if record.config_value(key) != value:
            raise UserError(
                f"{where}: {key} is {record.config_value(key)!r}, but table {table.name} is for {value!r}; remove the "
                "record, or set its table and row to null"
            )
    allowed = (*FREE, "experiment", "init_from", *table.sweep, *own.sweep, *required)
    for override in record.overrides:
        if not is_part(override.partition("=")[0].lstrip("+"), allowed):
            raise UserError(
                f"{where}: was run with {override}, but table {table.name} is for its experiments as they are; remove "
                "the record, or set its table and row to null"
            )


def _differences(a: dict, b: dict, prefix: str = "") -> list[str]:
    keys = []
    for key in sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key)):
        both = isinstance(a.get(key), dict) and isinstance(b.get(key), dict)
        keys += _differences(a[key], b[key], f"{prefix}{key}.") if both else [f"{prefix}{key}"]
    return keys


def initial_override(table: TableDefinition, run: PlannedRun, records: Sequence[RunRecord]) -> list[str]:
    """The override that names the run to fine-tune, none for a run that starts anew; UserError where it is missing."""
    if not run.initial_key:
        return []
    for other, record in match_records(table, records)[0]:
        if record and other.key == run.initial_key:
            return [f'init_from="{record.id}"']  # quoted, for Hydra would take some ids for numbers
    raise UserError(f"fine-tunes {run.row.init_from}, which has not finished")


def expected_seconds(
    run: PlannedRun, records: Sequence[RunRecord], table: TableDefinition, hardware: Hardware
) -> float | None:
    """Wall seconds that a run should take, compilation and evaluation included.

    The mean over the table's finished runs of the same experiment on the same hardware, in a table of
    cross-validations also of the same values but for fold and seed; None where there are none.
    """
    keys = [key for key in run.values if table.folds and key not in (table.folds.fold, "seed")]
    wanted = (table.name, run.row.experiment, hardware)
    same = [r for r in records if (r.table, r.experiment, r.hardware) == wanted]
    same = [r for r in same if all(r.config_value(key) == run.values[key] for key in keys)]
    return sum(r.wall_seconds for r in same) / len(same) if same else None


def started_runs(table: TableDefinition, runs_dir: Path) -> set[tuple]:
    """The `PlannedRun.key` of every run of the table with a checkpoint in its folder `runs_dir`/<id>."""
    keys = set()
    for path in runs_dir.glob("*/.hydra/config.yaml"):
        config = OmegaConf.to_container(OmegaConf.load(path))  # as written: nothing is filled in
        if any((path.parents[1] / "checkpoints").glob("*")) and _written(config, "report.table") == table.name:
            keys.add(tuple(_written(config, key) for key in ("experiment", *table.sweep)))
    return keys


def _written(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config
