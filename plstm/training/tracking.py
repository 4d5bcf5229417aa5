"""Where a run's numbers go: `metrics.jsonl` in its folder, always, and Weights & Biases beside it."""

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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from plstm.errors import UserError

MODES = ("auto", "online", "offline", "disabled")
INIT_TIMEOUT_SECONDS = 30
FINISH_TIMEOUT_SECONDS = 60
MOST_WAITING = 10_000  # calls that a slow client may be behind


@dataclass
class LoggerConfig:
    """Weights & Biases."""

    mode: str = "auto"  # or "online", "offline", "disabled"; auto: online when logged in, else offline
    project: str = "plstm"  # the project that the run is logged to
    entity: str | None = None  # the user or team that owns the project; none: the default of the login


class MetricsWriter:
    """Appends a run's values to `metrics.jsonl`, one JSON object a line:

    {"step": 100, "epoch": 0.26, "split": "train", "loss": 0.61, "accuracy": 0.66}

    Values that are not finite are written as null. Every method raises UserError where the file cannot be written.
    One that is not `enabled` writes nothing.
    """

    def __init__(self, path: str | Path, enabled: bool = True):
        self.path, self._enabled = Path(path), enabled

    def write(self, step: int, epoch: float, split: str, values: Mapping[str, float]) -> dict:
        """Appends one line and returns it; it is with the operating system when this returns."""
        record = {"step": step, "epoch": epoch, "split": split}
        for name, value in values.items():
            record[name] = float(value) if math.isfinite(value) else None
        if self._enabled:
            with _disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        return record

    def lines(self) -> list[dict]:
        """All lines so far."""
        return read_metrics(self.path) if self._enabled and self.path.exists() else []

    def truncate_after(self, step: int, evaluated: int) -> None:
        """Drops the lines of later steps, so that a run resumed at `step` writes them once.

        `evaluated`, at most `step`, is the last step whose evaluation the checkpoint knows; later ones will come again.
        """
        if not self._enabled or not self.path.exists():
            return

        def is_known(line: dict) -> bool:
            is_of_training = line["split"] == "train" and "count" not in line
            return line["step"] <= (step if is_of_training else evaluated)

        kept = [json.dumps(line) + "\n" for line in read_metrics(self.path) if is_known(line)]
        temporary = self.path.with_name(self.path.name + ".tmp")
        with _disk_errors(self.path):
            temporary.write_text("".join(kept), encoding="utf-8")
            os.replace(temporary, self.path)


def read_metrics(path: str | Path) -> list[dict]:
    """Returns the lines of a `metrics.jsonl` in order; a last line cut short by a crash is left out.

    Raises:
      UserError: there is no such file, or a line before the last is damaged.
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
def _disk_errors(path: Path):
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path}: {reason}; free space there or choose another run folder") from error


class Tracker:
    """One Weights & Biases run, or nothing at all: it never stops or holds up the training.

    A thread of its own talks to the client, which may be slow to answer or not answer at all. The first failure prints
    one line and ends the tracking; `metrics.jsonl` has every number anyway. Its lines are what is logged, and a run
    that is resumed logs those again that the client has not, so that its history is whole, each step once.
    Uploaded are what the methods are given and the machine's load, never environment variables, the command line,
    console output, code or git state. In a run of several processes, start it with mode "disabled" in all but one.
    """

    def __init__(self, connect: Callable[[], object] | None = None):
        """`connect` returns the client's run, or None, and is called in the thread."""
        self._failed = threading.Event()
        self._waiting: queue.Queue = queue.Queue(MOST_WAITING)
        self._thread = None
        if connect:
            self._thread = threading.Thread(target=self._work, args=(connect,), name="tracker", daemon=True)
            self._thread.start()

    @classmethod
    def start(
        cls,
        run_id: str,
        name: str,
        group: str,
        job_type: str,
        tags: list[str],
        config: dict,
        directory: str | Path,
        mode: str = "auto",
        project: str = "plstm",
        entity: str | None = None,
        lines: Iterable[Mapping] = (),
    ) -> Tracker:
        """Starts or, where `run_id` exists, continues a run.

        Args:
          directory: holds the client's files, under `wandb/`. Those of an offline run's earlier parts, which the new
            part replaces, move to `wandb/earlier/`.
          mode: "auto" is what WANDB_MODE says, else "online" where this user is logged in, else "offline".
            A run that cannot start online goes on offline.
          lines: of `metrics.jsonl`, what was logged before.

        Raises:
          UserError: unknown mode.
        """
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if _is_logged_in() else "offline")
        if mode not in MODES[1:]:
            raise UserError(f"logger.mode (or WANDB_MODE) is {mode!r}: choose one of {', '.join(MODES)}")
        arguments = dict(
            id=run_id,
            resume="allow",
            name=name,
            group=group,
            job_type=job_type,
            tags=tags,
            config=config,
            dir=str(directory),
            project=project,
            entity=entity,
        )
        modes, lines = ("online", "offline") if mode == "online" else (mode,), list(lines)
        return cls(None if mode == "disabled" else lambda: _connect(modes, lines, arguments))

    def log(self, line: Mapping) -> None:
        """Logs a line of `metrics.jsonl`; steps must not go back, the client drops those that do."""
        row, step = row_of(line), line["step"]
        self._call("log", lambda run: run.log(row, step=step))

    def image(self, name: str, path: str | Path, step: int) -> None:
        """Logs a picture, a file."""

        def log_image(run) -> None:
            import wandb

            run.log({name: wandb.Image(str(path))}, step=step)

        self._call("log an image", log_image)

    def summary(self, values: Mapping[str, object]) -> None:
        """Sets values of the run as a whole, such as its best accuracy."""
        values = dict(values)
        self._call("write the summary", lambda run: run.summary.update(values))

    def finish(self, seconds: float = FINISH_TIMEOUT_SECONDS) -> None:
        """Closes the run; waits at most so long for uploads, `wandb sync` does the rest."""
        self._call("finish", lambda run: run.finish())
        self._call("end", None)
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            if not self._failed.is_set():
                self._failed.set()
                _say(f"no answer in {seconds:g} seconds; going on")
            _kill_client()
            self._thread.join(1)
        self._thread = None

    def _call(self, action: str, function: Callable | None) -> None:
        if self._thread is None or self._failed.is_set():
            return
        try:
            self._waiting.put_nowait((action, function))
        except queue.Full:
            self._failed.set()
            _say(f"no answer while {MOST_WAITING:,} values were logged; going on")
            _kill_client()

    def _work(self, connect: Callable[[], object]) -> None:
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
    """A line of `metrics.jsonl` as W&B has it: {"train/loss": 0.61, ..., "epoch": 0.26}, without values not finite."""
    split = line["split"]
    row = {f"{split}/{name}": value for name, value in line.items() if name not in ("step", "epoch", "split", "count")}
    return {name: value for name, value in {**row, "epoch": line["epoch"]}.items() if value is not None}


def _is_logged_in() -> bool:
    """Whether W&B would find a key without asking, in its environment variable or in netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _connect(modes: Iterable[str], lines: list[Mapping], arguments: dict):
    """The client's run in the first mode that starts, with those of the lines that it lacks; None where none starts."""
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
            if line["step"] >= run.step:  # the next step that a run continued online has not
                run.log(row_of(line), step=line["step"])
        return run
    return None


def _start_client(**arguments):
    # Read when the client is imported: no crash reports, whose stack frames could carry secrets.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

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
    folder = Path(arguments["dir"], "wandb")
    # The client writes to the system's temporary folder where this one is missing.
    (folder / "earlier").mkdir(parents=True, exist_ok=True)
    if arguments["mode"] == "offline":
        for part in folder.glob(f"offline-run-*-{arguments['id']}"):
            aside = folder / "earlier" / part.name
            while aside.exists():  # the client names its folders by the second
                aside = aside.with_name(aside.name + "-again")
            part.rename(aside)
    wandb.setup(settings=settings)
    return wandb.init(settings=settings, **arguments)


def _give_up(what: str, error: Exception) -> None:
    _say(f"{what} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); going on")
    with contextlib.suppress(Exception):
        # A client left half alive holds the run's id and complains when the process ends.
        import wandb

        wandb.teardown()


def _kill_client() -> None:
    """Ends the client's process, which the client itself would wait for, at the end of this one, too."""
    with contextlib.suppress(Exception):
        import wandb

        connection = wandb.setup()._connection
        connection._cleanup()  # what it does at the end of this process
        connection._proc._process.kill()


def _say(text: str) -> None:
    print(f"W&B: {text}", file=sys.stderr, flush=True)
