"""What a GPU is asked for in one call: training steps at full batches.

Needs jax, flax, optax and numpy alone. What fails leaves its error in the record. `make test-gpu` checks the numbers,
and `benchmark.py tune --batches 32 --dtype bfloat16` times the operator's forms.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import time
from collections.abc import Iterator
from functools import partial

import jax

from plstm.models import VisionConfig
from scripts.benchmarks.harness import Row, Subject, compare, option, ratio
from scripts.benchmarks.models import MODELS, TrainingStep, make_step

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


def fitting_step(config: VisionConfig, batch: int) -> tuple[TrainingStep, Row]:
    """As `make_step`. Raises MemoryError where the plan does not fit a device."""
    step, report = make_step(config, batch)
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit and report["memory_bytes"] > limit:
        raise MemoryError(f"needs {report['memory_bytes'] / 2**30:.1f} GiB of {limit / 2**30:.1f} a device")
    return step, report


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Training steps at full batches: images a second, share of all devices' peak, hours of the paper's arrow run."""
    start, kind = time.monotonic(), jax.devices()[0].device_kind
    peak = next((rate for name, rate in PEAKS.items() if re.search(rf"\b{name}\b", kind)), None)
    for case, (batch, both, own) in (TINY if options.tiny else CASES).items():
        if time.monotonic() - start > options.seconds:
            yield {"case": case, "skipped": "the time was up"}
            continue
        configs = {name: make(**both, **own.get(name, {})) for name, make in MODELS.items()}
        if jax.default_backend() == "gpu":
            configs["pLSTM, fused"] = dataclasses.replace(configs["pLSTM"], method="fused")
        makers = {name: partial(fitting_step, config, batch) for name, config in configs.items()}
        found = compare(makers, options.repeats, tolerant=True)
        timed = {name: row for name, row in found.items() if "median_seconds" in row}
        for row in timed.values():
            row["images_per_second"] = batch / row["median_seconds"]
            row["utilisation"] = peak and row["flops"] / row["median_seconds"] / (peak * jax.device_count())
            row["hours_of_the_paper_s_arrow_run"] = PAPER_IMAGES / row["images_per_second"] / 3600
        ratios = ratio(found, "pLSTM", "ViT") if timed.keys() >= MODELS.keys() else {}
        yield {"case": case, "batch": batch, **found, **ratios}


TINY_OPTION = {"action": "store_true", "help": "the smallest sizes: figures without meaning"}
SUBJECTS = {"gpu": Subject(measure, {"--tiny": TINY_OPTION, "--seconds": option(480.0, "no case begins later", float)})}
