"""What a GPU is asked for in one call: times of the operator's forms and of training steps at full batches.

Needs jax, flax, optax and numpy alone. What fails leaves its error in the record. `make test-gpu` checks the numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plstm.models import VisionConfig
from plstm.ops.grid import FORMS, by_matrix, plstm2d
from scripts.benchmarks.harness import Row, Subject, alternate, compile_step, option, ratio, timing
from scripts.benchmarks.models import MODELS, TrainingStep
from scripts.benchmarks.operators import draw_operator_inputs, gradient_step

PAPER_IMAGES = 39_050 * 128  # of an arrow-pointing run
# Operations a second of dense bfloat16 products, from the makers' data sheets.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "V100": 125e12}
ARROW = {"pLSTM": {"heads": 6, "classes": 2}, "ViT": {"heads": 6, "classes": 2, "layer_scale": 1.0}}
CASES = {  # name: images a step, options of both models, options of each
    "ImageNet": (128, {}, {}),
    "arrow pointing": (128, {}, ARROW),
    "large batch": (1024, {}, {}),
    "large batch, recomputed": (1024, {"remat": True}, {}),
}
TINY = {"arrow pointing": (2, {"image_size": 32, "dim": 24, "depth": 2}, ARROW)}


def attempt(make: Callable[[], Any]) -> tuple[Any, Row]:
    """What `make` returns and an empty row; or None and its error, because the other cases are worth having."""
    try:
        return jax.block_until_ready(make()), {}
    except Exception as error:
        return None, {"error": f"{type(error).__name__}: {error}"[:500]}


def attempt_all(makers: dict[str, Callable[[], tuple[Callable, Row]]], repeats: int) -> dict[str, Row]:
    """Reports of compiled runs with their times, in turns; an error in the place of what cannot be compiled or run."""
    found, runs = {}, {}
    for name, make in makers.items():
        made, found[name] = attempt(make)
        if made:
            run, found[name] = made
            _, error = attempt(run)
            found[name] |= error
            runs |= {} if error else {name: run}
    for name, seconds in alternate(runs, repeats).items():
        found[name] |= timing(seconds)
    return found


def fitting_step(config: VisionConfig, batch: int) -> tuple[TrainingStep, Row]:
    """A compiled training step and its report. Raises MemoryError where the plan does not fit a device."""
    step = TrainingStep(config, batch)
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit and step.report["memory_bytes"] > limit:
        raise MemoryError(f"needs {step.report['memory_bytes'] / 2**30:.1f} GiB of {limit / 2**30:.1f} a device")
    return step, step.report | {"flops": step.flops}


def measure_models(options: argparse.Namespace) -> Iterator[Row]:
    """Images a second, share of the peak operations of all devices, hours of the paper's arrow-pointing run."""
    kind = jax.devices()[0].device_kind
    peak = next((rate for name, rate in PEAKS.items() if re.search(rf"\b{name}\b", kind)), None)
    for case, (batch, both, own) in (TINY if options.tiny else CASES).items():
        configs = {name: make(**both, **own.get(name, {})) for name, make in MODELS.items()}
        if jax.default_backend() == "gpu":
            configs["pLSTM, fused"] = dataclasses.replace(configs["pLSTM"], method="fused")
        makers = {name: partial(fitting_step, config, batch) for name, config in configs.items()}
        found = attempt_all(makers, options.repeats)
        timed = {name: row for name, row in found.items() if "median_seconds" in row}
        for row in timed.values():
            row["images_per_second"] = batch / row["median_seconds"]
            row["utilisation"] = peak and row["flops"] / row["median_seconds"] / (peak * jax.device_count())
            row["hours_of_the_paper_s_arrow_run"] = PAPER_IMAGES / row["images_per_second"] / 3600
        yield {
            "case": case,
            "batch": batch,
            **found,
            **(ratio(found, "pLSTM", "ViT") if MODELS.keys() <= timed.keys() else {}),
        }


def measure_operators(options: argparse.Namespace) -> Iterator[Row]:
    """Every form that is fit for this backend, bfloat16 inputs."""
    for grid, batch in [(4, 2)] if options.tiny else [(12, 128), (14, 128), (24, 32), (48, 4)]:
        for structure in ("rank_one", "no_ru"):
            forms = {form: partial(by_matrix, structure=structure, form=form) for form in FORMS[structure]}
            methods = ["chunkwise"]
            if jax.default_backend() == "gpu":
                methods.append("fused")
                del forms["batch_minor"]  # made for CPUs
            forms |= {method: partial(plstm2d, structure=structure, method=method) for method in methods}
            q, k, v, gates, direct, cotangent = draw_operator_inputs(structure, grid, batch)
            q, k, v, cotangent = (tensor.astype(jnp.bfloat16) for tensor in (q, k, v, cotangent))
            arguments = (q, k, v, gates, direct, cotangent)
            makers = {name: partial(_bound_step, form, arguments) for name, form in forms.items()}
            yield {"structure": structure, "grid": grid, "batch": batch, "forms": attempt_all(makers, options.repeats)}


def _bound_step(form: Callable, arguments: tuple) -> tuple[Callable, Row]:
    run, report = compile_step(gradient_step(form), arguments)
    return partial(run, *arguments), report


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """What a GPU is asked for: training steps, then the operator's forms; no row begins after --seconds."""
    start = time.monotonic()
    for part in (measure_models, measure_operators):
        rows = part(options)
        while time.monotonic() - start <= options.seconds and (row := next(rows, None)):
            yield row
    if time.monotonic() - start > options.seconds:
        yield {"skipped": "the rest: the time was up"}


TINY_OPTION = {"action": "store_true", "help": "the smallest sizes: figures without meaning"}
SUBJECTS = {"gpu": Subject(measure, {"--tiny": TINY_OPTION, "--seconds": option(480.0, "no row begins later", float)})}
