"""Whole runs of train.py, each in its own process: pLSTM against ViT with start, evaluation and checkpoints, and the
parts of a small run.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from plstm.errors import UserError
from plstm.studies.records import read_records
from scripts.benchmarks.operators import Row, alternate
from scripts.common import ROOT

EXPERIMENTS = {"pLSTM": "demo/plstm", "ViT": "demo/vit"}


def run_script(script: str, folder: str, overrides: Sequence[str]) -> tuple[float, str]:
    """Trains with results in a folder; returns the seconds that the process took, and what it printed."""
    command = [sys.executable, str(ROOT / script), *overrides, "logger.mode=disabled"]
    command += [f"paths.{name}={folder}/{name}" for name in ("runs", "results")]
    start = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[-1]
        raise UserError(f"{script} {' '.join(overrides)} ended with status {done.returncode}: {last}")
    return seconds, done.stdout


def run_once(experiment: str, epochs: float, overrides: Sequence[str]) -> dict[str, float]:
    """One run in a folder of its own: its seconds, those of its training steps alone, and examples a second."""
    schedule = [f"optim.epochs={epochs}", f"optim.warmup_epochs={epochs / 10}"]
    with tempfile.TemporaryDirectory() as folder:
        seconds, _ = run_script("train.py", folder, [f"experiment={experiment}", *schedule, *overrides])
        (record,) = read_records(Path(folder, "results"))
    examples, rate = record.steps * record.config["optim"]["batch_size"], record.examples_per_second
    return {"seconds": seconds, "step_seconds": examples / rate, "examples_per_second": rate}


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def measure_runs(repeats: int, epochs=0.5, overrides=()) -> Iterator[Row]:
    """Whole runs of train.py on some epochs of the demo's images, pLSTM against ViT; the first ones fill the caches."""
    row = {}
    for name, runs in alternate(EXPERIMENTS, repeats, lambda name: run_once(name, epochs, overrides)).items():
        row[name] = {"medians": medians(runs), "runs": runs}
    yield row | {"ratio": row["pLSTM"]["medians"]["seconds"] / row["ViT"]["medians"]["seconds"]}


# ---------------------------------------------------------------------- the parts of a small run
def measure_start(repeats: int, overrides=("debug=smoke",)) -> Iterator[Row]:
    """Seconds of each part of a small run of train.py, compiled before: imports, data, model, first step, end."""
    (runs,) = alternate({"run": overrides}, repeats, parts_of_run).values()
    yield {"overrides": list(overrides), "medians": medians(runs), "runs": runs}


def parts_of_run(overrides: Sequence[str]) -> dict[str, float]:
    """The seconds of the parts of one run, in the order of time, and their sums."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        _, printed = run_script("scripts/benchmarks/noted_run.py", folder, overrides)
        ended = time.time()
    times = {"began": began, **json.loads(printed.splitlines()[-1]), "the end": ended}
    parts = {f"to {name}": times[name] - times[before] for before, name in pairwise(times)}
    return parts | {"before the first step": times["the first step"] - began, "seconds": ended - began}
