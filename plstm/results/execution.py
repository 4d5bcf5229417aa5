"""Running the jobs of a results table: a process each, several side by side, stopped and waited for together."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from plstm.errors import UserError
from plstm.results.records import Hardware
from plstm.results.sweeps import Job

ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1", "OMP_NUM_THREADS": "1"}


def execute(
    work: Sequence[Job],
    overrides: Callable[[Job], list[str]],
    root: Path,
    after_job: Callable[[Job], None],
    processes: int = 1,
    is_needed: Callable[[Job], bool] = lambda job: True,
) -> list[str]:
    """Start jobs in order, each a process in `root` with its output on ours, so many at a time.

    Args:
        work: what to run, in order.
        overrides: key=value to add to a job's command; its UserError counts as that job's failure.
        root: the folder of `train.py`.
        after_job: called after every job that exits with status 0; its UserError counts as that job's failure.
        processes: how many jobs run side by side; more than one compute with one thread each.
        is_needed: asked before a job starts, for what others have found meanwhile; where not, it is left out.

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
                    if not is_needed(job):
                        print(f"run {number}/{len(work)}: no longer needed: {' '.join(job.overrides)}", flush=True)
                        continue
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
