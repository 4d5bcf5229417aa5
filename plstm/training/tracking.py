"""Where a run's numbers go: always to `metrics.jsonl` in its folder, and to Weights & Biases beside it."""

import configparser
import contextlib
import json
import math
import netrc
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plstm.config import MODES
from plstm.errors import UserError, first_line, print_once
from plstm.files import write_errors, write_file

INIT_TIMEOUT = 30  # seconds that the training waits for W&B at its start ...
FINISH_TIMEOUT = 60  # ... and at its end


class MetricsWriter:
    """Appends the values of a run to the list `lines` and, if `enabled`, to the file `metrics.jsonl`, for readers.

    Each checkpoint has a copy of the list, from which a resumed run restores the file, however damaged. Values that are
    not finite are null. Raises UserError where the file cannot be written.

    {"step": 100, "epoch": 0.26, "split": "train", "loss": 0.61, "accuracy": 0.66}
    """

    def __init__(self, path: Path, lines: list[dict], enabled: bool = True):
        """`lines`: those of the checkpoint that the run is resumed from; whatever else is in the file is dropped."""
        self.path = path
        self.lines = lines
        self._enabled = enabled
        self._errors = partial(write_errors, path, "free space there or choose another run folder")
        with self._errors():
            found = path.read_bytes() if enabled and path.is_file() else b""
            whole = "".join(json.dumps(line) + "\n" for line in lines).encode()
            if enabled and found != whole:
                if not found.startswith(whole):
                    print(f"{path}: was damaged; restored from the checkpoint", flush=True)
                write_file(path, whole)

    def write(self, step: int, epoch: float, split: str, values: Mapping[str, float]) -> dict:
        """Appends one line and returns it."""
        line = {"step": step, "epoch": epoch, "split": split}
        line |= {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        self.lines.append(line)
        if self._enabled:
            with self._errors(), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return line


class Tracker:
    """One Weights & Biases run, or nothing at all. The first failure prints one line and ends the tracking.

    Only what the methods get and the machine's load is uploaded: never environment variables, the command line, console
    output, code or git state.
    """

    def __init__(self, mode: str, **arguments: Any):
        """Starts or continues a run; `arguments` of `wandb.init` with "id" and "dir". UserError for an unknown mode."""
        mode = choose_mode(mode)
        self._ended = mode == "disabled"
        self._is_online = mode == "online"
        self._run = self._try("start", lambda: _start_client(mode, **arguments))

    def log(self, line: Mapping) -> None:
        """Logs a line of `metrics.jsonl`, as {"train/loss": 0.61, ..., "epoch": 0.26}; steps must not decrease."""
        self._log(lambda: named_values(line) | {"epoch": line["epoch"]}, line["step"])

    def image(self, name: str, path: str | Path, step: int) -> None:
        self._log(lambda: {name: _client().Image(str(path))}, step)

    def table(self, name: str, frame: Any) -> None:
        """Logs a pandas frame."""
        self._log(lambda: {name: _client().Table(dataframe=frame)}, 0)

    def _log(self, make_row: Callable[[], dict], step: int) -> None:
        # A server drops rows of steps that it has had, and a resumed run may log some again: online W&B counts rows,
        # and "step" is the axis of its charts. Offline, where each start would count from 0, the step is the count.
        counted = {} if self._is_online else {"step": step}
        self._try("log", lambda: self._run.log(make_row() | {"step": step}, **counted))

    def summary(self, values: Mapping[str, object]) -> None:
        self._try("log", lambda: self._run.summary.update(dict(values)))

    def finish(self) -> None:
        """Ends the run after its uploads, or after `FINISH_TIMEOUT` seconds; `wandb sync` does the rest."""
        self._try("finish", lambda: self._run.finish())
        self._ended = True

    def _try(self, action: str, function: Callable[[], Any]) -> Any:
        if self._ended:
            return None
        try:
            return function()
        except Exception as error:
            self._ended = True
            reason = f"{type(error).__name__}: {first_line(error)}"
            print(f"W&B: could not {action} ({reason}); the program continues", file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):
                _client().teardown()  # a client left half alive complains when the process ends


def named_values(line: Mapping) -> dict[str, float]:
    """The metrics of a line of `metrics.jsonl` as W&B has them, {"train/loss": 0.61, ...}; null ones are left out."""
    values = {name: line[name] for name in line if name not in ("step", "epoch", "split", "count")}
    return {f"{line['split']}/{name}": value for name, value in values.items() if value is not None}


def long_name(name: str, overrides: Sequence[str]) -> str:
    """A run's name in W&B, which tells it from others of a sweep: arrow-plstm-s43 peak_lr=0.001."""
    typed = [override.lstrip("+").partition("=") for override in overrides]
    in_name = ("experiment", "variant", "seed")
    parts = [f"{key.rpartition('.')[2]}={value}" for key, _, value in typed if key not in in_name]
    return " ".join([name, *parts])[:128]  # W&B takes no more


def choose_mode(mode: str) -> str:
    """What `logger.mode` means on this machine. Raises UserError for an unknown one, and for "online" without a key."""
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if _is_logged_in() else "offline")
    if mode not in MODES[1:]:
        raise UserError(f"logger.mode (or WANDB_MODE) is {mode!r}: choose one of {', '.join(MODES)}")
    if mode == "online" and not _is_logged_in():
        raise UserError("logger.mode=online: not logged in to W&B; run `wandb login`, or take logger.mode=offline")
    return mode


def _is_logged_in() -> bool:
    """Whether W&B would find an API key or token without asking, in its environment variables, or in netrc for the
    server that it would use."""
    saved = configparser.ConfigParser(interpolation=None)  # by `wandb login --host`
    with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
        saved.read(os.path.expanduser(Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb", "settings")))
    server = saved.get("default", "base_url", fallback="https://api.wandb.ai")
    server = os.environ.get("WANDB_BASE_URL") or server
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(os.environ.get("NETRC")).authenticators(str(urlsplit(server).netloc)):
            return True
    return any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))


def _client():
    """The module wandb. No crash reports, whose stack frames could carry secrets: it reads that when it is imported."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    return wandb


def _start_client(mode: str, **arguments):
    wandb = _client()
    off = dict(silent=True, console="off", disable_code=True, disable_git=True, x_disable_meta=True)
    limits = dict(init_timeout=INIT_TIMEOUT, finish_timeout=FINISH_TIMEOUT)
    settings = wandb.Settings(x_save_requirements=False, **off, **limits)
    folder = Path(arguments["dir"], "wandb")
    folder.mkdir(parents=True, exist_ok=True)  # without it, the client writes to the system's temporary folder
    wandb.setup(settings=settings)
    run = wandb.init(settings=settings, mode=mode, resume="allow", **arguments)
    run.define_metric("*", step_metric="step")
    if mode == "offline":
        print_once(f"W&B: offline; to upload: wandb sync {shlex.quote(str(folder))}")
    return run
