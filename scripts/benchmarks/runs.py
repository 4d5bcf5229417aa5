"""Whole runs of train.py, from the command to its end: compilation, evaluation, checkpoints and figures included."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plstm.errors import UserError
from plstm.results.records import read_records
from scripts.benchmarks.harness import Row, Subject, alternate, option
from scripts.common import ROOT

EXPERIMENTS = {"pLSTM": "demo/plstm", "ViT": "demo/vit"}


def run_once(experiment: str, options: Any) -> dict[str, float]:
    """One run in a folder of its own: its seconds, those of its training steps alone, and examples a second."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "train.py"), f"experiment={experiment}", "logger.mode=disabled"]
        command += [f"optim.epochs={options.epochs}", f"optim.warmup_epochs={options.epochs / 10}"]
        command += [f"paths.runs={folder}/runs", f"paths.results={folder}/results", *options.overrides]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[-1]
            raise UserError(f"train.py experiment={experiment} ended with status {done.returncode}: {last}")
        (record,) = read_records(Path(folder, "results"))
    examples, rate = record.steps * record.config["optim"]["batch_size"], record.examples_per_second
    return {"seconds": seconds, "step_seconds": examples / rate, "examples_per_second": rate}


def measure(options: Any) -> Iterator[Row]:
    """Whole runs of train.py on the demo's images, pLSTM against ViT; the first ones fill the caches."""
    row = {}
    for name, runs in alternate(EXPERIMENTS, options.repeats, lambda name: run_once(name, options)).items():
        row[name] = {"medians": {key: statistics.median(run[key] for run in runs) for key in runs[0]}, "runs": runs}
    yield row | {"ratio": row["pLSTM"]["medians"]["seconds"] / row["ViT"]["medians"]["seconds"]}


OVERRIDES = {"nargs": "*", "default": [], "help": "more of train.py's overrides, such as debug=smoke"}
EPOCHS = option(0.5, "of the demo's data", float)
SUBJECTS = {"run": Subject(measure, {"--epochs": EPOCHS, "overrides": OVERRIDES})}
