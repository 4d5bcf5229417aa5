"""Training steps of pLSTM-Vis-T against ViT-T in the same loop: time by image size, compilation by depth, memory."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plstm.models import VisionConfig, build_model
from plstm.models.flops import forward_flops
from plstm.ops.grid import plstm2d
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_train_step
from scripts.benchmarks.harness import Row, Subject, alternate, compare, compile_step, option, ratio, timing
from scripts.benchmarks.operators import draw_operator_inputs, gradient_step

MODELS = {
    "pLSTM": partial(VisionConfig, modes=["P", "D"]),
    "ViT": partial(VisionConfig, modes=["attention"], pooling="class_token", layer_scale=1e-4),
}
OPTIMIZER = SimpleNamespace(name="adamw", b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.05, clip_norm=1.0)


class Training:
    """A model in training at a constant learning rate; it keeps its state, because a step donates it."""

    def __init__(self, model: Any, optim: Any, loss: Callable, batch: int):
        schedule = lambda step: 1e-4  # noqa: E731
        optimizer = build_optimizer(optim, schedule)
        self.graphdef, state = init_state(model, optimizer)
        self.layout, self.key = Layout(make_mesh(batch)), jax.random.key(0)
        self.state = self.layout.place_state(state)
        self.run = make_train_step(self.graphdef, optimizer, schedule, loss, layout=self.layout)

    def step(self, batch: Any) -> Any:
        self.state, metrics = self.run(self.state, batch, self.key)
        return metrics


def image_loss(model: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, dict]:
    """Mean cross entropy of uint8 images; no metrics."""
    logits = model(batch["image"].astype(jnp.float32) / 127.5 - 1, key=key)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), {}


def compiled_step(config: VisionConfig, batch: int) -> tuple[Callable, Row]:
    """A compiled training step on random images and its report; a backward pass costs two forward passes."""
    training, rng = Training(build_model(config, 0), OPTIMIZER, image_loss, batch), np.random.default_rng(0)
    images = rng.integers(256, size=(batch, config.image_size, config.image_size, 3), dtype=np.uint8)
    labels = rng.integers(config.classes, size=batch, dtype=np.int32)
    inputs = training.layout.place_rows({"image": images, "label": labels})
    training.run, report = compile_step(training.run, (training.state, inputs, training.key))
    return partial(training.step, inputs), report | {"flops": 3 * batch * forward_flops(config)}


def compare_models(configs: dict[str, VisionConfig], options: Any) -> dict[str, Row]:
    """Compilation, planned memory, times and operations of each config's training step."""
    return compare({name: compiled_step(config, options.batch) for name, config in configs.items()}, options.repeats)


def measure_sizes(options: Any) -> Iterator[Row]:
    """Training steps of pLSTM-Vis-T against ViT-T in the same loop, by image size."""
    for size in options.sizes:
        configs = {name: make(image_size=size, dtype=options.dtype) for name, make in MODELS.items()}
        found = compare_models(configs, options)
        for row in found.values():
            row["flops_per_second"] = row["flops"] / row["median_seconds"]
        yield {"size": size, "tokens": (size // 16) ** 2, **found, **ratio(found, "pLSTM", "ViT")}


def summarise_scaling(rows: list[Row]) -> dict[str, Row]:
    """Each model's exponent of the tokens and growth of the time a token from first to last; where the models cross."""
    tokens = np.log([row["tokens"] for row in rows])
    summary: Row = {"pLSTM_is_faster_from_pixels": crossing(rows)}
    for name in MODELS:
        seconds = np.log([row[name]["median_seconds"] for row in rows])
        exponent = float(np.polyfit(tokens, seconds, 1)[0]) if len(rows) > 1 else 1.0
        a_token = float(np.exp((seconds - tokens)[-1] - (seconds - tokens)[0]))
        summary[name] = {"exponent": exponent, "a_token": a_token}
    print(summary)
    return {"summary": summary}


def crossing(rows: list[Row]) -> float | None:
    """Pixels a side from which pLSTM is faster up to the last size; the ratio is taken as a power of the size."""
    sizes, ratios = np.log([(row["size"], row["ratio"]) for row in rows]).T
    if ratios[-1] > 0:
        return None
    slower = max(np.flatnonzero(ratios > 0), default=-1)
    around = [slower + 1, max(slower, 0)]  # np.interp takes increasing ratios
    return float(np.exp(np.interp(0.0, ratios[around], sizes[around])))


def measure_compilation(options: Any) -> Iterator[Row]:
    """Seconds to compile a training step of pLSTM-Vis-T and of ViT-T, without any cache, by depth."""
    jax.config.update("jax_enable_compilation_cache", False)

    def seconds_of(config: VisionConfig) -> float:
        jax.clear_caches()
        return compiled_step(config, options.batch)[1]["compile_seconds"]

    for depth in options.depths:
        runs = {name: make(depth=depth, dtype="float32") for name, make in MODELS.items()}
        found = {name: timing(seconds) for name, seconds in alternate(runs, options.repeats, seconds_of).items()}
        yield {"depth": depth, **found, **ratio(found, "pLSTM", "ViT")}


def measure_memory(options: Any) -> Iterator[Row]:
    """Planned memory and time with blocks kept and recomputed; planned memory of the operator on one large grid."""
    for size in options.sizes:
        for name, make in MODELS.items():
            remat = {"kept": False, "recomputed": True}
            configs = {key: make(image_size=size, dtype="float32", remat=value) for key, value in remat.items()}
            found = compare_models(configs, options)
            memory = found["recomputed"]["memory_bytes"] / found["kept"]["memory_bytes"]
            times = ratio(found, "recomputed", "kept", "time_ratio")
            yield {"what": f"{name}, {size} pixels", **found, "memory_ratio": memory, **times}
    for structure in ("rank_one", "no_ru"):
        arguments = draw_operator_inputs(structure, options.grid, options.batch)
        row = {"what": f"operator, {structure}, {options.grid}x{options.grid}"}
        for method in ("parallel", "chunkwise"):
            step = gradient_step(partial(plstm2d, method=method, structure=structure))
            row[method] = {"memory_bytes": compile_step(step, arguments)[1]["memory_bytes"]}
        yield row


BATCH = {"--batch": option(8, "images a step")}
DTYPE = {"--dtype": option("float32", "of the matrix products", str, choices=["float32", "bfloat16"])}
SCALED = {"--sizes": option([192, 288, 384, 576, 768], "pixels a side"), "--batch": option(3, "images a step")}
GRIDS = {"--sizes": option([192, 384], "pixels a side"), "--grid": option(48, "of the operator")}
SUBJECTS = {
    "model": Subject(measure_sizes, {"--sizes": option([192], "pixels a side")} | BATCH | DTYPE),
    "scaling": Subject(measure_sizes, SCALED | DTYPE, summarise_scaling),
    "compile": Subject(measure_compilation, {"--depths": option([4, 12, 24], "layers")} | BATCH),
    "memory": Subject(measure_memory, GRIDS | BATCH),
}
