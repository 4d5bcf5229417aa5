"""Training steps with freed memory kept (`plstm.training.memory.keep_freed_memory`) and with glibc's own behaviour.

Each measurement is a process of its own, because malloc cannot be set back; the processes take turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax

from plstm.errors import UserError
from plstm.training.memory import keep_freed_memory
from scripts.benchmarks.harness import Row, Subject, alternate, option, peak_memory, ratio, timing, wall_seconds
from scripts.benchmarks.models import MODELS, TrainingStep
from scripts.common import ROOT

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # as the Makefile sets it
WARM_UP = 3
KINDS = ("kept", "given_back")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Training steps with freed memory kept and returned to the system, each with and without huge pages."""
    for subject, huge in itertools.product([*options.models, *options.sets], (False, True)):
        runs = {kind: partial(measure_apart, subject, options.steps, kind, huge) for kind in KINDS}
        found = {}
        for kind, processes in alternate(runs, options.repeats, lambda run: run()).items():
            found[kind] = timing([seconds for process in processes for seconds in process["seconds"]])
            found[kind]["peak_bytes"] = max(process["peak_bytes"] for process in processes)
        yield {"subject": subject, "huge_pages": huge, **found, **ratio(found, "given_back", "kept", "speedup")}


def measure_apart(subject: str, steps: int, kind: str, huge: bool) -> Row:
    """What `main` prints in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-m", "scripts.benchmarks.allocator", subject, str(steps), kind]
    environment |= HUGE_PAGES if huge else {}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError(f"{subject}, {kind}: its process ended with status {done.returncode}; see above")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the seconds of every step, and this process's peak memory, as a line of JSON."""
    subject, steps, kind = sys.argv[1:]
    if kind == "kept" and not keep_freed_memory():
        sys.exit("freed memory cannot be kept here: see plstm.training.memory.keep_freed_memory")
    jax.config.update("jax_compilation_cache_dir", str(Path("~/.cache/plstm/jax").expanduser()))
    if subject in MODELS:
        run = TrainingStep(MODELS[subject](image_size=192), 8)
    else:
        from scripts.benchmarks.graphs import Epochs

        run = Epochs("plstm", subject)
    seconds = [wall_seconds(run) for _ in range(WARM_UP + int(steps))][WARM_UP:]
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_memory()}))


SUBJECTS = {
    "allocator": Subject(
        measure,
        {
            "--models": option(list(MODELS), "of 192 pixels", str, choices=MODELS, nargs="*"),
            "--sets": option([], "of graphs, for epochs of the graph pLSTM", str, nargs="*"),
            "--steps": option(12, "steps, or epochs, a process"),
        },
    )
}

if __name__ == "__main__":
    main()
