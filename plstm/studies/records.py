"""Records of finished runs, the only source of tables and figures: `results/runs/<experiment>.jsonl`, a run a line.

A line is {"record": {...}, "curve": {"step": [...], "val.accuracy": [...], ...}}, with null where a curve has no value.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from typing_extensions import TypedDict

from plstm.errors import UserError, first_problem
from plstm.files import locked, write_file
from plstm.tasks import TASKS
from plstm.training.environment import Environment, Hardware
from plstm.training.state import Time

CURVE_DIGITS = 6  # significant ones
PRIMARY_METRIC = "accuracy"  # of tables and figures that name no metric


Metrics = dict[str, int | float | None]  # None: not finite
RunId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{12}$")]


class Strict(BaseModel, extra="forbid", strict=True, frozen=True, allow_inf_nan=False):
    """Refuses unknown fields, other types, and numbers that are not finite."""


class EnvironmentUntil(Environment):
    """What the steps of a run up to `until` were made with."""

    until: int


class BestMetrics(TypedDict, extra_items=Metrics):
    """The best step, and beside it the metrics of each split there."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)
    step: int


class FinalMetrics(TypedDict):
    """Of the last step's weights, by split, and of the best step's."""

    last: dict[str, Metrics]
    best: BestMetrics | None


class CurvePoint(NamedTuple):
    step: int
    epoch: float  # passes over the training examples
    split: str
    metric: str
    value: float


class Record(Strict):
    """A finished run; the fields from `commit` to `jax_settings` are those of its last session."""

    format: Literal[3] = 3
    id: RunId  # of `config`; see `plstm.runs.identity`
    name: str
    experiment: str
    variant: str | None = None
    task: str
    seed: int
    command: str
    overrides: list[str]
    config: dict[str, Any]  # resolved
    commit: str | None  # None where git did not know
    dirty: bool | None
    versions: dict[str, str | None]
    hardware: Hardware
    xla_flags: str | None = None
    jax_settings: dict[str, Any] = {}  # those that change numbers, where they are not JAX's defaults
    earlier: list[EnvironmentUntil] = []
    started: Time
    finished: Time
    wall_seconds: float  # of all sessions
    steps: int
    epochs: float
    unit: str  # plural of an example, such as images
    examples_per_second: float
    parameters: int
    flops_per_example: float | None  # of one forward pass
    metrics: FinalMetrics
    converted: str | None = None  # how a script converted the record from another format

    def metric(self, split: str, metric: str = PRIMARY_METRIC, at: str = "last") -> float | None:
        """A metric at the last or the best step; None if it is unknown or was not finite."""
        return (self.metrics[at] or {}).get(split, {}).get(metric)


class _Line(Strict):
    record: Record
    curve: dict[str, list[float | None]]


def value_at(config: Any, key: str) -> Any:
    """The value at a dotted key such as `optim.peak_lr`, None where there is none."""
    for part in key.split("."):
        if not isinstance(config, dict) or part not in config:
            return None
        config = config[part]
    return config


def commits_of(records: Sequence[Record], digits: int = 7) -> list[str]:
    """The commits of all sessions of the runs, in order, each with a star where the code may differ from it."""
    sessions = [(record.commit, record.dirty) for record in records]
    sessions += [(session["commit"], session["dirty"]) for record in records for session in record.earlier]
    return sorted({(commit or "unknown")[:digits] + ("" if dirty is False else "*") for commit, dirty in sessions})


def record_path(experiment: str, results_dir: str | Path) -> Path:
    return Path(results_dir, "runs", f"{experiment.replace('/', '-')}.jsonl")


def write_record(record: Record, points: Iterable[CurvePoint], results_dir: str | Path) -> Path:
    """Add a run with its curve to its experiment's file, in place of one with the same id, and return the path."""
    path = record_path(record.experiment, results_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    points = list(points)
    steps = sorted({step for step, *_ in points})
    curve: dict[str, list[float | None]] = {"step": [*steps]}  # epochs follow from the steps
    for step, _, split, metric, value in points:
        column = curve.setdefault(f"{split}.{metric}", [None] * len(steps))
        column[bisect_left(steps, step)] = float(f"{value:.{CURVE_DIGITS}g}")
    line = {"record": dict(record), "curve": curve}
    new = json.dumps(line, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    with locked(path.parent / ".lock"):  # processes that write at the same time take turns
        for left in path.parent.glob(f".{path.name}.*.tmp"):  # by a process that was killed while it wrote
            left.unlink()
        lines = path.read_bytes().splitlines() if path.exists() else []
        lines = [text for text, line in zip(lines, _read_lines(path), strict=True) if line.record.id != record.id]
        write_file(path, b"\n".join([*lines, new.encode(), b""]))
    return path


def curve_points(lines: Iterable[dict[str, Any]]) -> list[CurvePoint]:
    """The values of a metrics.jsonl as points, in its order."""
    return [
        CurvePoint(line["step"], line["epoch"], line["split"], metric, value)
        for line in lines
        for metric, value in line.items()
        if metric not in ("step", "epoch", "split", "count") and value is not None
    ]


def find_record(run_id: str, results_dir: str | Path) -> Record | None:
    """The record of a run, whatever its experiment, None where it has not finished. Errors: see `read_records`."""
    for path in sorted(Path(results_dir, "runs").glob("*.jsonl")):
        if run_id.encode() in path.read_bytes():
            for line in _read_lines(path):
                if line.record.id == run_id:
                    return line.record
    return None


def read_records(results_dir: str | Path) -> list[Record]:
    """All records under `runs/`, ordered by id; of two of a run, which two experiments may share, the one that finished
    first. Raises UserError naming file, line and field where a line is not one."""
    lines = (line for path in Path(results_dir, "runs").glob("*.jsonl") for line in _read_lines(path))
    latest_first = sorted((line.record for line in lines), key=lambda record: record.finished, reverse=True)
    records = {record.id: record for record in latest_first}
    return [records[run] for run in sorted(records)]


def read_curve(record: Record, results_dir: str | Path) -> list[CurvePoint]:
    """The curve of a record, step by step; UserError if the file does not have the run."""
    path = record_path(record.experiment, results_dir)
    curve = next((line.curve for line in _read_lines(path) if line.record.id == record.id), None)
    if curve is None:
        raise UserError(f"{path}: has no run {record.id}; restore it")
    return [
        CurvePoint(int(step), step * record.epochs / record.steps, *name.split(".", 1), values[n])
        for n, step in enumerate(curve["step"])
        for name, values in curve.items()
        if name != "step" and values[n] is not None
    ]


def record_problems(record: Record, results_dir: str | Path) -> list[str]:
    """A line for each thing that does not follow from the run's curve: a metric at the last or best step, or which step
    is the best."""
    where = f"{record_path(record.experiment, results_dir)}, run {record.id}"
    if record.task not in TASKS:
        return [f"{where}: there is no task {record.task!r}"]
    curve = {(p.step, p.split, p.metric): p.value for p in read_curve(record, results_dir)}
    primary = TASKS[record.task].primary_metric
    best = record.metrics["best"] or {"step": None}
    found = []
    for at, step, splits in (("last", record.steps, record.metrics["last"]), ("best", best["step"], best)):
        for name, metrics in splits.items():
            for metric, value in metrics.items() if name != "step" else ():
                kept = curve.get((step, name, metric), None if metric == primary else value)
                # A curve keeps values as they are, to six significant digits, or formerly to four decimals.
                written = () if value is None else (float(f"{value:.{CURVE_DIGITS}g}"), round(value, 4))
                if kept not in (value, *written):
                    found.append((f"metrics.{at}.{name}.{metric}", value, kept))
        for (_, name, metric), kept in (point for point in curve.items() if point[0][0] == step):
            if name in splits and metric not in splits[name]:
                found.append((f"metrics.{at}.{name}.{metric}", None, kept))
    split, later = value_at(record.config, "loop.best_split"), value_at(record.config, "loop.best_tie") == "latest"
    scores = [(score, step) for (step, *key), score in curve.items() if key == [split, primary]]
    wanted = max(scores, key=lambda pair: (pair[0], pair[1] if later else -pair[1]), default=(0, best["step"]))[1]
    if best["step"] != wanted:
        found.append(("metrics.best.step", best["step"], wanted))
    return [f"{where}: {field} is {value!r}, but {other!r} follows from its curve" for field, value, other in found]


_read: dict[Path, tuple[tuple[int, int], list[_Line]]] = {}  # when a file was changed and how large it was, its lines


def _read_lines(path: Path) -> list[_Line]:
    """The runs of a file, read once though asked for by many runs; none where there is no file."""
    if not path.is_file():
        return []
    status = path.stat()
    stamp = status.st_mtime_ns, status.st_size
    if path not in _read or _read[path][0] != stamp:
        _read[path] = stamp, _lines_of(path)
    return _read[path][1]


def _lines_of(path: Path) -> list[_Line]:
    found = []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"{path}, line {number}"
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            raise UserError(f"{where}: {first_problem(error)}; restore the line or remove it") from error
        if record_path(line.record.experiment, "").name != path.name:
            raise UserError(f"{where}: is a run of experiment {line.record.experiment}; move it to that one's file")
        found.append(line)
    return found
