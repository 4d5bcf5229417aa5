"""An epoch of the graph models, evaluation included: its time on each set, over GIN's, and compilation."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from plstm.runs.cost import compose_experiment
from plstm.tasks import TASKS
from plstm.training.evaluation import evaluate
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_predict, make_train_step
from scripts.measuring import ROOT, positive, time_interleaved, write_report

MODELS = ("plstm", "gin", "gat", "gcn", "lstm", "mpnn")
YARDSTICK = "gin"


def add_subject(subjects) -> None:
    """Adds `graphs` to the benchmark's command line."""
    parser = subjects.add_parser("graphs", help="an epoch of pLSTM and of graph neural networks")
    parser.add_argument("--sets", nargs="+", default=["MUTAG"], help="of TUDataset (default MUTAG)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="default: all")
    parser.add_argument("--repeats", type=positive, default=7, help="the median is over these (default 7)")
    parser.add_argument("--out", type=Path, help="default results/benchmarks/graphs-<backend>.json")
    parser.set_defaults(run=benchmark_graphs)


class Epochs:
    """A model in training; each call trains an epoch of the first fold, and evaluates it as a run does."""

    def __init__(self, model: str, name: str):
        config = compose_experiment(f"graphs/{model}", f"data.name={name}")
        self._task, self._batch_size = TASKS[config.task](config), config.optim.batch_size
        schedule = lambda step: 1e-4  # noqa: E731
        optimizer = build_optimizer(config.optim, schedule)
        graphdef, state = init_state(self._task.build_model(0), optimizer)
        self._layout, key = Layout(make_mesh(self._batch_size)), jax.random.key(0)
        self._state = self._layout.place_state(state)
        self._step = make_train_step(graphdef, optimizer, schedule, self._task.loss, key=key, layout=self._layout)
        self._predict = make_predict(graphdef, self._task.logits)
        self._batches = self._task.batches(key, self._layout).from_step(0)
        self._splits = [self._task.split(split) for split in ("val", "test")]
        self.steps = self._task.steps_per_epoch
        start = time.perf_counter()
        self()
        self.first_epoch_seconds = time.perf_counter() - start

    def __call__(self):
        for _ in range(self.steps):
            self._state, metrics = self._step(self._state, next(self._batches))
        for split in self._splits:
            evaluate(self._predict, self._state.weights, split, self._batch_size, self._layout.place_rows)
        return metrics


def benchmark_graphs(options: argparse.Namespace) -> None:
    """Times the models on each set, in turns, and writes the report."""
    rows, load = [], os.getloadavg()[0]
    for name in options.sets:
        epochs = {model: Epochs(model, name) for model in options.models}
        seconds = time_interleaved(epochs, (), options.repeats)
        for model, run in epochs.items():
            median = statistics.median(seconds[model])
            row = {"set": name, "model": model, "steps": run.steps, "seconds": seconds[model]}
            rows.append(row | {"median_seconds": median, "compile_seconds": run.first_epoch_seconds - median})
        del epochs
    print_rows(rows)
    path = options.out or ROOT / f"results/benchmarks/graphs-{jax.default_backend()}.json"
    settings = {"repeats": options.repeats, "batch": 64, "load_averages": [load, os.getloadavg()[0]]}
    write_report(path, settings, rows)
    print(f"Written to {path}")


def print_rows(rows: list[dict]) -> None:
    """Prints the table."""
    table = Table(title="An epoch of batches of 64 graphs and the evaluation after it")
    for column in ("set", "model", "steps", "median s", "over GIN", "compile s"):
        table.add_column(column, justify="left" if column in ("set", "model") else "right")
    gin = {row["set"]: row["median_seconds"] for row in rows if row["model"] == YARDSTICK}
    for row in rows:
        ratio = f"{row['median_seconds'] / gin[row['set']]:.2f}" if row["set"] in gin else "–"
        figures = [str(row["steps"]), f"{row['median_seconds']:.3f}", ratio, f"{row['compile_seconds']:.1f}"]
        table.add_row(row["set"], row["model"], *figures)
    Console().print(table)
