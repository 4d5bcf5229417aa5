"""Where a run's numbers go: always to `metrics.jsonl` in its folder, and to Weights & Biases beside it."""

from __future__ import annotations

import contextlib
import json
import math
import netrc
import os
import queue
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from data.files import write_file
from plstm.errors import UserError, first_line

MODES = ("auto", "online", "offline", "disabled")
INIT_TIMEOUT_SECONDS = 30
FINISH_TIMEOUT_SECONDS = 60
MOST_WAITING = 10_000  # calls that wait for a slow client, at most


@dataclass
class LoggerConfig:
    """Weights & Biases."""

    mode: str = "auto"  # or "online", "offline", "disabled"; auto: online when logged in, else offline
    project: str = "plstm"  # the project that the run is logged to
    entity: str | None = None  # the user or team that owns the project; none: the default of the login


class MetricsWriter:
    """Appends a run's values to `metrics.jsonl`, one JSON object per line:

    {"step": 100, "epoch": 0.26, "split": "train", "loss": 0.61, "accuracy": 0.66}

    Values that are not finite are written as null. A writer that is not `enabled` writes nothing. Every method raises
    UserError if the file cannot be written.
    """

    def __init__(self, path: str | Path, enabled: bool = True):
        self.path, self._enabled = Path(path), enabled

    def write(self, step: int, epoch: float, split: str, values: Mapping[str, float]) -> dict:
        """Appends one line and returns it."""
        line = {"step": step, "epoch": epoch, "split": split}
        line |= {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        if self._enabled:
            with _disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return line

    def lines(self) -> list[dict]:
        """All lines so far."""
        return read_metrics(self.path) if self._enabled and self.path.exists() else []

    def truncate_after(self, step: int, evaluated: int) -> None:
        """Drops the lines of later steps, so that a run resumed at `step` writes them once.

        `evaluated`, at most `step`, is the last step whose evaluation the checkpoint knows; a later one is repeated.
        """
        if not self._enabled or not self.path.exists():
            return
        kept = []
        for line in self.lines():
            is_training = line["split"] == "train" and "count" not in line
            if line["step"] <= (step if is_training else evaluated):
                kept.append(json.dumps(line) + "\n")
        with _disk_errors(self.path):
            write_file(self.path, "".join(kept).encode())


def read_metrics(path: str | Path) -> list[dict]:
    """The lines of a `metrics.jsonl` in order, without a last line that a crash cut short.

    Raises UserError if there is no such file, or a line before the last is damaged.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read the metrics {path}: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise UserError(f"{path} line {number} is not JSON: repair or remove it") from error
    return records


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"cannot write {path}: {first_line(error)}"
        raise UserError(f"{why}; free space there or choose another run folder") from error


class Tracker:
    """One Weights & Biases run, or nothing at all: it never stops or holds up the training.

    A thread of its own talks to the client, which may be slow or not answer at all. The first failure prints one line
    and ends the tracking; `metrics.jsonl` has every number anyway. A resumed run logs again those lines of it that the
    client lacks, so that its history has each step once. Only what the methods get and the machine's load is uploaded:
    never environment variables, the command line, console output, code or git state.
    """

    def __init__(self, connect: Callable[[], Any] | None = None):
        """`connect` is called in the thread and returns the client's run, or None."""
        self._failed = threading.Event()
        self._waiting: queue.Queue = queue.Queue(MOST_WAITING)
        self._thread = None
        if connect:
            self._thread = threading.Thread(target=self._work, args=(connect,), name="tracker", daemon=True)
            self._thread.start()

    @classmethod
    def start(
        cls, run_id: str, directory: str | Path, mode: str = "auto", lines: Iterable[Mapping] = (), **described: Any
    ) -> Tracker:
        """Starts a run, or continues it if `run_id` exists. With several processes, all but one use mode "disabled".

        Args:
            directory: holds the client's files, under `wandb/`. Those of an offline run's earlier parts, which the new
                part replaces, move to `wandb/earlier/`.
            mode: "auto" is what WANDB_MODE says, else "online" if this user is logged in, else "offline". A run that
                cannot start online continues offline.
            lines: of `metrics.jsonl`, what was logged before.
            described: passed to `wandb.init`: name, group, job_type, tags, config, project, entity.

        Raises UserError for an unknown mode.
        """
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if _is_logged_in() else "offline")
        if mode not in MODES[1:]:
            raise UserError(f"logger.mode (or WANDB_MODE) is {mode!r}: choose one of {', '.join(MODES)}")
        if mode == "disabled":
            return cls()
        modes, lines = ("online", "offline") if mode == "online" else (mode,), list(lines)
        arguments = {"id": run_id, "resume": "allow", "dir": str(directory), **described}
        return cls(lambda: _connect(modes, lines, arguments))

    def log(self, line: Mapping) -> None:
        """Logs a line of `metrics.jsonl`; steps must not decrease, the client drops those that do."""
        row, step = row_of(line), line["step"]
        self._call("log", lambda run: run.log(row, step=step))

    def image(self, name: str, path: str | Path, step: int) -> None:
        """Logs a picture, a file."""
        self._call("log an image", lambda run: run.log({name: _client().Image(str(path))}, step=step))

    def summary(self, values: Mapping[str, object]) -> None:
        """Sets values of the run as a whole, such as its final metrics."""
        values = dict(values)
        self._call("write the summary", lambda run: run.summary.update(values))

    def finish(self, seconds: float = FINISH_TIMEOUT_SECONDS) -> None:
        """Closes the run; waits at most `seconds` for uploads, `wandb sync` does the rest."""
        self._call("finish", lambda run: run.finish())
        self._call("end", None)
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._give_up_waiting(f"in {seconds:g} seconds")
            self._thread.join(1)
        self._thread = None

    def _call(self, action: str, function: Callable | None) -> None:
        if self._thread is None or self._failed.is_set():
            return
        try:
            self._waiting.put_nowait((action, function))
        except queue.Full:
            self._give_up_waiting(f"while {MOST_WAITING:,} values were logged")

    def _give_up_waiting(self, when: str) -> None:
        if not self._failed.is_set():
            self._failed.set()
            _say(f"no answer {when}; training continues")
        _kill_client()

    def _work(self, connect: Callable[[], Any]) -> None:
        action = "start"
        try:
            run = connect()
            while run is not None and not self._failed.is_set():
                action, function = self._waiting.get()
                if function is None:
                    return
                function(run)
        except Exception as error:
            if not self._failed.is_set():
                self._failed.set()
                _give_up(f"could not {action}", error)
        self._failed.set()


def row_of(line: Mapping) -> dict[str, float]:
    """A line of `metrics.jsonl` as W&B gets it: {"train/loss": 0.61, ..., "epoch": 0.26}, without null values."""
    names = [name for name in line if name not in ("step", "epoch", "split", "count")]
    row = {f"{line['split']}/{name}": line[name] for name in names} | {"epoch": line["epoch"]}
    return {name: value for name, value in row.items() if value is not None}


def _is_logged_in() -> bool:
    """Whether W&B would find an API key without asking, in its environment variable or in netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _connect(modes: Iterable[str], lines: list[Mapping], arguments: dict):
    """The client's run in the first mode that starts, with the lines that it lacked; None if none starts."""
    for mode in modes:
        try:
            run = _start_client(mode=mode, **arguments)
        except Exception as error:
            _give_up(f"could not start {mode}", error)
            continue
        if mode == "offline":
            parts = Path(arguments["dir"]) / "wandb" / "offline-run-"
            _say(f"offline; upload with: wandb sync {shlex.quote(str(parts))}*-{arguments['id']}")
        for line in lines:
            if line["step"] >= run.step:  # the first step that a run continued online lacks
                run.log(row_of(line), step=line["step"])
        return run
    return None


def _client():
    """The module wandb, imported when it is needed."""
    # Read at the import: no crash reports, whose stack frames could carry secrets.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    return wandb


def _start_client(**arguments):
    wandb = _client()
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_save_requirements=False,
        init_timeout=INIT_TIMEOUT_SECONDS,
        finish_timeout=FINISH_TIMEOUT_SECONDS,
    )
    earlier = Path(arguments["dir"], "wandb", "earlier")
    earlier.mkdir(parents=True, exist_ok=True)  # without wandb/, the client writes to the system's temporary folder
    if arguments["mode"] == "offline":
        for part in earlier.parent.glob(f"offline-run-*-{arguments['id']}"):
            part.rename(earlier / f"{part.name}-{time.time_ns()}")  # the client names its folders by the second
    wandb.setup(settings=settings)
    return wandb.init(settings=settings, **arguments)


def _give_up(what: str, error: Exception) -> None:
    _say(f"{what} ({type(error).__name__}: {first_line(error)}); training continues")
    with contextlib.suppress(Exception):
        _client().teardown()  # a client left half alive holds the run's id and complains when the process ends


def _kill_client() -> None:
    """Kills the client's process. Private attributes, because the public `wandb.teardown` waits for the process."""
    with contextlib.suppress(Exception):
        connection = _client().setup()._connection
        connection._cleanup()  # the client would wait for the process when ours ends, too
        connection._proc._process.kill()


def _say(text: str) -> None:
    print(f"W&B: {text}", file=sys.stderr, flush=True)
