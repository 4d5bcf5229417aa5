"""All that a GPU is asked for in one call: is every form right, and how long do forms and models take.

Needs jax, flax, optax and numpy alone. A form, model or part that fails leaves its error in its place.
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
import numpy as np
from plstm.ops.oracle import plstm2d_oracle

from plstm.models import VisionConfig
from plstm.ops.grid import by_matrix, plstm2d
from scripts.benchmarks.harness import Row, Subject, alternate, compile_step, option, ratio, timing
from scripts.benchmarks.models import MODELS, TrainingStep
from scripts.benchmarks.operators import FORMS, draw_operator_inputs, gradient_step

PAPER_IMAGES = 39_050 * 128  # of an arrow-pointing run
# Operations a second of dense bfloat16 products, from the makers' data sheets.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "V100": 125e12}
STRUCTURES = ("rank_one", "no_ru")
ARROW = {"pLSTM": {"heads": 6, "classes": 2}, "ViT": {"heads": 6, "classes": 2, "layer_scale": 1.0}}


def operators(structure: str) -> dict[str, Callable]:
    """The forms that are fit for this backend."""
    found = {form: partial(by_matrix, structure=structure, form=form) for form in FORMS[structure]}
    if jax.default_backend() != "cpu":
        del found["batch_minor"]  # made for CPUs
    methods = ("chunkwise", "fused") if jax.default_backend() == "gpu" else ("chunkwise",)
    return found | {method: partial(plstm2d, structure=structure, method=method) for method in methods}


def attempt(make: Callable[[], Any]) -> tuple[Any, Row]:
    """What `make` returns and an empty row; or None and its error, because the other cases are worth having."""
    try:
        return jax.block_until_ready(make()), {}
    except Exception as error:
        return None, {"error": f"{type(error).__name__}: {error}"[:500]}


def check_operators(options: argparse.Namespace) -> Iterator[Row]:
    """The largest difference from the oracle over outputs and gradients, relative to each tensor's largest value."""
    for structure in STRUCTURES:
        arguments = draw_operator_inputs(structure, 5 if options.tiny else 12, 2, 2, 8 if options.tiny else 64)
        with jax.default_matmul_precision("highest"):
            expected = independent(jax.jit(gradient_step(plstm2d_oracle))(*arguments), structure)
            for form, operator in operators(structure).items():
                found, row = attempt(partial(jax.jit(gradient_step(operator)), *arguments))
                if found is not None:
                    errors = jax.tree.map(relative_error, independent(found, structure), expected)
                    row["error"] = float(np.max(jax.tree.leaves(errors)))  # NaN where one is
                passed = isinstance(row["error"], float) and row["error"] < 1e-4
                yield {"structure": structure, "form": form, **row, "passed": passed}


def independent(result: tuple, structure: str) -> tuple:
    """Output and gradients, with those of gates that are one gate added up: some forms read only one of them."""
    output, (d_q, d_k, d_v, gates, d_direct) = result
    if structure == "rank_one":
        shared = (gates.s_r, gates.s_d, gates.t_rl + gates.t_ru, gates.t_dl + gates.t_du, gates.m_l + gates.m_u)
    else:
        shared = tuple(gates._replace(t_ru=jnp.zeros_like(gates.t_ru)))
    return output, d_q, d_k, d_v, shared, d_direct


def relative_error(found: jax.Array, expected: jax.Array) -> float:
    """The largest difference over the largest expected value."""
    return float(jnp.abs(found - expected).max() / jnp.maximum(jnp.abs(expected).max(), 1e-30))


def time_operators(options: argparse.Namespace) -> Iterator[Row]:
    """Every form in turns, bfloat16 inputs."""
    for grid, batch in [(4, 2)] if options.tiny else [(12, 128), (14, 128), (24, 32), (48, 4)]:
        for structure in STRUCTURES:
            q, k, v, gates, direct, cotangent = draw_operator_inputs(structure, grid, batch)
            q, k, v, cotangent = (tensor.astype(jnp.bfloat16) for tensor in (q, k, v, cotangent))
            arguments, forms, runs = (q, k, v, gates, direct, cotangent), {}, {}
            for name, operator in operators(structure).items():
                compiled, forms[name] = attempt(partial(compile_step, gradient_step(operator), arguments))
                if compiled:
                    run, forms[name] = partial(compiled[0], *arguments), compiled[1]
                    result, error = attempt(run)
                    forms[name] |= error
                    runs |= {} if result is None else {name: run}
            for name, seconds in alternate(runs, options.repeats).items():
                forms[name] |= timing(seconds)
            yield {"structure": structure, "grid": grid, "batch": batch, "forms": forms}


def make_configs(options: argparse.Namespace, arrow: bool = False, remat: bool = False) -> dict[str, VisionConfig]:
    """pLSTM-Vis-T and ViT-T, for ImageNet or as arrow pointing has them; on GPUs also pLSTM with the fused kernels."""
    small = {"image_size": 32, "dim": 16, "heads": 2, "depth": 2, "classes": 10} if options.tiny else {}
    found = {n: make(remat=remat, **((ARROW[n] if arrow else {}) | small)) for n, make in MODELS.items()}
    if jax.default_backend() == "gpu":
        found["pLSTM, fused"] = dataclasses.replace(found["pLSTM"], method="fused")
    return found


def first_step(config: VisionConfig, batch: int) -> TrainingStep:
    """A training step that has run once. Raises MemoryError where the plan does not fit a device."""
    step = TrainingStep(config, batch)
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit and step.report["memory_bytes"] > limit:
        raise MemoryError(f"needs {step.report['memory_bytes'] / 2**30:.1f} GiB of {limit / 2**30:.1f} a device")
    jax.block_until_ready(step())
    return step


def time_models(options: argparse.Namespace) -> Iterator[Row]:
    """The models in turns: images a second, model FLOPs utilisation, hours of the paper's arrow-pointing run."""
    kind = jax.devices()[0].device_kind
    peak = next((rate for name, rate in PEAKS.items() if re.search(rf"\b{name}\b", kind)), None)
    cases = [(128, False, False), (128, False, True), (1024, False, False), (1024, True, False)]
    for batch, remat, arrow in [(2, False, True)] if options.tiny else cases:
        steps, row = {}, {}
        for name, config in make_configs(options, arrow, remat).items():
            steps[name], row[name] = attempt(partial(first_step, config, batch))
        runs = {name: step for name, step in steps.items() if step is not None}
        for name, seconds in alternate(runs, options.repeats).items():
            row[name] = runs[name].report | timing(seconds) | {"flops": runs[name].flops}
            rate = batch / row[name]["median_seconds"]
            utilisation = peak and runs[name].flops / row[name]["median_seconds"] / peak / jax.device_count()
            row[name] |= {"images_per_second": rate, "utilisation": utilisation}
            if arrow:
                row[name]["hours_of_the_paper_s_run"] = PAPER_IMAGES / rate / 3600
        ratios = ratio(row, "pLSTM", "ViT") if runs.keys() >= MODELS.keys() else {}
        yield {"batch": batch, "remat": remat, "arrow": arrow, **row, **ratios}


PARTS = {"checks": check_operators, "model": time_models, "operator": time_operators}


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """All that a GPU is asked for, the most important part first; no part begins after --seconds."""
    start = time.monotonic()
    for part in options.parts:
        if time.monotonic() - start > options.seconds:
            yield {"part": part, "skipped": "the time was up"}
            continue
        rows = PARTS[part](options)
        while True:
            row, error = attempt(lambda rows=rows: next(rows, None))
            if row is None and not error:
                break
            yield {"part": part, **(row or error)}


SUBJECTS = {
    "gpu": Subject(
        measure,
        {
            "--tiny": {"action": "store_true", "help": "the smallest sizes: figures without meaning"},
            "--parts": option(list(PARTS), "to run", str, choices=PARTS),
            "--seconds": option(480.0, "no part begins after these", float),
        },
    )
}
