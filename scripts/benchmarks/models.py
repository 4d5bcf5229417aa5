"""Training steps of pLSTM-Vis-T against ViT-T in the same loop: time by image size, compilation by depth, memory."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plstm.drawing import new_figure, save, style
from plstm.models import VisionConfig, build_model
from plstm.models.flops import forward_flops
from plstm.ops.grid import METHODS, plstm2d
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_train_step
from scripts.benchmarks.harness import Row, Subject, alternate, compare, compile_step, option, ratio, timing
from scripts.benchmarks.operators import draw_operator_inputs, gradient_step

MODELS = {
    "pLSTM": functools.partial(VisionConfig, modes=["P", "D"]),
    "ViT": functools.partial(VisionConfig, modes=["attention"], pooling="class_token", layer_scale=1e-4),
}
NAMES = tuple(MODELS)
OPTIMIZER = SimpleNamespace(name="adamw", b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.05, clip_norm=1.0)


def classification_loss(model: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, tuple]]:
    """Mean cross entropy of uint8 images, and its metrics as (sum, count)."""
    logits = model(batch["image"].astype(jnp.float32) / 127.5 - 1, key=key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.mean(), {"loss": (losses.sum(), jnp.float32(losses.size))}


class TrainingStep:
    """A compiled step with AdamW on random images; it feeds itself, because the state is donated.

    report: see `compile_step`. flops: of one step; a backward pass costs two forward passes.
    """

    def __init__(self, config: VisionConfig, batch: int):
        schedule = lambda step: 1e-4  # noqa: E731
        optimizer = build_optimizer(OPTIMIZER, schedule)
        graphdef, state = init_state(build_model(config, 0), optimizer)
        layout, rng = Layout(make_mesh(batch)), np.random.default_rng(0)
        images = rng.integers(256, size=(batch, config.image_size, config.image_size, 3), dtype=np.uint8)
        labels = rng.integers(config.classes, size=batch, dtype=np.int32)
        self._inputs = layout.place_rows({"image": images, "label": labels}), jax.random.key(0)
        self._state = layout.place_state(state)
        step = make_train_step(graphdef, optimizer, schedule, classification_loss, layout=layout)
        self._run, self.report = compile_step(step, (self._state, *self._inputs))
        self.flops = 3 * batch * forward_flops(config)

    def __call__(self) -> Any:
        self._state, metrics = self._run(self._state, *self._inputs)
        return metrics


def make_step(config: VisionConfig, batch: int) -> tuple[TrainingStep, Row]:
    """A step and its report, with its operations."""
    step = TrainingStep(config, batch)
    return step, step.report | {"flops": step.flops}


def compare_models(configs: dict[str, VisionConfig], batch: int, repeats: int) -> dict[str, Row]:
    """Compilation, planned memory, times and operations of each config's training step."""
    return compare({name: functools.partial(make_step, config, batch) for name, config in configs.items()}, repeats)


def measure_sizes(options: argparse.Namespace) -> Iterator[Row]:
    """Training steps of pLSTM-Vis-T against ViT-T in the same loop, by image size."""
    for size in options.sizes:
        same = {"image_size": size, "dtype": options.dtype, "method": options.method}
        found = compare_models({name: make(**same) for name, make in MODELS.items()}, options.batch, options.repeats)
        for row in found.values():
            row["flops_per_second"] = row["flops"] / row["median_seconds"]
        yield {"size": size, "tokens": (size // 16) ** 2, **found, **ratio(found, "pLSTM", "ViT")}


def summarise_scaling(rows: list[Row], path: Path) -> dict[str, Row]:
    """Each model's exponent of the nodes and growth of the time a token, where they cross; with a plot beside it."""
    draw_scaling(rows, path.with_suffix(""))
    tokens = np.log([row["tokens"] for row in rows])
    summary: Row = {"pLSTM_is_faster_from_pixels": crossing(rows)}
    for name in NAMES:
        seconds = np.log([row[name]["median_seconds"] for row in rows])
        exponent = float(np.polyfit(tokens, seconds, 1)[0]) if len(rows) > 1 else 1.0
        a_token = float(np.exp(seconds[-1] - seconds[0] - tokens[-1] + tokens[0]))
        summary[name] = {"exponent": exponent, "a_token": a_token}
        print(f"{name}: time ~ nodes^{exponent:.2f}, {a_token:.2f} times the first size's time a token at the last")
    print(f"pLSTM is faster from this many pixels on: {summary['pLSTM_is_faster_from_pixels']}")
    return {"summary": summary}


def crossing(rows: list[Row]) -> float | None:
    """Pixels a side from which pLSTM is faster up to the last size; the ratio is taken as a power of the size."""
    sizes, ratios = np.log([(row["size"], row["ratio"]) for row in rows]).T
    slower = np.flatnonzero(ratios > 0)
    if ratios[-1] > 0:
        return None
    if not len(slower):
        return float(rows[0]["size"])
    around = [slower[-1] + 1, slower[-1]]  # np.interp takes increasing ratios
    return float(np.exp(np.interp(0.0, ratios[around], sizes[around])))


def draw_scaling(rows: list[Row], path: Path) -> None:
    """Time a step and planned memory against the nodes, both axes logarithmic, with a linear guide."""
    tokens = np.array([row["tokens"] for row in rows])
    with style():
        figure = new_figure(9, 3.6)
        for axes, key, scale, label in zip(
            figure.subplots(1, 2),
            ("median_seconds", "memory_bytes"),
            (1, 2**-20),
            ("seconds a training step", "planned memory, MiB"),
            strict=True,
        ):
            for name in NAMES:
                axes.plot(tokens, [row[name][key] * scale for row in rows], marker="o", label=name)
            start = rows[0]["pLSTM"][key] * scale
            axes.plot(tokens, start * tokens / tokens[0], color="gray", linestyle=":", label="linear")
            axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel=label)
            axes.set_xticks(tokens, [str(count) for count in tokens])
            axes.minorticks_off()
            axes.legend()
        save(figure, path)


def measure_compilation(options: argparse.Namespace) -> Iterator[Row]:
    """Seconds to compile a training step of pLSTM-Vis-T and of ViT-T, without any cache, by depth."""
    jax.config.update("jax_enable_compilation_cache", False)

    def seconds_of(config: VisionConfig) -> float:
        jax.clear_caches()
        return TrainingStep(config, options.batch).report["compile_seconds"]

    for depth in options.depths:
        runs = {name: make(depth=depth, dtype="float32") for name, make in MODELS.items()}
        found = {name: timing(seconds) for name, seconds in alternate(runs, options.repeats, seconds_of).items()}
        yield {"depth": depth, **found, **ratio(found, "pLSTM", "ViT")}


def measure_memory(options: argparse.Namespace) -> Iterator[Row]:
    """Planned memory and time with blocks kept and recomputed; planned memory of the operator on one large grid."""
    for size in options.sizes:
        for name, make in MODELS.items():
            configs = {
                key: make(image_size=size, dtype="float32", remat=key == "recomputed") for key in ("kept", "recomputed")
            }
            found = compare_models(configs, options.batch, options.repeats)
            memory = found["recomputed"]["memory_bytes"] / found["kept"]["memory_bytes"]
            times = ratio(found, "recomputed", "kept", "time_ratio")
            yield {"what": f"{name}, {size} pixels", **found, "memory_ratio": memory, **times}
    for structure in ("rank_one", "no_ru"):
        arguments = draw_operator_inputs(structure, options.grid, options.batch)
        row = {"what": f"operator, {structure}, {options.grid}x{options.grid}"}
        for method in ("parallel", "chunkwise"):
            operator = functools.partial(plstm2d, method=method, structure=structure)
            row[method] = {"memory_bytes": compile_step(gradient_step(operator), arguments)[1]["memory_bytes"]}
        yield row


BATCH = {"--batch": option(8, "images a step")}
SIZES = {
    "--method": option("auto", "of pLSTM's operator", str, choices=METHODS),
    "--dtype": option("float32", "of the matrix products", str, choices=["float32", "bfloat16"]),
}
SCALED = {"--sizes": option([192, 288, 384, 576, 768], "pixels a side"), "--batch": option(3, "images a step")}
SUBJECTS = {
    "model": Subject(measure_sizes, {"--sizes": option([192], "pixels a side"), **BATCH, **SIZES}),
    "scaling": Subject(measure_sizes, SCALED | SIZES, summarise_scaling),
    "compile": Subject(measure_compilation, {"--depths": option([4, 12, 24], "layers"), **BATCH}),
    "memory": Subject(
        measure_memory,
        {"--sizes": option([192, 384], "pixels a side"), "--grid": option(48, "of the operator"), **BATCH},
    ),
}
