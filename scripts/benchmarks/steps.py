"""Training steps on one thread, by this code and by another checkout of it, each in its own process.

    git worktree add /tmp/before <commit>
    python scripts/benchmark.py steps --against /tmp/before

The processes run this file, and import the rest from their checkout.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from plstm.errors import UserError, run_script
from plstm.runs.experiments import compose_experiment
from plstm.tasks import TASKS
from plstm.tasks.programs import compile_programs
from plstm.training.steps import init_state
from scripts.benchmarks.operators import Row, alternate, ratio, timing
from scripts.common import ROOT

# Not from scripts.common: another checkout may not have it there.
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1", "OMP_NUM_THREADS": "1"}
STEPS = 10  # of which the fastest counts


def measure_steps(
    repeats: int, experiments=("reduced/plstm", "reduced/vit"), overrides=(), against=""
) -> Iterator[Row]:
    """Training steps on one thread, in processor seconds, here and in another checkout."""
    if not against:
        raise UserError("--against: name the folder of a checkout to compare with")
    asked = subprocess.run(["git", "-C", against, "rev-parse", "HEAD"], capture_output=True, text=True)
    if asked.returncode:
        raise UserError(f"--against {against}: no checkout ({asked.stderr.strip()})")
    head, folders = asked.stdout.strip(), {"here": ROOT, "before": Path(against)}
    for experiment in experiments:
        runs = {name: _start(folder, [experiment, *overrides]) for name, folder in folders.items()}
        found = {name: timing(seconds) for name, seconds in alternate(runs, repeats, _ask).items()}
        for run in runs.values():
            run.communicate()
        yield {"experiment": experiment, **found, "before_commit": head, **ratio(found, "before", "here", "speedup")}


def _start(folder: Path, arguments: list[str]) -> subprocess.Popen:
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(folder)}
    command, pipes = [sys.executable, __file__, *arguments], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)


def _ask(run: subprocess.Popen) -> float:
    print(file=run.stdin, flush=True)
    if not (answer := run.stdout.readline()):
        raise UserError(f"{' '.join(run.args[2:])}: cannot be run; the reason stands above")
    return float(answer)


def serve(experiment: str, *overrides: str) -> None:
    """Takes STEPS steps on a training batch for each line of standard input, and prints the seconds of the fastest."""
    config = compose_experiment(experiment, *overrides)
    task = TASKS[config.task](config)
    programs = compile_programs(task, task.plan())
    layout = programs.layout
    state = layout.place_state(init_state(task.build_model(0), programs.optimizer)[1])
    batch = next(task.batches(layout).from_step(0))
    for _ in sys.stdin:
        seconds = []
        for _ in range(STEPS):
            start = time.process_time()
            state, metrics = jax.block_until_ready(programs.step(state, batch, jax.random.key(0)))
            seconds.append(time.process_time() - start)
        print(min(seconds), flush=True)


if __name__ == "__main__":
    run_script(lambda: serve(*sys.argv[1:]))
