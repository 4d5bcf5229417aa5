"""What a training step costs beside time: compilation against the depth, and memory as XLA plans it."""

from __future__ import annotations

import argparse
import functools
import os
import statistics
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from plstm.ops.grid import plstm2d
from scripts.benchmark_model import MODELS, Repeated, build_step
from scripts.measuring import ROOT, compile_step, positive, time_interleaved, write_report
from scripts.operators import draw_operator_inputs, gradient_step


def add_subjects(subjects) -> None:
    """Adds `compile` and `memory` to the benchmark's command line."""
    compiling = subjects.add_parser("compile", help="seconds to compile a training step, by depth")
    compiling.add_argument("--depths", type=positive, nargs="+", default=[4, 12, 24], help="default 4 12 24")
    compiling.set_defaults(run=benchmark_compile)
    memory = subjects.add_parser("memory", help="planned memory and time with and without model.remat; the operator's")
    memory.add_argument("--sizes", type=positive, nargs="+", default=[192, 384], help="pixels a side (default 192 384)")
    memory.add_argument("--grid", type=positive, default=48, help="of the operator (default 48)")
    memory.set_defaults(run=benchmark_memory)
    for parser, name in ((compiling, "compile"), (memory, "memory")):
        parser.add_argument("--batch", type=positive, default=8, help="images a step (default 8)")
        parser.add_argument("--repeats", type=positive, default=7, help="the median is over these (default 7)")
        parser.add_argument("--out", type=Path, help=f"default results/benchmarks/{name}-<backend>.json")


def benchmark_compile(options: argparse.Namespace) -> None:
    """Compiles each model at each depth, in turns, without any cache."""
    jax.config.update("jax_enable_compilation_cache", False)
    settings = {"batch": options.batch, "repeats": options.repeats, "load_average_at_start": os.getloadavg()[0]}
    cases = [(name, depth) for depth in options.depths for name in MODELS]
    seconds = {case: [] for case in cases}
    for repeat in range(options.repeats + 1):
        for name, depth in cases:
            jax.clear_caches()
            step, *arguments = build_step(MODELS[name](depth=depth, dtype="float32"), options.batch)
            if repeat:
                seconds[name, depth].append(compile_step(step, tuple(arguments))["compile_seconds"])
            elif depth == cases[0][1]:  # to warm up
                compile_step(step, tuple(arguments))
    rows = []
    table = Table(title="Seconds to compile a training step")
    for column in ("depth", *MODELS, "ratio"):
        table.add_column(column, justify="right")
    for depth in options.depths:
        times = {name: seconds[name, depth] for name in MODELS}
        medians = {name: statistics.median(times[name]) for name in MODELS}
        row = {name: {"median_seconds": medians[name], "seconds": times[name]} for name in MODELS}
        rows.append({"depth": depth, **row, "ratio": medians["pLSTM"] / medians["ViT"]})
        table.add_row(str(depth), *(f"{medians[name]:.1f}" for name in MODELS), f"{rows[-1]['ratio']:.2f}")
    path = options.out or ROOT / f"results/benchmarks/compile-{jax.default_backend()}.json"
    write_report(path, settings, rows)
    Console().print(table)
    print(f"Written to {path}")


def benchmark_memory(options: argparse.Namespace) -> None:
    """Steps with kept and with recomputed blocks, in turns; then the operator's forms on one large grid."""
    settings = {"batch": options.batch, "repeats": options.repeats, "load_average_at_start": os.getloadavg()[0]}
    path = options.out or ROOT / f"results/benchmarks/memory-{jax.default_backend()}.json"
    rows = []
    table = Table(title=f"Memory that XLA plans for {options.batch} images, MiB, and time")
    for column in ("what", "kept", "recomputed", "memory ratio", "time ratio"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for size in options.sizes:
        for name, make in MODELS.items():
            configs = {key: make(image_size=size, dtype="float32", remat=key == "recomputed") for key in KEPT}
            steps = {key: Repeated(config, options.batch) for key, config in configs.items()}
            row = {"what": f"{name}, {size} pixels", **compare(steps, options.repeats)}
            rows.append(row)
            table.add_row(row["what"], *(f"{row[key]['memory_bytes'] / 2**20:.0f}" for key in KEPT),
                          f"{row['memory_ratio']:.2f}", f"{row['time_ratio']:.2f}")  # fmt: skip
            write_report(path, settings, rows)
    Console().print(table)
    for structure in ("rank_one", "no_ru"):
        arguments = draw_operator_inputs(structure, options.grid, options.batch, 3, 64)
        row = {"what": f"operator, {structure}, {options.grid}x{options.grid}"}
        for method in ("parallel", "chunkwise"):
            operator = functools.partial(plstm2d, method=method, structure=structure)
            row[method] = {"memory_bytes": compile_step(gradient_step(operator), arguments)["memory_bytes"]}
            print(f"{row['what']}, {method}: {row[method]['memory_bytes'] / 2**20:,.0f} MiB", flush=True)
        rows.append(row)
        write_report(path, settings, rows)
    print(f"Written to {path}")


KEPT = ("kept", "recomputed")


def compare(steps: dict, repeats: int) -> dict:
    """Times and planned memory of two steps, and the second's over the first's."""
    seconds = time_interleaved(steps, (), repeats)
    found = {}
    for key, step in steps.items():
        found[key] = {"median_seconds": statistics.median(seconds[key]), "seconds": seconds[key], **step.report}
    kept, recomputed = (found[key] for key in KEPT)
    found["memory_ratio"] = recomputed["memory_bytes"] / kept["memory_bytes"]
    found["time_ratio"] = recomputed["median_seconds"] / kept["median_seconds"]
    return found
