"""The benchmark harness: a subject yields rows; it times in alternation, prints the rows and writes the record."""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from plstm.training.memory import keep_freed_memory
from scripts.common import ROOT, Parser, positive, provenance, write_results

Row = dict[str, Any]


class Subject(NamedTuple):
    """One thing to measure.

    measure: options -> rows, which the record keeps as they come. arguments: its options beside --repeats, by `option`.
    summarise: (rows, path of the record) -> further entries of the record.
    """

    measure: Callable[[argparse.Namespace], Iterator[Row]]
    arguments: Mapping[str, dict[str, Any]]
    summarise: Callable[[list[Row], Path], Row] = lambda rows, path: {}


def option(default: Any, help: str, type: Callable[[str], Any] = positive, **more: Any) -> dict[str, Any]:
    """Arguments of `add_argument`; one with a list as its default takes several values."""
    several = {"nargs": "+"} if isinstance(default, list) else {}
    return {"default": default, "help": help, "type": type, **several, **more}


def run_subject(name: str, subject: Subject, arguments: list[str]) -> None:
    """Measures one subject as its command line says, prints the rows and writes the record."""
    parser = Parser(subject.measure.__doc__, prog=f"benchmark.py {name}")
    for flag, details in subject.arguments.items():
        parser.add_argument(flag, **details)
    parser.add_argument("--repeats", **option(7, "the median is over these"))
    parser.add_argument("--out", type=Path, help="the record (default: results/benchmarks/<subject>-<backend>.json)")
    parser.add_argument("--check", action="store_true", help="check the arguments, measure nothing")
    options = parser.parse_args(arguments)
    if options.check:
        return print(f"{name}: the arguments are good")
    keep_freed_memory()  # as train.py does
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "check")}
    settings["load_average_at_start"] = os.getloadavg()[0]
    settings["glibc_tunables"] = os.environ.get("GLIBC_TUNABLES")  # decides what an allocation costs; see docs/speed.md
    path = options.out or ROOT / f"results/benchmarks/{name}-{jax.default_backend()}.json"
    rows: list[Row] = []
    record = {**provenance(), "settings": settings, "rows": rows}
    for row in subject.measure(options):
        rows.append(row)
        print(shown(row), flush=True)
        write_results(path, record)
    record |= {"peak_memory_bytes": peak_memory(), **subject.summarise(rows, path)}
    write_results(path, record)
    print(f"Written to {path}")


def shown(row: Row) -> str:
    """A row in words, without the single times."""
    words = []
    for name, value in row.items():
        if isinstance(value, dict):
            words.append(f"{name} ({shown(value)})")
        elif not isinstance(value, list):
            words.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(words)


def wall_seconds(run: Callable[[], Any]) -> float:
    """Seconds until what `run` returns is there."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def alternate(runs: Mapping[Any, Any], repeats: int, measure: Callable = wall_seconds) -> dict[Any, list]:
    """What `measure` finds in every repeat of every run: one round to warm up, then the runs take turns."""
    found: dict[Any, list] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            value = measure(run)
            if repeat:
                found[name].append(value)
    return found


def timing(seconds: list[float]) -> Row:
    """Single times and their median, as records have them."""
    return {"median_seconds": statistics.median(seconds), "seconds": seconds}


def ratio(found: Mapping[str, Row], above: str, below: str, name: str = "ratio") -> Row:
    """{name: ratio of the medians, name + "_by_round": median of the ratios within a round, where load drifts less}."""
    first, second = found[above], found[below]
    rounds = [a / b for a, b in zip(first["seconds"], second["seconds"], strict=True)]
    of_medians = first["median_seconds"] / second["median_seconds"]
    return {name: of_medians, f"{name}_by_round": statistics.median(rounds)}


def compile_step(step: Callable, arguments: tuple) -> tuple[Callable, Row]:
    """The executable, its compilation's seconds, and the bytes a device needs for it as XLA plans them."""
    start = time.perf_counter()
    run = jax.jit(step).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    plan = run.memory_analysis()
    used = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return run, {"compile_seconds": seconds, "memory_bytes": used - plan.alias_size_in_bytes}


def bind_step(step: Callable, arguments: tuple) -> tuple[Callable, Row]:
    """As `compile_step`, the arguments bound."""
    run, report = compile_step(step, arguments)
    return functools.partial(run, *arguments), report


def compare(makers: Mapping[str, Callable], repeats: int, tolerant: bool = False) -> dict[str, Row]:
    """Reports of compiled runs, with their times in turns.

    makers: name -> function that returns a run and its report. tolerant: an error stands in the place of what cannot be
    compiled or run, because the others are worth having.
    """
    found, runs = {}, {}
    for name, make in makers.items():
        try:
            run, found[name] = make()
            jax.block_until_ready(run())
            runs[name] = run
        except Exception as error:
            if not tolerant:
                raise
            found[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
    for name, seconds in alternate(runs, repeats).items():
        found[name] |= timing(seconds)
    return found


def peak_memory() -> int:
    """The most bytes in use so far: of the fullest device, or of this process where devices do not count."""
    used = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    return max((peak for peak in used if peak), default=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
