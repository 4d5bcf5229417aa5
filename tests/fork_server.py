"""Starts train.py many times at little cost, and ends it at chosen moments by real signals.

A process that has imported everything and started nothing (no device, no thread) forks a child for each start, which is
train.py from its first line on. `python tests/fork_server.py` is that process; `ForkServer` talks to it.

A plan ends the child: {"event": "save", "count": 2, "delay": 0.01, "signal": 9} sends it SIGKILL 10 ms after the second
time that a checkpoint was about to be written. EVENTS has the names.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EVENTS = ("start", "build", "loop", "evaluate", "save", "checksums", "complete", "line", "finish", "draw", "tracker")
EVENTS += ("file", "half", "written")


class ForkServer:
    """The process to fork from; close it at the end."""

    def __init__(self, environment: dict[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, "-u", __file__],
            cwd=ROOT,
            env=os.environ | environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._child: int | None = None

    def start(self, arguments: list[str], output: Path, plan: dict | None = None) -> int:
        """Starts train.py with the arguments, what it prints going to `output`; returns its process id."""
        if self._child is not None:  # left behind by a test that failed
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            self.wait()
        self._process.stdin.write(json.dumps([arguments, str(output), plan]) + "\n")
        self._process.stdin.flush()
        self._child = int(self._process.stdout.readline())
        return self._child

    def wait(self) -> int:
        """The exit status of what was started last, negative for a signal."""
        self._child = None
        return int(self._process.stdout.readline())

    def run(self, arguments: list[str], output: Path, plan: dict | None = None) -> tuple[int, str]:
        """Starts it and waits for its end; returns the exit status and what it printed."""
        self.start(arguments, output, plan)
        return self.wait(), output.read_text()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)


@dataclass
class Plan:
    """Counts events, and sends the signal when its own has come, to the W&B client's processes where `to_client`."""

    event: str
    count: int = 1
    delay: float = 0.0
    signal: int = signal.SIGKILL
    to_client: bool = False

    def happens(self, event: str) -> None:
        assert event in EVENTS and self.event in EVENTS, (event, self.event)
        self.count -= event == self.event
        if event == self.event and self.count == 0:
            if self.delay == 0:
                return self.send()
            thread = threading.Timer(self.delay, self.send)
            thread.daemon = True
            thread.start()

    def send(self) -> None:
        print(f"<{self.event}>", flush=True)
        targets = [os.getpid()]
        if self.to_client:
            (runs,) = [Path(word.partition("=")[2]) for word in sys.argv if word.startswith("paths.runs=")]
            wait_for(lambda: list(runs.glob("*/wandb/offline-run-*/*.wandb")))
            targets = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
        for target in targets:
            os.kill(int(target), self.signal)


def _watch(plan: Plan) -> None:
    import train
    from plstm.runs import session
    from plstm.studies import records
    from plstm.training import checkpoints, tracking

    def wrap(owner, name: str, before: str, after: str | None = None, when=lambda *arguments: True):
        function = getattr(owner, name)

        def wrapped(*arguments, **named):
            if when(*arguments):
                plan.happens(before)
            result = function(*arguments, **named)
            if after:
                plan.happens(after)
            return result

        setattr(owner, name, wrapped)

    wrap(train, "Session", "build")
    wrap(session.Progress, "__enter__", "loop")
    wrap(session, "evaluate", "evaluate")
    wrap(train.Interrupt, "leave_at_once", "finish")  # the last checkpoint is on disk
    wrap(train, "draw_run", "draw")
    wrap(checkpoints.Checkpoints, "save", "save")
    wrap(checkpoints, "_write_checksums", "checksums")  # a checkpoint's files are written, its checksums are not
    wrap(tracking.Tracker, "finish", "tracker")
    wrap(records, "write_file", "file", "written")
    # The record is written under another name, and not yet renamed.
    wrap(os, "replace", "half", when=lambda source, target: Path(target).parent.parent.name == "results")
    finalize = checkpoints._ChecksummedPath.finalize
    write = tracking.MetricsWriter.write

    async def watched_finalize(self):
        await finalize(self)
        if self.get_final().name.isdigit():  # a checkpoint has just got its name
            plan.happens("complete")

    def watched_write(self, step, epoch, split, values):
        if plan.event == "line" and plan.count == 1:  # half a line
            with open(self.path, "a") as file:
                file.write(f'{{"step": {step}, "epo')
        plan.happens("line")
        return write(self, step, epoch, split, values)

    checkpoints._ChecksummedPath.finalize = watched_finalize
    tracking.MetricsWriter.write = watched_write


def _child(arguments: list[str], output: str, plan: dict | None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which trainings respect
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor, target in ((written, 1), (written, 2), (os.open(os.devnull, os.O_RDONLY), 0)):
        os.dup2(descriptor, target)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import train
    from plstm.config import Config
    from plstm.runs.cli import run_entry

    if plan:
        plan = Plan(**plan)
        _watch(plan)
        plan.happens("start")
    sys.argv = [str(ROOT / "train.py"), *arguments]
    run_entry(train.main, Config)


def main() -> None:
    import matplotlib.figure  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    import wandb  # noqa: F401

    import train  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return _child(*json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.path.insert(0, str(ROOT))
        main()
