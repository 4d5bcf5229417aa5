"""What a results table is made of: its definition, its runs, which of them are finished, and running the rest."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from plstm.errors import UserError
from plstm.experiments.records import Hardware, RunRecord

ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1", "OMP_NUM_THREADS": "1"}


@dataclass
class Row:
    """A model of the table and the experiment that trains it.

    `paper` is None where nothing is published, else {last part of `select.over`: the paper's best value, split:
    [mean, +-]}; in a table of percentages {"parameters", "flops": the paper's words, split: the percentage}.
    `init_from` is the experiment of an earlier row, whose run of the same swept values this row fine-tunes. `require`
    adds to the table's; `sweep` takes the place of the table's for the keys that it names.
    """

    name: str = MISSING
    experiment: str = MISSING
    paper: dict[str, Any] | None = None
    init_from: str | None = None
    require: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class Folds:
    """What makes a table one of cross-validations, `plstm.experiments.fold_tables`: two of its swept keys.

    `fold` tells the runs of a cross-validation apart; `over` has the values that are the table's columns.
    """

    fold: str = MISSING
    over: str = MISSING


@dataclass
class Reference:
    """Another model's published figures, as the paper prints them; `accuracy` maps splits to percentages."""

    name: str = MISSING
    epochs: str = MISSING
    parameters: str = MISSING
    flops: str = MISSING
    accuracy: dict[str, float] = MISSING


@dataclass
class Select:
    """Choose one value of the swept key `over` of a model: highest mean over seeds of a last-step metric of a split."""

    split: str = MISSING
    metric: str = MISSING
    over: str = MISSING


@dataclass
class Figure:
    """The training-curve figure: `panels` maps splits to titles, `baseline` names one entry of the baseline file.

    `paper_curves` is a CSV of the paper's mean curves with the columns row, split, epoch, accuracy.
    """

    panels: dict[str, str] = MISSING
    baseline: str | None = None
    paper_curves: str | None = None


@dataclass
class TableDefinition:
    """A file of `configs/tables`.

    `columns` maps splits to headers; `sweep` maps config keys to the values run for every row; `require` maps config
    keys to the value that every record of the table must have; `baselines` and `figure.paper_curves` are paths below
    the results folder. `digits` are those after the point, of percentages where `percent`. `costs` adds what a row's
    experiment says of itself: pixels, epochs, parameters and multiply-adds.
    """

    name: str = MISSING
    title: str = MISSING
    caption: str = MISSING
    columns: dict[str, str] = MISSING
    rows: list[Row] = MISSING
    sweep: dict[str, list[Any]] = MISSING
    select: Select | None = None
    require: dict[str, Any] = field(default_factory=dict)
    baselines: str | None = None
    chance: float | None = None
    notes: list[str] = field(default_factory=list)
    figure: Figure | None = None
    percent: bool = False
    digits: int = 3
    costs: bool = False
    folds: Folds | None = None
    references: list[Reference] = field(default_factory=list)

    @property
    def swept_name(self) -> str | None:
        """The short name of the chosen hyperparameter, such as `peak_lr`, or None where nothing is chosen."""
        return self.select.over.rpartition(".")[2] if self.select else None


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


def load_table(path: Path) -> TableDefinition:
    """Read a table definition; UserError naming the file and a key that is unknown, missing, ill-typed or wrong."""
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml")))
        raise UserError(f"{path}: no such table; there are: {known}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(TableDefinition), OmegaConf.load(path))
        table = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: key {error.full_key or error.key}: {error.msg.splitlines()[0]}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    _check_table(table, path)
    return table


def _check_table(table: TableDefinition, path: Path) -> None:
    if table.name != path.stem:
        raise UserError(f"{path}: key name is {table.name!r}; it must be the file's name")
    if table.select and table.select.over not in table.sweep:
        raise UserError(f"{path}: key select.over is {table.select.over!r}, which sweep does not list")
    for key in ("name", "experiment"):
        values = [getattr(row, key) for row in table.rows]
        if len(set(values)) < len(values):
            raise UserError(f"{path}: key rows: two rows have the same {key}")
    _check_sweeps(table, path)
    known: set[str] = set()
    for index, row in enumerate(table.rows):
        _check_paper(table, row, f"{path}: key rows[{index}].paper")
        if row.init_from not in {None, *known}:
            raise UserError(f"{path}: key rows[{index}].init_from: no earlier row has experiment {row.init_from!r}")
        known.add(row.experiment)
    for index, model in enumerate(table.references):
        if not (table.percent and table.costs) or set(model.accuracy) != set(table.columns):
            raise UserError(
                f"{path}: key references[{index}] needs the table's percent and costs, and the accuracy of every column"
            )


def _check_sweeps(table: TableDefinition, path: Path) -> None:
    for index, row in enumerate(table.rows):
        if unknown := row.sweep.keys() - table.sweep.keys():
            raise UserError(f"{path}: key rows[{index}].sweep: the table does not sweep {min(unknown)}")
    for key in ("fold", "over") if table.folds else ():
        if (value := getattr(table.folds, key)) not in table.sweep:
            raise UserError(f"{path}: key folds.{key} is {value!r}, which sweep does not list")
    if table.folds and list(table.columns) != table.sweep[table.folds.over]:
        raise UserError(f"{path}: key columns must have the values of sweep.{table.folds.over}, in their order")


def _check_paper(table: TableDefinition, row: Row, where: str) -> None:
    for key, value in (row.paper or {}).items():
        numbers = [type(number) for number in value] if isinstance(value, list) else type(value)
        if key == table.swept_name or (table.costs and key in ("parameters", "flops") and numbers is str):
            continue
        wanted, words = (float, "a percentage") if table.percent else ([float, float], "[mean, +-]")
        if key not in table.columns or numbers != wanted:
            raise UserError(f"{where}.{key} must be {words} for a split of columns")


def load_tables(folder: Path, names: Sequence[str] = ()) -> list[TableDefinition]:
    """The tables of a folder by name, all of them where no name is given, in alphabetical order."""
    paths = [folder / f"{name}.yaml" for name in names] or sorted(folder.glob("*.yaml"))
    return [load_table(path) for path in paths]


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
    own = next(row.require for row in table.rows if row.experiment == record.experiment)
    for key, value in {**table.require, **own}.items():
        if record.config_value(key) != value:
            raise UserError(
                f"{where}: {key} is {record.config_value(key)!r}, but table {table.name} is for {value!r}; remove the "
                "record, or set its table and row to null"
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


def query_hardware(root: Path) -> Hardware:
    """The hardware that a run started now would record; asked in another process, for JAX would hold on to a GPU."""
    code = """if True:
        import json
        from plstm.training.environment import describe_environment
        print(json.dumps(describe_environment(".")["hardware"]))
    """
    answer = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    if answer.returncode:
        raise UserError(f"JAX does not start on this machine: {answer.stderr.strip().splitlines()[-1]}")
    return json.loads(answer.stdout.splitlines()[-1])


def check_overrides(table: TableDefinition, overrides: Sequence[str]) -> None:
    """Raise UserError for an override that is not key=value, or whose key the table itself sets."""
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise UserError(f"override {override!r} must be key=value")
        own = {key for row in table.rows for key in row.require}
        if key in {"experiment", "init_from", "report.table", "report.row", *table.sweep, *table.require, *own}:
            raise UserError(f"override {override!r}: table {table.name} sets {key} itself; leave it out")


def execute(
    work: Sequence[Job],
    overrides: Callable[[Job], list[str]],
    root: Path,
    after_job: Callable[[Job], None],
    processes: int = 1,
) -> list[str]:
    """Start jobs in order, each a process in `root` with its output on ours, so many at a time.

    Args:
        work: what to run, in order.
        overrides: key=value to add to a job's command; its UserError counts as that job's failure.
        root: the folder of `train.py`.
        after_job: called after every job that exits with status 0; its UserError counts as that job's failure.
        processes: how many jobs run side by side; more than one compute with one thread each.

    Returns:
        One line a failed job; a failure does not stop the others. KeyboardInterrupt is handed to the running processes
        as SIGINT, which are waited for, and then raised again.
    """
    failures: list[str] = []
    waiting, running = list(enumerate(work, 1)), {}
    environment = os.environ | (ONE_THREAD if processes > 1 else {})
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                number, job = waiting.pop(0)
                with _noting(failures, job):
                    command = [sys.executable, "train.py", *job.overrides, *overrides(job)]
                    print(f"run {number}/{len(work)}: {shlex.join(['python', *command[1:]])}", flush=True)
                    # A process group of its own: the terminal's Ctrl-C reaches only this process, which hands it on.
                    child = subprocess.Popen(
                        command, cwd=root, stdin=subprocess.DEVNULL, process_group=0, env=environment
                    )
                    running[child] = job
            for child in [child for child in running if _has_ended(child, len(running))]:
                job = running.pop(child)
                with _noting(failures, job):
                    if child.returncode:
                        raise UserError(f"exit status {child.returncode}")
                    after_job(job)
    except KeyboardInterrupt:
        _interrupt(list(running))
        raise
    return failures


def _interrupt(children: list[subprocess.Popen]) -> None:
    """Sends SIGINT, and again where the user does, until all have ended."""
    while children:
        for child in children:
            child.send_signal(signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt):
            while children:
                children[0].wait()
                children.pop(0)


def _has_ended(child: subprocess.Popen, running: int) -> bool:
    """Waits a moment where there are others, else for its end."""
    try:
        child.wait(None if running == 1 else 0.2)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextlib.contextmanager
def _noting(failures: list[str], job: Job) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        failures.append(f"{' '.join(job.overrides)}: {error}")
        print(f"failed: {failures[-1]}", flush=True)
