"""Training steps with freed memory kept (`plstm.training.memory.keep_freed_memory`) and with glibc's own ways.

Each measurement is a process of its own, for malloc cannot be turned back; the processes take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
from rich.console import Console
from rich.table import Table

from plstm.training.memory import keep_freed_memory
from scripts.benchmark_graphs import Epochs
from scripts.benchmark_model import MODELS, Repeated
from scripts.measuring import ROOT, positive, write_report

HUGE_PAGES = "glibc.malloc.hugetlb=1"  # as the Makefile sets it
WARM_UP = 3


def add_subject(subjects) -> None:
    """Adds `allocator` to the benchmark's command line."""
    parser = subjects.add_parser("allocator", help="training steps with freed memory kept and given back")
    parser.add_argument(
        "--models", choices=MODELS, nargs="*", default=list(MODELS), help="of 192 pixels (default both)"
    )
    parser.add_argument("--sets", nargs="*", default=[], help="epochs of the graph pLSTM on these sets (default none)")
    parser.add_argument("--steps", type=positive, default=12, help="steps, or epochs, a process (default 12)")
    parser.add_argument("--rounds", type=positive, default=3, help="processes of each kind (default 3)")
    parser.add_argument("--out", type=Path, help="default results/benchmarks/allocator-cpu.json")
    parser.set_defaults(run=benchmark_allocator)


def benchmark_allocator(options: argparse.Namespace) -> None:
    """Measures every subject with and without huge pages, kept and not, and writes the report."""
    load, rows = os.getloadavg()[0], []
    for subject in [*options.models, *options.sets]:
        for huge in (False, True):
            found = {True: [], False: []}
            for _ in range(options.rounds):
                for keep, measured in found.items():
                    measured.append(measure_apart(subject, options.steps, huge=huge, keep=keep))
            row = {"subject": subject, "huge_pages": huge}
            row |= {name: summarise(found[keep]) for name, keep in (("kept", True), ("given_back", False))}
            rows.append(row | {"speedup": row["given_back"]["median_seconds"] / row["kept"]["median_seconds"]})
    print_rows(rows)
    path = options.out or ROOT / "results/benchmarks/allocator-cpu.json"
    write_report(path, {"steps": options.steps, "rounds": options.rounds, "load_average_at_start": load}, rows)
    print(f"Written to {path}")


def measure_apart(subject: str, steps: int, *, huge: bool, keep: bool) -> dict:
    """What `measure` finds in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment |= {"GLIBC_TUNABLES": HUGE_PAGES} if huge else {}
    command = [sys.executable, __file__, subject, str(steps), *(["--keep"] if keep else [])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(subject: str, steps: int) -> dict:
    """Seconds of every step, pages that the system had to clear for them, and the process's peak memory."""
    run = Repeated(MODELS[subject](image_size=192), 8) if subject in MODELS else Epochs("plstm", subject)
    for _ in range(WARM_UP):
        jax.block_until_ready(run())
    before, seconds = resource.getrusage(resource.RUSAGE_SELF), []
    for _ in range(steps):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF)
    faults, system = after.ru_minflt - before.ru_minflt, after.ru_stime - before.ru_stime
    peak = after.ru_maxrss * 1024
    return {"seconds": seconds, "page_faults": faults, "system_seconds": system, "peak_bytes": peak}


def summarise(measured: list[dict]) -> dict:
    """Of the processes of one kind: every step's seconds, their median, and means of the rest."""
    seconds = [second for one in measured for second in one["seconds"]]
    means = {name: statistics.fmean(one[name] for one in measured) for name in measured[0] if name != "seconds"}
    return {"median_seconds": statistics.median(seconds), "seconds": seconds} | means


def print_rows(rows: list[dict]) -> None:
    """Prints the table."""
    table = Table(title="Freed memory kept / given back to the system")
    for column in ("subject", "huge pages", "median ms", "speedup", "page faults", "peak MiB"):
        table.add_column(column, justify="left" if column == "subject" else "right")
    for row in rows:
        kept, given = row["kept"], row["given_back"]
        table.add_row(
            row["subject"],
            "yes" if row["huge_pages"] else "no",
            f"{1e3 * kept['median_seconds']:.0f} / {1e3 * given['median_seconds']:.0f}",
            f"{row['speedup']:.2f}",
            f"{kept['page_faults']:,.0f} / {given['page_faults']:,.0f}",
            f"{kept['peak_bytes'] / 2**20:,.0f} / {given['peak_bytes'] / 2**20:,.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One measurement, for benchmark_allocator; prints a line of JSON.")
    parser.add_argument("subject")
    parser.add_argument("steps", type=int)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.keep and not keep_freed_memory():
        sys.exit("freed memory cannot be kept here: see plstm.training.memory.keep_freed_memory")
    jax.config.update("jax_compilation_cache_dir", str(Path("~/.cache/plstm/jax").expanduser()))
    print(json.dumps(measure(options.subject, options.steps)))
