"""Whole runs of train.py, from the command to its end: compilation, evaluation, checkpoints and figures included."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from scripts.measuring import ROOT, positive, write_report

EXPERIMENTS = {"pLSTM": "demo/plstm", "ViT": "demo/vit"}


def add_subject(subjects) -> None:
    """Adds `run` to the benchmark's command line."""
    parser = subjects.add_parser("run", help="whole runs of train.py on small images, pLSTM against ViT")
    parser.add_argument("--epochs", type=float, default=0.5, help="of the demo's data (default 0.5)")
    parser.add_argument("--repeats", type=positive, default=7, help="the median is over these (default 7)")
    parser.add_argument("--out", type=Path, help="default results/benchmarks/run-<backend>.json")
    parser.add_argument("overrides", nargs="*", help="more of train.py's overrides, such as debug=smoke")
    parser.set_defaults(run=benchmark_run)


def benchmark_run(options: argparse.Namespace) -> None:
    """Runs both experiments in turns, the first time to fill the caches, and writes the report."""
    load = os.getloadavg()[0]
    results = {name: [] for name in EXPERIMENTS}
    for repeat in range(options.repeats + 1):
        for name, experiment in EXPERIMENTS.items():
            found = run_once(experiment, options)
            if repeat:
                results[name].append(found)
    table = Table(title=f"Whole runs of {options.epochs:g} epochs, seconds")
    for column in ("model", "whole run", "training steps alone", "images/s in the loop"):
        table.add_column(column, justify="left" if column == "model" else "right")
    row = {}
    for name, runs in results.items():
        medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        row[name] = {"medians": medians, "runs": runs}
        rate, steps = f"{medians['images_per_second']:,.0f}", f"{medians['step_seconds']:.1f}"
        table.add_row(name, f"{medians['seconds']:.1f}", steps, rate)
    row["ratio"] = row["pLSTM"]["medians"]["seconds"] / row["ViT"]["medians"]["seconds"]
    Console().print(table)
    print(f"pLSTM / ViT: {row['ratio']:.2f}")
    settings = {"epochs": options.epochs, "repeats": options.repeats, "overrides": options.overrides}
    path = options.out or ROOT / f"results/benchmarks/run-{jax.default_backend()}.json"
    write_report(path, settings | {"load_average_at_start": load}, [row])
    print(f"Written to {path}")


def run_once(experiment: str, options: argparse.Namespace) -> dict[str, float]:
    """One run in a folder of its own: its seconds, those of its training steps alone, and its speed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "train.py"), f"experiment={experiment}", "logger.mode=disabled",
                   f"optim.epochs={options.epochs}", f"optim.warmup_epochs={options.epochs / 10}", "report.table=null",
                   f"paths.runs={folder}/runs", f"paths.results={folder}/results", *options.overrides]  # fmt: skip
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (path,) = Path(folder, "results", "runs").glob("*.json")
        record = json.loads(path.read_text())
    images = record["steps"] * record["config"]["optim"]["batch_size"]
    rate = record["images_per_second"]
    return {"seconds": seconds, "step_seconds": images / rate, "images_per_second": rate}
