"""Running the jobs of a results table: a process each, several side by side, stopped and waited for together."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from plstm.errors import UserError
from plstm.results.sweeps import Job

ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1", "OMP_NUM_THREADS": "1"}


def execute(
    work: Sequence[Job],
    overrides: Callable[[Job], list[str] | None],
    root: Path,
    after_job: Callable[[Job], None],
    processes: int = 1,
) -> list[str]:
    """Start jobs in order, each a process in `root` with its output on ours, so many at a time.

    Args:
        overrides: key=value to add to a job's command, None where it is not needed any more. Its UserError, and that of
            `after_job`, is the job's failure.
        root: the folder of `train.py`.
        after_job: called after every job that exits with status 0.
        processes: how many jobs run side by side; more than one compute with one thread each.

    Returns one line a failed job. KeyboardInterrupt is handed to the running processes as SIGINT, which are waited for,
    and then raised again.
    """
    failures: list[str] = []
    waiting, running = list(enumerate(work, 1)), {}
    environment = os.environ | (ONE_THREAD if processes > 1 else {})
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                number, job = waiting.pop(0)
                with _noting(failures, job):
                    own = overrides(job)
                    command = ["train.py", *job.overrides, *(own or ())]
                    words = "no longer needed: python" if own is None else "python"
                    print(f"run {number}/{len(work)}: {words} {shlex.join(command)}", flush=True)
                    if own is not None:
                        # A process group of its own: the terminal's Ctrl-C reaches this process only, which hands it on
                        options = {"stdin": subprocess.DEVNULL, "process_group": 0, "env": environment}
                        running[subprocess.Popen([sys.executable, *command], cwd=root, **options)] = job
            for child in [child for child in running if _has_ended(child, alone=len(running) == 1)]:
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
    """Send SIGINT, and again where the user does, until all have ended."""
    while children:
        for child in children:
            child.send_signal(signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt):
            while children:
                children[0].wait()
                children.pop(0)


def _has_ended(child: subprocess.Popen, alone: bool) -> bool:
    """Wait a moment where there are others, else for its end."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(None if alone else 0.2)
    return child.returncode is not None


@contextlib.contextmanager
def _noting(failures: list[str], job: Job) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        failures.append(f"{' '.join(job.overrides)}: {error}")
        print(f"failed: {failures[-1]}", flush=True)
