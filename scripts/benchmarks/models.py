"""Training pLSTM against other models in the same loop, steps on images and epochs on graphs; and how many augmented
views one core makes a second."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from PIL import Image

from data import decoding
from data.augment.recipes import RECIPES
from data.augment.views import augment, view_rng
from plstm.models import VisionConfig, build_model
from plstm.ops.grid import plstm2d
from plstm.runs.experiments import compose_experiment
from plstm.tasks import TASKS
from plstm.training.flops import forward_flops
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import evaluate, init_state, make_predict, make_train_step
from scripts.benchmarks import operators as ops
from scripts.benchmarks.operators import Row, alternate, compile_step, ratio, timing
from scripts.make_photos import draw, encode

MODELS = {
    "pLSTM": partial(VisionConfig, modes=["P", "D"]),
    "ViT": partial(VisionConfig, modes=["attention"], pooling="class_token", layer_scale=1e-4),
}
OPTIMIZER = SimpleNamespace(name="adamw", b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.05, clip_norm=1.0)


class Training:
    """A model in training at a constant learning rate; it keeps its state, because a step donates it."""

    def __init__(self, model: Any, optim: Any, loss: Callable, batch: int):
        self.layout, self.key, schedule = Layout(make_mesh(batch)), jax.random.key(0), lambda step: 1e-4
        optimizer = build_optimizer(optim, schedule)
        self.graphdef, state = init_state(model, optimizer)
        self.state = self.layout.place_state(state)
        self.run = make_train_step(self.graphdef, optimizer, schedule, loss, layout=self.layout)

    def step(self, batch: Any) -> Any:
        self.state, metrics = self.run(self.state, batch, self.key)
        return metrics


def compiled_step(config: Any, batch: int) -> tuple[Callable, Row]:
    """A compiled training step of an image model on random images and its report; a backward pass costs two forward
    passes."""

    def loss(model: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, dict]:
        logits = model(batch["image"].astype(jnp.float32) / 127.5 - 1, key=key)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), {}

    training, rng = Training(build_model(config, 0), OPTIMIZER, loss, batch), np.random.default_rng(0)
    images = rng.integers(256, size=(batch, config.image_size, config.image_size, 3), dtype=np.uint8)
    labels = rng.integers(config.classes, size=batch, dtype=np.int32)
    inputs = training.layout.place_rows({"image": images, "label": labels})
    training.run, report = compile_step(training.run, (training.state, inputs, training.key))
    return partial(training.step, inputs), report | {"flops": 3 * batch * forward_flops(config)}


def compare_models(configs: dict[str, Any], batch: int, repeats: int) -> dict[str, Row]:
    """Compilation, planned memory, times and operations of each config's training step."""
    return ops.compare({name: compiled_step(config, batch) for name, config in configs.items()}, repeats)


def measure_sizes(repeats: int, sizes=(192,), batch=8, dtype="float32") -> Iterator[Row]:
    """Training steps of pLSTM-Vis-T against ViT-T in the same loop, by pixels a side."""
    for size in sizes:
        configs = {name: make(image_size=size, dtype=dtype) for name, make in MODELS.items()}
        found = compare_models(configs, batch, repeats)
        for row in found.values():
            row["flops_per_second"] = row["flops"] / row["median_seconds"]
        yield {"size": size, "tokens": (size // 16) ** 2, **found, **ratio(found, "pLSTM", "ViT")}


measure_scaling = partial(measure_sizes, sizes=(192, 288, 384, 576, 768), batch=3)


def summarise_scaling(rows: list[Row]) -> dict[str, Any]:
    """Each model's exponent of the tokens and growth of the time a token from first to last; where the models cross."""
    tokens = np.log([row["tokens"] for row in rows])
    summary: Row = {"pLSTM_is_faster_from_pixels": crossing(rows)}
    for name in MODELS:
        seconds = np.log([row[name]["median_seconds"] for row in rows])
        exponent = float(np.polyfit(tokens, seconds, 1)[0]) if len(rows) > 1 else 1.0
        a_token = float(np.exp((seconds - tokens)[-1] - (seconds - tokens)[0]))
        summary[name] = {"exponent": exponent, "a_token": a_token}
    return summary


def crossing(rows: list[Row]) -> float | None:
    """Pixels a side from which pLSTM is faster up to the last size; the ratio is taken as a power of the size."""
    sizes, ratios = np.log([(row["size"], row["ratio"]) for row in rows]).T
    if ratios[-1] > 0:
        return None
    slower = max(np.flatnonzero(ratios > 0), default=-1)
    around = [slower + 1, max(slower, 0)]  # np.interp takes increasing ratios
    return float(np.exp(np.interp(0.0, ratios[around], sizes[around])))


def measure_compilation(repeats: int, depths=(4, 12, 24), batch=8) -> Iterator[Row]:
    """Seconds to compile a training step of pLSTM-Vis-T and of ViT-T, without any cache, by depth."""
    jax.config.update("jax_enable_compilation_cache", False)

    def seconds_of(config: VisionConfig) -> float:
        jax.clear_caches()
        return compiled_step(config, batch)[1]["compile_seconds"]

    for depth in depths:
        runs = {name: make(depth=depth, dtype="float32") for name, make in MODELS.items()}
        found = {name: timing(seconds) for name, seconds in alternate(runs, repeats, seconds_of).items()}
        yield {"depth": depth, **found, **ratio(found, "pLSTM", "ViT")}


def measure_memory(repeats: int, sizes=(192, 384), grid=48, batch=8) -> Iterator[Row]:
    """Planned memory and time with blocks kept and recomputed; planned memory of the operator on one large grid."""
    for size in sizes:
        for name, make in MODELS.items():
            remat = {"kept": False, "recomputed": True}
            configs = {key: make(image_size=size, dtype="float32", remat=value) for key, value in remat.items()}
            found = compare_models(configs, batch, repeats)
            memory = found["recomputed"]["memory_bytes"] / found["kept"]["memory_bytes"]
            times = ratio(found, "recomputed", "kept", "time_ratio")
            yield {"what": f"{name}, {size} pixels", **found, "memory_ratio": memory, **times}
    for structure in ("shared_incoming", "d_mode"):
        arguments = ops.draw_operator_inputs(structure, grid, batch)
        row = {"what": f"operator, {structure}, {grid}x{grid}"}
        for method in ("parallel", "chunkwise"):
            step = ops.gradient_step(partial(plstm2d, method=method, structure=structure))
            row[method] = {"memory_bytes": compile_step(step, arguments)[1]["memory_bytes"]}
        yield row


# ---------------------------------------------------------------------- graphs
GRAPH_MODELS = ("plstm", "gin", "gat", "gcn", "lstm", "mpnn")


class Epochs(Training):
    """A model in training; each call trains an epoch of the first fold, and evaluates it as a run does."""

    def __init__(self, model: str, data_set: str):
        config = compose_experiment(f"graphs/{model}", f"data.name={data_set}")
        task, self._batch_size = TASKS[config.task](config), config.optim.batch_size
        super().__init__(task.build_model(0), config.optim, task.loss, self._batch_size)
        self._measure = make_predict(self.graphdef, task.metrics)
        self._batches, self.steps = task.batches(self.layout).from_step(0), task.steps_per_epoch
        self._splits = [task.split(name) for name in ("val", "test")]
        self.first_epoch_seconds = ops.wall_seconds(self)

    def __call__(self) -> Any:
        for _ in range(self.steps):
            metrics = self.step(next(self._batches))
        for split in self._splits:
            evaluate(self._measure, self.state.weights, split, self._batch_size, self.layout.place_rows)
        return metrics


def measure_epochs(repeats: int, sets=("MUTAG", "NCI1"), models=GRAPH_MODELS) -> Iterator[Row]:
    """Epochs of the graph models on each data set, evaluation included; the models of a set take turns."""
    for data_set in sets:
        epochs = {model: Epochs(model, data_set) for model in models}
        for model, seconds in alternate(epochs, repeats).items():
            row = timing(seconds)
            compiling = epochs[model].first_epoch_seconds - row["median_seconds"]
            yield {"set": data_set, "model": model, "steps": epochs[model].steps, **row, "compile_seconds": compiling}


# ---------------------------------------------------------------------- augmented views of ImageNet-like photographs
SHAPE, BYTES = (500, 375), 87_000  # of a typical training image
SIZES = {"deit3": 192}  # the recipes' resolutions; the others' is 224


def make_photograph(number: int) -> bytes:
    """A JPEG of SHAPE and about BYTES, chroma halved both ways."""
    picture = draw(number, np.random.default_rng(number)).resize(SHAPE, Image.Resampling.BICUBIC)
    files = (encode(picture, quality, subsampling=2) for quality in range(70, 98, 3))
    return min(files, key=lambda content: abs(len(content) - BYTES))


def views_per_second(recipe: str | None, decoder: str, contents: list[bytes]) -> float:
    """Decodes each image once and makes its views by a recipe, or none of them; of this process's time on one core."""
    views, start = RECIPES[recipe].repeats if recipe else 0, time.process_time()
    with mock.patch.object(decoding, "simplejpeg", decoding.simplejpeg if decoder == "simplejpeg" else None):
        for index, content in enumerate(contents):
            picture = decoding.decode(content)
            for view in range(views):
                augment(picture, SIZES.get(recipe, 224), RECIPES[recipe], view_rng(0, 0, index, view))
    return len(contents) * max(views, 1) / (time.process_time() - start)


def measure_views(repeats: int, images=64) -> Iterator[Row]:
    """Augmented views a second and core: decoding alone and each recipe, by each decoder that is installed."""
    contents = [make_photograph(number) for number in range(images)]
    decoders = ["pillow"] + ["simplejpeg"] * (decoding.simplejpeg is not None)
    cases = {case: case for case in itertools.product((None, *RECIPES), decoders)}
    found = alternate(cases, repeats, lambda case: views_per_second(*case, contents))
    for (recipe, decoder), rates in found.items():
        row = {"recipe": recipe or "decoding alone", "decoder": decoder}
        row |= {"size": SIZES.get(recipe, 224), "views_an_image": RECIPES[recipe].repeats} if recipe else {}
        yield row | {"views_per_second": statistics.median(rates), "rates": rates}
