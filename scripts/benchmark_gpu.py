"""Everything that a GPU is asked for, in one call of under ten minutes.

    python scripts/benchmark_gpu.py                        # writes results/benchmarks/gpu.json as it goes
    python scripts/benchmark_gpu.py --tiny --out x.json    # its smallest form, for a look or a test on a CPU

Needs jax, flax, optax and numpy alone. Parts, each of which may fail by itself, with its error in the report:

    checks     every form of the operator against the equations, values and gradients, on this device
    operator   every form, forward and backward, bfloat16 inputs
    model      training steps of pLSTM-Vis-T and ViT-T, on GPUs also of pLSTM-Vis-T with method="fused": time, images/s,
               model FLOPs utilisation, memory; and as arrow pointing has them, with the hours of the paper's run
               (39,050 steps of 128, without its evaluations)
    profile    the five costliest operations of a step
    tests      `pytest -m gpu`, where pytest is installed

A form of the operator that fails, as kernels may that a compiler does not take, leaves its error in its place.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves memory to the tests, which are another process

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data.files import write_file
from plstm.models.flops import forward_flops
from plstm.models.vision import VisionConfig, build_model
from plstm.ops.grid import FORMS, by_matrix, plstm2d
from plstm.ops.grid.oracle import plstm2d_oracle
from plstm.training.environment import describe_environment
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_train_step
from scripts.measuring import compile_step, note_results, time_interleaved
from scripts.operators import draw_operator_inputs, gradient_step

STEPS_OF_THE_PAPER, BATCH_OF_THE_PAPER = 39_050, 128
# Operations a second of dense bfloat16 products, from the makers' data sheets.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "V100": 125e12}
STRUCTURES = ("rank_one", "no_ru")
OPTIMIZER = SimpleNamespace(name="adamw", b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.05, clip_norm=1.0)
MODELS = {
    "pLSTM": functools.partial(VisionConfig, modes=["P", "D"]),
    "ViT": functools.partial(VisionConfig, modes=["attention"], pooling="class_token", layer_scale=1e-4),
}
ARROW = {"pLSTM": {"heads": 6, "classes": 2}, "ViT": {"heads": 6, "classes": 2, "layer_scale": 1.0}}  # there

# What the kernels leave open, of which "fused" is what method="fused" takes.
FUSED = {
    "fused": {},
    "fused_tf32x3": {"precision": jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3},
    "fused_small": {"block": 32, "warps": 4},
}


def operators(structure: str, variants: bool = True) -> dict[str, Callable]:
    """The forms that are fit for this backend; kernels compile for seconds, so their variants may be left out."""
    found = {form: functools.partial(by_matrix, structure=structure, form=form) for form in FORMS[structure]}
    if jax.default_backend() != "cpu":
        found.pop("batch_minor")  # made for CPUs
    if jax.default_backend() == "gpu":
        for name in FUSED if variants else ["fused"]:
            found[name] = functools.partial(fused_kernels, structure=structure, **FUSED[name])
    return found | {"chunkwise": functools.partial(plstm2d, structure=structure, method="chunkwise")}


def fused_kernels(*arguments, **options) -> jax.Array:
    """`plstm.ops.grid.fused.fused`, imported where it is called: a JAX without its backend costs this form alone."""
    from plstm.ops.grid.fused import fused

    return fused(*arguments, **options)


def check_operators(options: argparse.Namespace, report: Callable) -> None:
    """The largest difference from the oracle over outputs and gradients, relative to each tensor's largest value."""
    with jax.default_matmul_precision("highest"):
        for structure in STRUCTURES:
            arguments = draw_operator_inputs(structure, 5 if options.tiny else 12, 2, 2, 8 if options.tiny else 64)
            expected = jax.jit(gradient_step(plstm2d_oracle))(*arguments)
            for name, operator in operators(structure).items():
                row = {"structure": structure, "form": name, "passed": False}
                try:
                    found = jax.block_until_ready(jax.jit(gradient_step(operator))(*arguments))
                except Exception as error:  # the other forms are worth having
                    report(row | {"error": describe(error)})
                    continue
                wanted = share_gradients(expected, structure)
                errors = [relative_error(*pair) for pair in zip(jax.tree.leaves(share_gradients(found, structure)),
                                                                jax.tree.leaves(wanted), strict=True)]  # fmt: skip
                error = float(np.max(errors))  # NaN where one is
                report(row | {"error": error, "passed": error < 1e-4})


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def share_gradients(result: tuple, structure: str) -> tuple:
    """Output and gradients with those of gates that are one gate added up, so that forms which read one can compare."""
    output, (d_q, d_k, d_v, gates, d_direct) = result
    if structure == "rank_one":
        shared = (gates.s_r, gates.s_d, gates.t_rl + gates.t_ru, gates.t_dl + gates.t_du, gates.m_l + gates.m_u)
    else:
        shared = tuple(gate for name, gate in gates._asdict().items() if name != "t_ru")
    return output, d_q, d_k, d_v, shared, d_direct


def relative_error(found: jax.Array, expected: jax.Array) -> float:
    return float(jnp.abs(found - expected).max() / jnp.maximum(jnp.abs(expected).max(), 1e-30))


def time_operators(options: argparse.Namespace, report: Callable) -> None:
    """Every form in turns."""
    for grid, batch in [(4, 2)] if options.tiny else [(12, 128), (14, 128), (24, 32), (48, 4)]:
        for structure in STRUCTURES:
            arguments = draw_operator_inputs(structure, grid, batch, 3, 8 if options.tiny else 64)
            q, k, v, gates, direct, cotangent = arguments
            arguments = (*(x.astype(jnp.bfloat16) for x in (q, k, v)), gates, direct, cotangent.astype(jnp.bfloat16))
            steps, runs = {}, {}
            for name, operator in operators(structure, variants=grid in (12, 24)).items():
                try:
                    steps[name] = compile_step(gradient_step(operator), arguments)
                    runs[name] = steps[name].pop("run")
                    jax.block_until_ready(runs[name](*arguments))
                except Exception as error:  # the other forms are worth having
                    runs.pop(name, None)
                    steps[name] = {"error": describe(error)}
            seconds = time_interleaved(runs, arguments, options.repeats)
            for name in runs:
                steps[name] |= {"median_seconds": statistics.median(seconds[name]), "seconds": seconds[name]}
            report({"structure": structure, "grid": grid, "batch": batch, "forms": steps})


class Step:
    """A compiled training step that feeds itself: AdamW, cross entropy, random images that stay on the device."""

    def __init__(self, config: VisionConfig, batch: int):
        optimizer = build_optimizer(OPTIMIZER, lambda step: 1e-4)
        graphdef, state = init_state(build_model(config, 0), optimizer)
        layout = Layout(make_mesh(batch))

        def loss(model, batch, key):
            logits = model(batch["image"].astype(jnp.float32) / 127.5 - 1, key=key)
            hits = (logits.argmax(-1) == batch["label"]).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), hits.mean()

        step = make_train_step(graphdef, optimizer, lambda step: 1e-4, loss, key=jax.random.key(0), layout=layout)
        rng = np.random.default_rng(0)
        images = rng.integers(256, size=(batch, config.image_size, config.image_size, 3), dtype=np.uint8)
        labels = rng.integers(config.classes, size=batch, dtype=np.int32)
        self._data = layout.place_rows({"image": images, "label": labels})
        self._state = layout.place_state(state)
        self.report = compile_step(step, (self._state, self._data))
        self.run = self.report.pop("run")
        self.flops = 3 * batch * forward_flops(config)

    def __call__(self):
        self._state, metrics = self.run(self._state, self._data)
        return metrics


def peak() -> float | None:
    """What this device can do a second, None where it is not known."""
    kind = jax.devices()[0].device_kind
    return next((rate for name, rate in PEAKS.items() if re.search(rf"\b{name}\b", kind)), None)


def configs(options: argparse.Namespace, arrow: bool = False) -> dict[str, VisionConfig]:
    small = dict(image_size=32, dim=16, heads=2, depth=2, classes=10) if options.tiny else {}
    found = {name: make(**((ARROW[name] if arrow else {}) | small)) for name, make in MODELS.items()}
    if jax.default_backend() == "gpu":
        found["pLSTM, fused"] = dataclasses.replace(found["pLSTM"], method="fused")
    return found


def time_models(options: argparse.Namespace, report: Callable) -> None:
    """The models in turns at each batch; one that does not fit leaves its error in its place."""
    cases = [(128, False, False), (128, False, True), (1024, False, False), (1024, True, False)]
    for batch, remat, arrow in [(2, False, True)] if options.tiny else cases:
        row, steps = {"batch": batch, "remat": remat, "arrow": arrow}, {}
        for name, config in configs(options, arrow).items():
            config.remat = remat
            try:
                steps[name] = Step(config, batch)
                jax.block_until_ready(steps[name]())
            except Exception as error:  # the others are worth having
                steps.pop(name, None)
                row[name] = {"error": describe(error)}
        seconds = time_interleaved(steps, (), options.repeats)
        for name, step in steps.items():
            median = statistics.median(seconds[name])
            row[name] = {"median_seconds": median, "seconds": seconds[name], "flops": step.flops, **step.report}
            row[name]["images_per_second"] = batch / median
            row[name]["utilisation"] = step.flops / median / peak() if peak() else None
            if arrow:
                row[name]["hours_of_the_paper_s_run"] = STEPS_OF_THE_PAPER * BATCH_OF_THE_PAPER * median / batch / 3600
        if steps.keys() >= MODELS.keys():
            row["ratio"] = row["pLSTM"]["median_seconds"] / row["ViT"]["median_seconds"]
        report(row)
        del steps


def profile_models(options: argparse.Namespace, report: Callable) -> None:
    """The five operations of a step that take most of its time, with where they come from in the model."""
    batch, steps = (2, 1) if options.tiny else (128, 5)
    for name, config in configs(options).items():
        step = Step(config, batch)
        jax.block_until_ready(step())
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for _ in range(steps):
                    metrics = step()
                jax.block_until_ready(metrics)
            spent = operation_times(Path(folder))
        text, total = step.run.as_text(), sum(spent.values())
        top = [
            {"operation": operation, "share": nanoseconds / total, "seconds_a_step": nanoseconds * 1e-9 / steps,
             "from": origin(text, operation)}
            for operation, nanoseconds in spent.most_common(5)
        ]  # fmt: skip
        report({"model": name, "batch": batch, "seconds_a_step": total * 1e-9 / steps, "top": top})


def operation_times(folder: Path) -> collections.Counter:
    """Nanoseconds by operation, loops and calls left out, for they contain others."""
    spent: collections.Counter = collections.Counter()
    for path in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    operation = dict(event.stats).get("hlo_op")
                    if operation and not re.match(r"(while|call|conditional)\b", str(operation)):
                        spent[str(operation)] += event.duration_ns
    return spent


def origin(text: str, operation: str) -> str | None:
    """The line of the model that an operation of a compiled program comes from."""
    found = re.search(rf'%{re.escape(operation)} = .*?op_name="([^"]*)"', text)
    return found and found.group(1)


def run_tests(options: argparse.Namespace, report: Callable) -> None:
    """The suite's tests for accelerators."""
    if options.tiny or importlib.util.find_spec("pytest") is None:
        return report({"skipped": "tiny" if options.tiny else "pytest is not installed"})
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/ops", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    report({"status": done.returncode, "output": done.stdout[-2000:]})


PARTS = {
    "checks": check_operators,
    "model": time_models,
    "profile": profile_models,
    "operator": time_operators,
    "tests": run_tests,
}


def main() -> None:
    """Runs the parts in the order of their worth, none begun after the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes: figures without meaning")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=7, help="the median is over these (default 7)")
    parser.add_argument("--seconds", type=float, default=480, help="no part begins after these (default 480)")
    parser.add_argument("--out", type=Path, default=ROOT / "results/benchmarks/gpu.json")
    options = parser.parse_args()
    start = time.monotonic()
    report = {"command": f"python scripts/benchmark_gpu.py {' '.join(sys.argv[1:])}".strip()}
    report |= {"settings": {"repeats": options.repeats, "tiny": options.tiny}, **describe_environment(ROOT)}
    for part in options.parts:
        rows = report[part] = []

        def add(row: dict, part: str = part, rows: list = rows) -> None:
            rows.append(row)
            print(part, json.dumps(shortened(row)), flush=True)
            write_file(options.out, (json.dumps(report, indent=2) + "\n").encode())

        if time.monotonic() - start > options.seconds:
            add({"skipped": "the time was up"})
            continue
        try:
            PARTS[part](options, add)
        except Exception as error:  # the other parts are worth having
            traceback.print_exc()
            add({"error": describe(error)})
    note_results(options.out)
    print(f"{time.monotonic() - start:.0f} s; written to {options.out}")


def shortened(value):
    """Without every single time, for the screen."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items() if key not in ("seconds", "memory_bytes")}
    return [shortened(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
