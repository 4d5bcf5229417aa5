"""Measures the forms of the 2-D operator and writes plstm/ops/tuned.py, by which `method="auto"` chooses."""

from __future__ import annotations

import argparse
import functools
import math
import os
import pprint
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from data.files import write_file
from plstm.ops import tuned
from plstm.ops.grid import FORMS, STRUCTURES, by_matrix, plstm2d
from scripts.measuring import ROOT, compare_steps, positive, write_report
from scripts.operators import draw_operator_inputs, gradient_step

HOPELESS = 2.5  # times slower than the best on one grid: not tried on larger ones
HEADS = 3
ALL_FORMS = tuple(dict.fromkeys(form for forms in FORMS.values() for form in forms))


def add_subject(subjects) -> None:
    """Adds `tune` to the benchmark's command line."""
    parser = subjects.add_parser("tune", help='measure the forms of the operator, for method="auto"')
    parser.add_argument("--grids", type=positive, nargs="+", default=[12, 24, 32, 48], help="sides of the grids")
    parser.add_argument("--batches", type=positive, nargs="+", default=[1, 3], help=f"images of {HEADS} heads")
    parser.add_argument("--dims", type=positive, nargs="+", default=[64], help="of a head (default 64)")
    parser.add_argument("--structures", choices=STRUCTURES, nargs="+", default=list(STRUCTURES), help="default: all")
    parser.add_argument("--forms", choices=ALL_FORMS, nargs="+", default=list(ALL_FORMS), help="of the matrix; all")
    parser.add_argument("--repeats", type=positive, default=7, help="the median is over these (default 7)")
    parser.add_argument("--out", type=Path, help="default results/benchmarks/tune-<backend>.json")
    parser.add_argument("--table", type=Path, default=ROOT / "plstm/ops/tuned.py", help="default plstm/ops/tuned.py")
    parser.set_defaults(run=tune)


def tune(options: argparse.Namespace) -> None:
    """Measures, writes the report after every row, and then the table."""
    backend = jax.default_backend()
    path = options.out or ROOT / f"results/benchmarks/tune-{backend}.json"
    settings = {"heads": HEADS, "repeats": options.repeats, "load_average_at_start": os.getloadavg()[0]}
    rows = []
    for structure in options.structures:
        for dim in options.dims:
            for batch in options.batches:
                forms = [form for form in options.forms if form in FORMS[structure]]
                if not forms:  # nothing to compare chunkwise with
                    continue
                forms += ["chunkwise"] * (batch == max(options.batches))  # whose cost an entry is the same
                for grid in sorted(options.grids):
                    rows.append(measure(structure, grid, batch, dim, forms, options.repeats))
                    best = min(form["median_seconds"] for form in rows[-1]["forms"].values())
                    slow = {name for name, f in rows[-1]["forms"].items() if f["median_seconds"] > HOPELESS * best}
                    forms = [form for form in forms if form not in slow or form == "chunkwise"]
                    write_report(path, settings, rows)
    print_rows(rows)
    known, found = tuned.TABLE.get(backend, {}), choose(rows)
    if len(options.forms) < 2:  # nothing to choose from
        del found["forms"]
    entry = {key: known.get(key, {}) | found.get(key, {}) for key in ("chunkwise_from", "forms")}  # the rest stays
    table = tuned.TABLE | {backend: entry | {"measured": name_of(path)}}
    write_file(options.table, source(table).encode())
    print(f"Written to {path} and {options.table}")


def measure(structure: str, grid: int, batch: int, dim: int, forms: list[str], repeats: int) -> dict:
    """Seconds of the forms for one shape, forward and backward, in turns."""
    arguments = draw_operator_inputs(structure, grid, batch, HEADS, dim)
    operators = {form: functools.partial(by_matrix, structure=structure, form=form) for form in forms}
    if "chunkwise" in forms:
        operators["chunkwise"] = functools.partial(plstm2d, structure=structure, method="chunkwise")
    steps = {form: gradient_step(operator) for form, operator in operators.items()}
    found = compare_steps(steps, arguments, repeats)
    fastest = min(forms, key=lambda form: found[form]["median_seconds"])
    print(f"{structure} {grid}x{grid}, batch {batch}, heads of {dim}: {fastest}", flush=True)
    return {"structure": structure, "grid": grid, "batch": batch, "dim": dim, "fastest": fastest, "forms": found}


def choose(rows: list[dict]) -> dict:
    """The table's entry for one backend; see plstm/ops/tuned.py."""
    structures = sorted({row["structure"] for row in rows})
    dims = sorted({row["dim"] for row in rows})
    return {
        "forms": {s: fastest_form([row for row in rows if row["structure"] == s]) for s in structures},
        "chunkwise_from": {
            s: {d: crossing([r for r in rows if r["structure"] == s and r["dim"] == d]) for d in dims}
            for s in structures
        },
    }  # fmt: skip


def fastest_form(rows: list[dict]) -> str:
    """The form of the gating matrix with the least mean ratio to the fastest one."""
    rows = [{n: f["median_seconds"] for n, f in row["forms"].items() if n != "chunkwise"} for row in rows]
    rows = [row for row in rows if row]

    def lost(form: str) -> float:
        return sum(math.log(row.get(form, HOPELESS * min(row.values())) / min(row.values())) for row in rows)

    return min(sorted({form for row in rows for form in row}), key=lost)


def crossing(rows: list[dict]) -> int | None:
    """Nodes from which the chunkwise form is the fastest on the widest batch that was measured.

    Between two grids the ratio is taken for a power of the nodes.
    """
    batch = max(row["batch"] for row in rows)
    rows = sorted((row for row in rows if row["batch"] == batch), key=lambda row: row["grid"])
    ratios = [(row["grid"] ** 2, advantage(row["forms"])) for row in rows]
    if ratios[-1][1] < 1:
        return None
    slower = [n for n, (_, ratio) in enumerate(ratios) if ratio < 1]
    if not slower:
        return ratios[0][0]
    (nodes, ratio), (more, higher) = ratios[slower[-1]], ratios[slower[-1] + 1]
    share = -math.log(ratio) / (math.log(higher) - math.log(ratio))
    return math.ceil(nodes * (more / nodes) ** share)


def advantage(forms: dict) -> float:
    """The time of the best form by a matrix over chunkwise; HOPELESS where there is none any more."""
    seconds = [form["median_seconds"] for name, form in forms.items() if name != "chunkwise"]
    return min(seconds) / forms["chunkwise"]["median_seconds"] if seconds else HOPELESS


def name_of(path: Path) -> str:
    return str(path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path)


def source(table: dict) -> str:
    """The module's text: its own docstring, and the table."""
    return f'"""{tuned.__doc__}"""\n\nTABLE = {pprint.pformat(table, width=110)}\n'


def print_rows(rows: list[dict]) -> None:
    table = Table(title="Forward and backward, ms")
    names = [*ALL_FORMS, "chunkwise"]
    for column in ("structure", "grid", "batch", "dim", *names):
        table.add_column(column, justify="left" if column == "structure" else "right")
    for row in rows:
        times = (f"{1e3 * row['forms'][n]['median_seconds']:.1f}" if n in row["forms"] else "" for n in names)
        table.add_row(row["structure"], f"{row['grid']}", str(row["batch"]), str(row["dim"]), *times)
    Console().print(table)
