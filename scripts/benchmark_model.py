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

from plstm.config import Config, OptimConfig
from plstm.models.flops import forward_flops
from plstm.models.vision import VisionConfig
from plstm.ops.grid import METHODS
from plstm.tasks.vision import VisionTask
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_train_step
from scripts.measuring import (
    ROOT,
    add_to_report,
    compile_step,
    positive,
    time_interleaved,
    write_report,
)

MODELS = {
    "pLSTM": partial(VisionConfig, modes=["P", "D"]),
    "ViT": partial(VisionConfig, modes=["attention"], pooling="class_token", layer_scale=1e-4),
}


def add_subject(subjects) -> None:
    """Adds `model` and `scaling` to the benchmark's command line."""
    model = subjects.add_parser("model", help="training steps of pLSTM-Vis-T against ViT-T")
    model.add_argument("--sizes", type=positive, nargs="+", default=[192], help="pixels a side (default 192)")
    model.add_argument("--batch", type=positive, default=8, help="images a step (default 8)")
    model.add_argument("--out", type=Path, help="default results/benchmarks/model-<backend>.json")
    model.set_defaults(run=benchmark_model)
    scaling = subjects.add_parser("scaling", help="how both grow from 192 to 768 pixels: table and plot")
    scaling.add_argument("--sizes", type=positive, nargs="+", default=[192, 288, 384, 576, 768], help="pixels a side")
    scaling.add_argument("--batch", type=positive, default=3, help="images a step (default 3)")
    scaling.add_argument("--out", type=Path, help="default results/benchmarks/scaling-<backend>.json; a .png beside it")
    scaling.set_defaults(run=benchmark_scaling)
    for parser in (model, scaling):
        parser.add_argument("--method", choices=METHODS, default="auto", help="of pLSTM's operator")
        parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
        parser.add_argument("--repeats", type=positive, default=7, help="the median is over these (default 7)")


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
    path = options.out or ROOT / f"results/benchmarks/model-{jax.default_backend()}.json"
    rows = measure_sizes(options, path)
    print_rows(rows, options.batch)
    print(f"Written to {path}")


def benchmark_scaling(options: argparse.Namespace) -> None:
    """As `benchmark_model`; with the exponents of the nodes, where the models cross, and a plot."""
    path = options.out or ROOT / f"results/benchmarks/scaling-{jax.default_backend()}.json"
    rows = measure_sizes(options, path)
    print_rows(rows, options.batch)
    summary = summarise(rows)
    for name in MODELS:
        growth = f"{summary[name]['a_token']:.2f} times the time a token at {rows[-1]['size']} pixels"
        print(f"{name}: time ~ nodes^{summary[name]['exponent']:.2f}; {growth}, {rows[0]['size']} pixels = 1")
    crossing = summary["pLSTM_is_faster_from_pixels"]
    print(f"pLSTM is faster from {crossing:.0f} pixels on" if crossing else "pLSTM is faster at none of these sizes")
    add_to_report(path, summary=summary)
    draw_scaling(rows, path.with_suffix(".png"))
    print(f"Written to {path} and {path.with_suffix('.png')}")


def measure_sizes(options: argparse.Namespace, path: Path) -> list[dict]:
    """A row for each size, written to the report as they come."""
    rows = []
    settings = {name: getattr(options, name) for name in ("batch", "dtype", "method", "repeats")}
    settings["load_average_at_start"] = os.getloadavg()[0]
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
                "flops": flops,
                "flops_per_second": flops / median,
            } | step.report
        row["ratio"] = row["pLSTM"]["median_seconds"] / row["ViT"]["median_seconds"]
        rows.append(row)
        write_report(path, settings, rows)
        del steps
    return rows


def summarise(rows: list[dict]) -> dict:
    """Exponents by least squares over the logarithms, the growth of the time a token, and where the ratio crosses 1."""
    tokens = np.log([row["tokens"] for row in rows])
    summary: dict = {}
    for name in MODELS:
        seconds = [row[name]["median_seconds"] for row in rows]
        a_token = seconds[-1] / seconds[0] * rows[0]["tokens"] / rows[-1]["tokens"]
        exponent = float(np.polyfit(tokens, np.log(seconds), 1)[0]) if len(rows) > 1 else 1.0
        summary[name] = {"exponent": exponent, "a_token": a_token}
    summary["pLSTM_is_faster_from_pixels"] = None
    for before, row in zip([None, *rows], rows, strict=False):
        if row["ratio"] <= 1 and all(later["ratio"] <= 1 for later in rows[rows.index(row) :]):
            pixels = float(row["size"])
            if before:  # the logarithm of the ratio is taken for linear in that of the size between two sizes
                ratios, sizes = np.log([row["ratio"], before["ratio"]]), np.log([row["size"], before["size"]])
                pixels = float(np.exp(np.interp(0.0, ratios, sizes)))
            summary["pLSTM_is_faster_from_pixels"] = pixels
            break
    return summary


def draw_scaling(rows: list[dict], path: Path) -> None:
    """Time a step and planned memory against the nodes, both axes logarithmic, with a linear guide."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    tokens = np.array([row["tokens"] for row in rows])
    for axis, key, scale, label in (
        (axes[0], "median_seconds", 1, "seconds a training step"),
        (axes[1], "memory_bytes", 2**-20, "planned memory, MiB"),
    ):
        for name in MODELS:
            axis.plot(tokens, [row[name][key] * scale for row in rows], marker="o", label=name)
        start = rows[0]["pLSTM"][key] * scale
        axis.plot(tokens, start * tokens / tokens[0], color="gray", linestyle=":", label="linear")
        axis.set(xscale="log", yscale="log", xlabel="nodes", ylabel=label)
        axis.set_xticks(tokens, [str(count) for count in tokens])
        axis.minorticks_off()
        axis.legend(frameon=False)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


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
