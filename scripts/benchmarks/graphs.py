"""An epoch of the graph models, evaluation included: its time on each data set, and compilation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import jax

from plstm.runs.cost import compose_experiment
from plstm.tasks import TASKS
from plstm.training.evaluation import evaluate
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_predict, make_train_step
from scripts.benchmarks.harness import Row, Subject, alternate, option, timing, wall_seconds

MODELS = ("plstm", "gin", "gat", "gcn", "lstm", "mpnn")


class Epochs:
    """A model in training; each call trains an epoch of the first fold, and evaluates it as a run does."""

    def __init__(self, model: str, data_set: str):
        config = compose_experiment(f"graphs/{model}", f"data.name={data_set}")
        task, self._batch_size = TASKS[config.task](config), config.optim.batch_size
        schedule = lambda step: 1e-4  # noqa: E731
        optimizer = build_optimizer(config.optim, schedule)
        graphdef, state = init_state(task.build_model(0), optimizer)
        self._layout, self._key = Layout(make_mesh(self._batch_size)), jax.random.key(0)
        self._state = self._layout.place_state(state)
        self._step = make_train_step(graphdef, optimizer, schedule, task.loss, layout=self._layout)
        self._measure = make_predict(graphdef, task.metrics)
        self._batches = task.batches(self._layout).from_step(0)
        self._splits = [task.split(name) for name in ("val", "test")]
        self.steps = task.steps_per_epoch
        self.first_epoch_seconds = wall_seconds(self)

    def __call__(self) -> Any:
        for _ in range(self.steps):
            self._state, metrics = self._step(self._state, next(self._batches), self._key)
        for split in self._splits:
            evaluate(self._measure, self._state.weights, split, self._batch_size, self._layout.place_rows)
        return metrics


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Epochs of the graph models on each data set, evaluation included; the models of a set take turns."""
    for data_set in options.sets:
        epochs = {model: Epochs(model, data_set) for model in options.models}
        found = {model: timing(seconds) for model, seconds in alternate(epochs, options.repeats).items()}
        for model, row in found.items():
            if "gin" in found:
                row["over_gin"] = row["median_seconds"] / found["gin"]["median_seconds"]
            compiling = epochs[model].first_epoch_seconds - row["median_seconds"]
            yield {"set": data_set, "model": model, "steps": epochs[model].steps, **row, "compile_seconds": compiling}


SETS = option(["MUTAG"], "of TUDataset", str)
SUBJECTS = {"graphs": Subject(measure, {"--sets": SETS, "--models": option(list(MODELS), "", str, choices=MODELS)})}
