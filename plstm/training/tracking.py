"""Where a run's numbers go: `metrics.jsonl` in its folder, always, and Weights & Biases beside it."""

from __future__ import annotations

import contextlib
import json
import math
import netrc
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from plstm.errors import UserError

MODES = ("auto", "online", "offline", "disabled")
INIT_TIMEOUT_SECONDS = 30
FINISH_TIMEOUT_SECONDS = 60


class MetricsWriter:
    """Appends a run's values to `metrics.jsonl`, one JSON object a line:

    {"step": 100, "epoch": 0.26, "split": "train", "loss": 0.61, "accuracy": 0.66}

    Values that are not finite are written as null. Every method raises UserError where the file cannot be written.
    One that is not `enabled` writes nothing.
    """

    def __init__(self, path: str | Path, enabled: bool = True):
        self.path, self._enabled = Path(path), enabled

    def write(self, step: int, epoch: float, split: str, values: Mapping[str, float]) -> None:
        """Appends one line; it is with the operating system when this returns."""
        if not self._enabled:
            return
        record = {"step": step, "epoch": epoch, "split": split}
        for name, value in values.items():
            record[name] = float(value) if math.isfinite(value) else None
        with _disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def truncate_after(self, step: int) -> None:
        """Drops the lines of later steps, so that a run resumed at `step` writes them once."""
        if not self._enabled or not self.path.exists():
            return
        kept = [json.dumps(record) + "\n" for record in read_metrics(self.path) if record["step"] <= step]
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

    The first failure of the client prints one line and ends the tracking; `metrics.jsonl` has every number anyway.
    Uploaded are what the methods are given and the machine's load, never environment variables, the command line,
    console output, code or git state. In a run of several processes, start it with mode "disabled" in all but one.
    """

    def __init__(self, run=None):
        self._run = run

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
    ) -> Tracker:
        """Starts or, where `run_id` exists, continues a run.

        Args:
          directory: holds the client's files, under `wandb/`.
          mode: "auto" is what WANDB_MODE says, else "online" where this user is logged in, else "offline".
            A run that cannot start online goes on offline.

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
        for attempt in {"online": ("online", "offline"), "offline": ("offline",), "disabled": ()}[mode]:
            try:
                run = _start_client(mode=attempt, **arguments)
            except Exception as error:
                _give_up(f"could not start {attempt}", error)
                continue
            if attempt == "offline":
                parts = Path(directory) / "wandb" / "offline-run-"
                _say(f"offline; upload with: wandb sync {shlex.quote(str(parts))}*-{run_id}")
            return cls(run)
        return cls()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs numbers of one step; steps must not go back, the client drops those that do."""
        self._call("log", lambda run: run.log(dict(metrics), step=step))

    def image(self, name: str, image: str | Path | np.ndarray, step: int, caption: str | None = None) -> None:
        """Logs a picture: a file, or an array (H, W) or (H, W, 3), uint8 or float in [0, 1]."""

        def log_image(run) -> None:
            import wandb

            if isinstance(image, str | Path):
                data = str(image)
            else:
                data = np.asarray(image)
                if data.dtype.kind == "f":
                    data = np.rint(255 * data.clip(0, 1)).astype(np.uint8)
            run.log({name: wandb.Image(data, caption=caption)}, step=step)

        self._call("log an image", log_image)

    def summary(self, values: Mapping[str, object]) -> None:
        """Sets values of the run as a whole, such as its best accuracy."""
        self._call("write the summary", lambda run: run.summary.update(dict(values)))

    def finish(self) -> None:
        """Closes the run; waits at most a minute for uploads, `wandb sync` does the rest."""
        self._call("finish", lambda run: run.finish())
        self._run = None

    def _call(self, action: str, function: Callable) -> None:
        if self._run is None:
            return
        try:
            function(self._run)
        except Exception as error:
            self._run = None
            _give_up(f"could not {action}", error)


def _is_logged_in() -> bool:
    """Whether W&B would find a key without asking, in its environment variable or in netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


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
    # The client writes to the system's temporary folder where this one is missing.
    Path(arguments["dir"]).mkdir(parents=True, exist_ok=True)
    wandb.setup(settings=settings)
    return wandb.init(settings=settings, **arguments)


def _give_up(what: str, error: Exception) -> None:
    _say(f"{what} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); going on")
    with contextlib.suppress(Exception):
        # A client left half alive holds the run's id and complains when the process ends.
        import wandb

        wandb.teardown()


def _say(text: str) -> None:
    print(f"W&B: {text}", file=sys.stderr, flush=True)
