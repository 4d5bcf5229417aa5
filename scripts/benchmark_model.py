"""Training steps of pLSTM-Vis-T against ViT-T in the same loop: time, compilation and memory, by image size."""

from __future__ import annotations

import argparse
import os
import statistics
from functools import partial
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from plstm.experiments.config import Config, OptimConfig
from plstm.models.flops import forward_flops
from plstm.models.vision import VisionConfig
from plstm.ops.grid import METHODS
from plstm.tasks.vision import VisionTask
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_train_step
from scripts.measuring import ROOT, compile_step, positive, time_interleaved, write_report

MODELS = {
    "pLSTM": partial(VisionConfig, modes=["P", "D"]),
    "ViT": partial(VisionConfig, modes=["attention"], pooling="class_token", layer_scale=1e-4),
}


def add_subject(subjects) -> None:
    """Adds `model` to the benchmark's command line."""
    parser = subjects.add_parser("model", help="training steps of pLSTM-Vis-T against ViT-T")
    parser.add_argument("--sizes", type=positive, nargs="+", default=[192], help="pixels a side (default 192)")
    parser.add_argument("--batch", type=positive, default=8, help="images a step (default 8)")
    parser.add_argument("--method", choices=METHODS, default="auto", help="of pLSTM's operator")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=positive, default=7, help="the median is over these (default 7)")
    parser.add_argument("--out", type=Path, help="default results/benchmarks/model-<backend>.json")
    parser.set_defaults(run=benchmark_model)


def build_step(model: VisionConfig, batch: int) -> tuple:
    """The jitted training step, a state and a batch of random images."""
    config = Config(model=model, optim=OptimConfig(batch_size=batch))
    task = VisionTask(config)
    schedule = lambda step: 1e-4  # noqa: E731
    optimizer = build_optimizer(config.optim, schedule)
    graphdef, state = init_state(task.build_model(0), optimizer)
    layout = Layout(make_mesh(batch))
    step = make_train_step(graphdef, optimizer, schedule, task.loss, key=jax.random.key(0), layout=layout)
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(batch, model.image_size, model.image_size, 3), dtype=np.uint8)
    data = {"image": images, "label": rng.integers(model.classes, size=batch, dtype=np.int32)}
    return step, layout.place_state(state), layout.place_rows(data)


class Repeated:
    """A step that feeds itself: its state is donated, so every call needs the last one's."""

    def __init__(self, model: VisionConfig, batch: int):
        step, self._state, self._data = build_step(model, batch)
        compiled = compile_step(step, (self._state, self._data))
        self._run = compiled.pop("run")
        self.report = compiled

    def __call__(self):
        self._state, metrics = self._run(self._state, self._data)
        return metrics


def benchmark_model(options: argparse.Namespace) -> None:
    """Times both models at each size, in turns, and writes the report."""
    rows = []
    for size in options.sizes:
        configs = {
            name: make(image_size=size, dtype=options.dtype, method=options.method) for name, make in MODELS.items()
        }
        steps = {name: Repeated(config, options.batch) for name, config in configs.items()}
        seconds = time_interleaved(steps, (), options.repeats)
        row = {"size": size, "tokens": (size // 16) ** 2}
        for name, step in steps.items():
            median = statistics.median(seconds[name])
            flops = 3 * options.batch * forward_flops(configs[name])
            row[name] = {
                "median_seconds": median,
                "seconds": seconds[name],
                "flops_per_second": flops / median,
            } | step.report
        row["ratio"] = row["pLSTM"]["median_seconds"] / row["ViT"]["median_seconds"]
        rows.append(row)
        del steps
    print_rows(rows, options.batch)
    path = options.out or ROOT / f"results/benchmarks/model-{jax.default_backend()}.json"
    settings = {name: getattr(options, name) for name in ("batch", "dtype", "method", "repeats")}
    write_report(path, settings | {"load_average_at_start": os.getloadavg()[0]}, rows)
    print(f"Written to {path}")


def print_rows(rows: list[dict], batch: int) -> None:
    """Prints the table: pLSTM / ViT, and each one's cost a token against the first size."""
    table = Table(title=f"A training step of {batch} images: pLSTM-Vis-T / ViT-T")
    for column in ("pixels", "tokens", "median ms", "ratio", "a token, first = 1", "compile s", "memory MiB"):
        table.add_column(column, justify="right")
    models = list(MODELS)

    def both(row: dict, key: str, scale: float, form: str) -> str:
        return " / ".join(format(row[name][key] * scale, form) for name in models)

    for row in rows:
        growth = row["tokens"] / rows[0]["tokens"]
        a_token = [row[n]["median_seconds"] / rows[0][n]["median_seconds"] / growth for n in models]
        table.add_row(
            str(row["size"]),
            str(row["tokens"]),
            both(row, "median_seconds", 1e3, ".0f"),
            f"{row['ratio']:.2f}",
            " / ".join(f"{value:.2f}" for value in a_token),
            both(row, "compile_seconds", 1, ".1f"),
            both(row, "memory_bytes", 2**-20, ".0f"),
        )
    Console().print(table)
