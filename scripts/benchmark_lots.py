"""The 2-D operator a lot of its rows at a time against all at once (`plstm.ops.grid.chunks`)."""

from __future__ import annotations

import argparse
import functools
import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from plstm.ops.grid import STRUCTURES, by_matrix
from plstm.ops.grid.chunks import num_chunks
from scripts.measuring import ROOT, compare_steps, positive, write_report
from scripts.operators import draw_operator_inputs, gradient_step

HEADS, DIM = 3, 64
CASES = ((8, 128), (12, 128), (16, 32), (24, 16))  # sides of the grid, images


def add_subject(subjects) -> None:
    """Adds `lots` to the benchmark's command line."""
    parser = subjects.add_parser("lots", help="the operator in lots that stay in the cache, against all rows at once")
    parser.add_argument("--structures", choices=STRUCTURES, nargs="+", default=list(STRUCTURES), help="default: all")
    shown = " ".join(f"{grid}x{images}" for grid, images in CASES)
    parser.add_argument("--cases", type=case, nargs="+", default=CASES, metavar="SIDExIMAGES", help=f"default {shown}")
    parser.add_argument("--repeats", type=positive, default=7, help="the median is over these (default 7)")
    parser.add_argument("--out", type=Path, help="default results/benchmarks/lots-<backend>.json")
    parser.set_defaults(run=benchmark_lots)


def case(text: str) -> tuple[int, int]:
    """Side of the grid and number of images of SIDExIMAGES."""
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be SIDExIMAGES, such as 12x128")
    grid, images = map(int, text.split("x"))
    return grid, images


def benchmark_lots(options: argparse.Namespace) -> None:
    """Times forward and backward passes in turns, and writes the report."""
    settings = {"heads": HEADS, "dim": DIM, "repeats": options.repeats, "load_average_at_start": os.getloadavg()[0]}
    rows = []
    table = Table(title="The operator, forward and backward: in lots / all at once")
    for column in ("grid", "images", "structure", "lots", "median ms", "speedup", "memory MiB"):
        table.add_column(column, justify="left" if column == "structure" else "right")
    for structure in options.structures:
        for grid, images in options.cases:
            rows.append(measure(structure, grid, images, options.repeats))
            lots, whole = rows[-1]["in_lots"], rows[-1]["at_once"]
            table.add_row(
                f"{grid}x{grid}", str(images), structure, str(rows[-1]["lots"]),
                f"{1e3 * lots['median_seconds']:.0f} / {1e3 * whole['median_seconds']:.0f}",
                f"{rows[-1]['speedup']:.2f}",
                f"{lots['memory_bytes'] / 2**20:.0f} / {whole['memory_bytes'] / 2**20:.0f}",
            )  # fmt: skip
    Console().print(table)
    path = options.out or ROOT / f"results/benchmarks/lots-{jax.default_backend()}.json"
    write_report(path, settings, rows)
    print(f"Written to {path}")


def measure(structure: str, grid: int, images: int, repeats: int) -> dict:
    """Both ways for one shape."""
    arguments = draw_operator_inputs(structure, grid, images, HEADS, DIM)
    lots = num_chunks(images * HEADS, grid**4 * jnp.dtype(jnp.float32).itemsize)
    steps = {
        name: gradient_step(functools.partial(by_matrix, structure=structure, form="auto", chunks=number))
        for name, number in (("in_lots", lots), ("at_once", 1))
    }
    found = compare_steps(steps, arguments, repeats)
    speedup = found["at_once"]["median_seconds"] / found["in_lots"]["median_seconds"]
    return {"structure": structure, "grid": grid, "images": images, "lots": lots, **found, "speedup": speedup}
