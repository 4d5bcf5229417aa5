"""Measure parts of this repository against their yardsticks, in one process, interleaved.

    python scripts/benchmark.py operator                              # the 2-D operator, quad-tree, plain scan
    python scripts/benchmark.py operator --grids 8 --repeats 1        # a look, without meaning
    python scripts/benchmark.py lots                                  # ... a lot of rows at a time, against all at once
    python scripts/benchmark.py model                                 # training steps of pLSTM-Vis-T against ViT-T
    python scripts/benchmark.py model --sizes 192 384 576 768         # ... and how they grow with the image
    python scripts/benchmark.py scaling                               # ... from 192 to 768 pixels, with a plot
    python scripts/benchmark.py compile                               # compilation against the depth
    python scripts/benchmark.py memory                                # planned memory, with and without model.remat
    python scripts/benchmark.py data                                  # views a second and core of each ImageNet recipe
    python scripts/benchmark.py allocator                             # freed memory kept, and given back to the system
    python scripts/benchmark.py run                                   # whole runs of train.py, start and end included
    python scripts/benchmark.py tune                                  # what method="auto" takes: plstm/ops/tuned.py
    python scripts/benchmark.py graphs --sets MUTAG NCI1              # epochs of the graph models; sets in $PLSTM_DATA

Prints a table and writes a JSON file that holds every single time next to the machine, the versions, the commit and the
command. For GPUs there is scripts/benchmark_gpu.py, which does all of its work in one call.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import jax
from rich.console import Console
from rich.table import Table

from plstm.ops.grid import METHODS, STRUCTURES, plstm2d
from plstm.training.memory import keep_freed_memory
from scripts import (
    benchmark_allocator,
    benchmark_cost,
    benchmark_data,
    benchmark_graphs,
    benchmark_lots,
    benchmark_model,
    benchmark_run,
    tune,
)
from scripts.measuring import compile_step, positive, time_interleaved, write_report
from scripts.operators import draw_operator_inputs, gradient_step, quadtree_plstm2d


def benchmark_operator(options: argparse.Namespace) -> None:
    """Times the operator's forms on each grid and structure, and writes the report."""
    rows = []
    shape = {"batch": options.batch, "heads": options.heads, "dim": options.dim}
    settings = {"dtype": "float32", "repeats": options.repeats, "load_average_at_start": os.getloadavg()[0], **shape}
    for grid in options.grids:
        yardstick = None
        for structure in STRUCTURES:
            arguments = draw_operator_inputs(structure, grid, **shape)
            methods = {"ours": options.method, "scan": "recurrent"}
            operators = {n: functools.partial(plstm2d, method=m, structure=structure) for n, m in methods.items()}
            forms = {name: compile_step(gradient_step(operator), arguments) for name, operator in operators.items()}
            yardstick = yardstick or compile_step(gradient_step(quadtree_plstm2d), arguments)
            forms["quadtree"] = yardstick
            seconds = time_interleaved({name: form["run"] for name, form in forms.items()}, arguments, options.repeats)
            row = {"grid": grid, "structure": structure, "method": options.method}
            for name, form in forms.items():
                row[name] = {
                    "median_seconds": statistics.median(seconds[name]),
                    "seconds": seconds[name],
                    "compile_seconds": form["compile_seconds"],
                    "memory_bytes": form["memory_bytes"],
                }
            ours = row["ours"]["median_seconds"]
            row["speedup"] = row["quadtree"]["median_seconds"] / ours
            row["speedup_over_scan"] = row["scan"]["median_seconds"] / ours
            rows.append(row)
    print_operator_rows(rows)
    path = options.out or ROOT / f"results/benchmarks/operator-{jax.default_backend()}.json"
    write_report(path, settings, rows)
    print(f"Written to {path}")


def print_operator_rows(rows: list[dict]) -> None:
    """Prints the table."""
    forms = ("ours", "quadtree", "scan")
    table = Table(title="pLSTM on a grid, forward and backward: ours / the paper's quad-tree / the plain scan")
    for column in ("grid", "structure", "median ms", "speedup", "compile s", "memory MiB"):
        table.add_column(column, justify="left" if column == "structure" else "right")
    for row in rows:
        table.add_row(
            f"{row['grid']}x{row['grid']}",
            row["structure"],
            " / ".join(f"{1e3 * row[form]['median_seconds']:.1f}" for form in forms),
            f"{row['speedup']:.1f} / {row['speedup_over_scan']:.1f}",
            " / ".join(f"{row[form]['compile_seconds']:.1f}" for form in forms),
            " / ".join(f"{row[form]['memory_bytes'] / 2**20:.0f}" for form in forms),
        )
    Console().print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subjects = parser.add_subparsers(required=True, metavar="subject")
    operator = subjects.add_parser("operator", help="the 2-D operator against the paper's quad-tree")
    operator.add_argument("--grids", type=positive, nargs="+", default=[12, 24], help="side lengths (default 12 24)")
    operator.add_argument("--batch", type=positive, default=8)
    operator.add_argument("--heads", type=positive, default=3)
    operator.add_argument("--dim", type=positive, default=64, help="of a head's queries, keys and values (default 64)")
    operator.add_argument("--method", choices=METHODS, default="auto")
    operator.add_argument("--repeats", type=positive, default=7, help="the median is over these (default 7)")
    operator.add_argument("--out", type=Path, help="default results/benchmarks/operator-<backend>.json")
    operator.set_defaults(run=benchmark_operator)
    benchmark_lots.add_subject(subjects)
    benchmark_allocator.add_subject(subjects)
    benchmark_model.add_subject(subjects)
    benchmark_cost.add_subjects(subjects)
    benchmark_data.add_subject(subjects)
    benchmark_run.add_subject(subjects)
    tune.add_subject(subjects)
    benchmark_graphs.add_subject(subjects)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    keep_freed_memory()  # as train.py does
    options.run(options)


if __name__ == "__main__":
    main()
