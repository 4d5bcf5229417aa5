"""Run records: one JSON file and one curve a finished run, the only source of tables and figures.

`results/runs/<id>.json` holds what was run, on what, for how long and with what result; `results/curves/<id>.csv` holds
its learning curves. Of cross-validations, whose runs are many and small, `results/folds/<experiment>-<set>.jsonl` holds
both, one run a line: {"record": ..., "curve": {"step": [...], "val.accuracy": [...], ...}}. Reading is strict: a record
that does not follow the schema stops the reader, which names the file and the field.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import functools
import io
import json
import math
import os
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from data.files import write_file
from plstm.errors import UserError

FOLD_DIGITS = 4  # after the point, in the curves of cross-validations


class Hardware(TypedDict):
    """What a run used: the accelerator as JAX names it, and the processor beside it."""

    platform: str
    device_kind: str
    device_count: int
    cpu_model: str
    cpu_cores: int


class Session(TypedDict):
    """What the steps of a run up to `until` were made with."""

    until: int
    commit: str | None
    dirty: bool | None
    versions: dict[str, str | None]
    hardware: Hardware
    xla_flags: NotRequired[str | None]  # not in records of older versions


class SplitMetrics(TypedDict):
    """Mean loss (nats) and accuracy (0 to 1) over the `count` examples of one split."""

    loss: float
    accuracy: float
    count: int


class Metrics(TypedDict):
    """`last`: split -> metrics of the last step's weights; `best`: step and metrics of the best checkpoint, or None."""

    last: dict[str, SplitMetrics]
    best: dict[str, Any] | None


class FoldLine(TypedDict):
    """A line of a cross-validation's file; a curve's columns are as long as its column `step`."""

    record: dict[str, Any]
    curve: dict[str, list[float | None]]


class CurvePoint(NamedTuple):
    """One row of a curve file; `epoch` counts passes over the training images."""

    step: int
    epoch: float
    split: str
    metric: str
    value: float


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A finished run.

    `id` is 12 hexadecimal digits, a hash of the resolved `config`. `table` and `row` name the place the run was made
    for, None for a run outside every table. `commit` and `dirty` are None where git did not know them. `wall_seconds`
    adds up all sessions of the run; `flops_per_image` counts one forward pass. `commit`, `dirty`, `versions`,
    `hardware` and `xla_flags` are those of the last session; where a resumed run had others before, they are in
    `earlier`. The last two fields are younger than some records, which read as if they had the defaults.
    """

    id: str
    name: str
    experiment: str
    command: str
    overrides: list[str]
    config: dict[str, Any]
    table: str | None
    row: str | None
    seed: int
    commit: str | None
    dirty: bool | None
    versions: dict[str, str | None]
    hardware: Hardware
    started: str
    finished: str
    wall_seconds: float
    steps: int
    epochs: float
    images_per_second: float
    parameters: int
    flops_per_image: float | None
    metrics: Metrics
    xla_flags: str | None = None
    earlier: list[Session] = dataclasses.field(default_factory=list)

    def config_value(self, key: str) -> Any:
        """The resolved config's value at a dotted key such as `optim.peak_lr`; UserError if there is no such key."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                raise UserError(f"runs/{self.id}.json: field config has no key {key!r}; run it again with this version")
            value = value[part]
        return value

    def metric(self, split: str, metric: str = "accuracy") -> float:
        """A metric of the last step's weights on one split; UserError if the run was not evaluated on it."""
        if split not in self.metrics["last"]:
            raise UserError(f"runs/{self.id}.json: field metrics.last has no split {split!r}; evaluate the run on it")
        return self.metrics["last"][split][metric]


def commits_of(runs: Sequence[RunRecord], digits: int = 7) -> list[str]:
    """The commits of all sessions of the runs, in order, each with a star where the code may differ from it."""
    sessions = [(run.commit, run.dirty) for run in runs]
    sessions += [(session["commit"], session["dirty"]) for run in runs for session in run.earlier]
    return sorted({(commit or "unknown")[:digits] + ("" if dirty is False else "*") for commit, dirty in sessions})


def mark(run: RunRecord) -> str:
    """A star where the code of a session may differ from its commit."""
    return "*" if any(commit.endswith("*") for commit in commits_of([run])) else ""


def write_record(
    record: RunRecord, curve_rows: Iterable[tuple[int, float, str, str, float]], results_dir: str | Path
) -> Path:
    """Write `runs/<id>.json` and `curves/<id>.csv`, the curve first: a record that exists has its curve.

    The run of a fold is added to the file of its cross-validation instead; its curve's values are rounded to 4 digits.

    Args:
        record: the finished run.
        curve_rows: (step, epoch, split, metric, value) in any order, written in the order given.
        results_dir: the folder that holds `runs/`, `curves/` and `folds/`, each made where missing.

    Returns:
        The record's path. Raises UserError, before anything is written, if a field of the record breaks the schema.
    """
    path = record_path(record.id, record.config, results_dir)
    fields = dataclasses.asdict(record)
    _check_record(fields, str(path))
    if path.suffix == ".jsonl":
        _add_line(path, {"record": fields, "curve": _columns(curve_rows)})
        return path
    for target in (path, curve_path(record, results_dir)):
        for left in target.parent.glob(f".{target.name}.*.tmp"):  # by an earlier start that was killed in write_file
            left.unlink(missing_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CurvePoint._fields)
    writer.writerows(curve_rows)
    write_file(curve_path(record, results_dir), text.getvalue().encode())
    write_file(path, (json.dumps(fields, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())
    return path


def read_records(results_dir: str | Path) -> list[RunRecord]:
    """All records under `runs/` and `folds/`, ordered by id; an empty list without these folders.

    Raises UserError naming file and field at a record that breaks the schema or whose id is not its file's name.
    """
    records = []
    for path in sorted((Path(results_dir) / "runs").glob("*.json")):
        fields = _parse(path.read_bytes(), str(path))
        _check_record(fields, str(path))
        if fields["id"] != path.stem:
            raise UserError(f"{path}: field id is {fields['id']!r}; it must be the file's name")
        records.append(RunRecord(**fields))
    for path in sorted((Path(results_dir) / "folds").glob("*.jsonl")):
        records += [record for record, _ in _read_lines(path)]
    return sorted(records, key=lambda record: record.id)


def record_path(run: str, config: dict[str, Any], results_dir: str | Path) -> Path:
    """Where the record of a run with this id and config is, or will be."""
    name = f"runs/{run}.json"
    if "fold" in config.get("data", {}):
        name = f"folds/{config['experiment'].replace('/', '-')}-{config['data']['name']}.jsonl"
    return Path(results_dir) / name


def is_fold(record: RunRecord) -> bool:
    """Whether this is one run of a cross-validation."""
    return record_path(record.id, record.config, "").suffix == ".jsonl"


def has_record(run: str, config: dict[str, Any], results_dir: str | Path) -> bool:
    """Whether a run with this id and config has finished. Errors: see `read_records`."""
    path = record_path(run, config, results_dir)
    if path.suffix == ".json" or not path.exists():
        return path.exists()
    return any(record.id == run for record, _ in _read_lines(path))


def read_collection(path: Path) -> list[RunRecord]:
    """The records of a cross-validation's file. Errors: see `read_records`."""
    return [record for record, _ in _read_lines(path)]


Line = tuple[RunRecord, dict[str, list[float | None]]]


def _read_lines(path: Path) -> list[Line]:
    """The records of a cross-validation with their curves."""
    status = path.stat()
    return _lines_of(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=128)
def _lines_of(path: Path, *_changes: int) -> list[Line]:
    """As `_read_lines`; read once, though asked for each of the file's runs."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"{path}, line {number}"
        fields = _parse(line, where)
        check_type(fields, FoldLine, where)
        _check_record(fields["record"], where)
        record = RunRecord(**fields["record"])
        if record_path(record.id, record.config, path.parents[1]) != path:
            raise UserError(f"{where}: a run of another experiment or data set than the file's name says")
        found.append((record, fields["curve"]))
    return found


def _add_line(path: Path, fields: dict[str, Any]) -> None:
    """Adds a run to its file, in place of one with the same id; processes that write at the same time take turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        lines = [line for line in lines if _parse(line, str(path))["record"]["id"] != fields["record"]["id"]]
        lines.append(json.dumps(fields, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
        write_file(path, ("\n".join(lines) + "\n").encode())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _columns(rows: Iterable[tuple[int, float, str, str, float]]) -> dict[str, list[float | None]]:
    """A curve by columns, None where a column has no value at a step; epochs follow from the steps."""
    rows = list(rows)
    steps = sorted({row[0] for row in rows})
    columns: dict[str, list[float | None]] = {"step": list(steps)}
    place = {step: n for n, step in enumerate(steps)}
    for step, _, split, metric, value in rows:
        columns.setdefault(f"{split}.{metric}", [None] * len(steps))[place[step]] = round(value, FOLD_DIGITS)
    return columns


def _parse(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not a JSON file ({error}); restore it or remove it") from error


def curve_path(record: RunRecord, results_dir: str | Path) -> Path:
    """Where the curve of a record lies."""
    path = record_path(record.id, record.config, results_dir)
    return path if path.suffix == ".jsonl" else Path(results_dir) / "curves" / f"{record.id}.csv"


def read_curve(record: RunRecord, results_dir: str | Path) -> list[CurvePoint]:
    """The curve of a record, in file order; UserError if the file is missing or a row is not `CurvePoint`'s columns."""
    path = curve_path(record, results_dir)
    if path.suffix == ".jsonl":
        return _fold_curve(record, path)
    if not path.is_file():
        raise UserError(f"{path}: this curve is missing; restore it or remove runs/{record.id}.json")
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        if next(rows, None) != list(CurvePoint._fields):
            raise UserError(f"{path}: the first line must be {','.join(CurvePoint._fields)}")
        try:
            return [CurvePoint(int(s), float(e), split, metric, float(v)) for s, e, split, metric, v in rows]
        except ValueError as error:
            raise UserError(f"{path}, line {rows.line_num}: {error}") from error


def _fold_curve(record: RunRecord, path: Path) -> list[CurvePoint]:
    found = [curve for other, curve in _read_lines(path) if other.id == record.id] if path.is_file() else []
    if not found:
        raise UserError(f"{path}: has no run {record.id}; restore it")
    (curve,) = found
    points = []
    for n, step in enumerate(curve["step"]):
        for name, values in curve.items():
            if name != "step" and values[n] is not None:
                points.append(CurvePoint(step, step * record.epochs / record.steps, *name.split("."), values[n]))
    return points


def check_type(value: Any, kind: Any, where: str) -> None:
    """Raise UserError, naming the place, unless a value read from JSON has a type.

    Args:
        value: what was read.
        kind: str, bool, int, float (an integer will do, a non-finite number will not), Any, one of these or None,
            list[...], dict[str, ...], a TypedDict or a dataclass; in the last two a key may be missing where it is
            NotRequired or has a default, and none may be unknown.
        where: the file and the dotted field, for the message.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is not None:
            check_type(value, next(arg for arg in args if arg is not types.NoneType), where)
    elif is_typeddict(kind) or dataclasses.is_dataclass(kind):
        _check_keys(value, kind, where)
    elif origin in (dict, list):
        if not isinstance(value, origin):
            raise UserError(f"{where} must be a {origin.__name__}, not {value!r}")
        for key, item in value.items() if origin is dict else enumerate(value):
            check_type(item, args[-1], _join(where, key))
    elif kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{where} must be a finite number, not {value!r}")
    elif kind is not Any and type(value) is not kind:
        raise UserError(f"{where} must be of type {kind.__name__}, not {value!r}")


def _check_keys(value: Any, kind: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be an object, not {value!r}")
    hints = get_type_hints(kind)
    for problem, keys in (("unknown", value.keys() - hints.keys()), ("missing", _required(kind) - value.keys())):
        if keys:
            raise UserError(f"{_join(where, min(keys))} is {problem}")
    for key, item in value.items():
        check_type(item, hints[key], _join(where, key))


def _required(kind: Any) -> set[str]:
    if is_typeddict(kind):  # whose __required_keys__ does not see NotRequired in annotations that are strings
        hints = get_type_hints(kind, include_extras=True)
        return {key for key, hint in hints.items() if get_origin(hint) is not NotRequired}
    none = dataclasses.MISSING
    return {field.name for field in dataclasses.fields(kind) if field.default is none and field.default_factory is none}


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if ": field " in where else f"{where}: field {key}"


def _check_record(fields: Any, path: str) -> None:
    """Types by the schema, then what types cannot say."""
    check_type(fields, RunRecord, path)
    if not re.fullmatch(r"[0-9a-f]{12}", fields["id"]):
        raise UserError(f"{path}: field id is {fields['id']!r}; it must be 12 hexadecimal digits and the file's name")
    for key in ("started", "finished"):
        try:
            datetime.fromisoformat(fields[key])
        except ValueError as error:
            raise UserError(f"{path}: field {key} is {fields[key]!r}, not an ISO date and time") from error
    for split, metrics in fields["metrics"]["last"].items():
        if not 0 <= metrics["accuracy"] <= 1:
            raise UserError(f"{path}: field metrics.last.{split}.accuracy is {metrics['accuracy']}, outside 0 to 1")
    if (best := fields["metrics"]["best"]) is not None:
        where = f"{path}: field metrics.best"
        check_type(best.get("step"), int, f"{where}.step")
        for split, metrics in best.items():
            if split != "step":
                check_type(metrics, dict[str, float], f"{where}.{split}")
