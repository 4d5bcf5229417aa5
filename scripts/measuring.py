"""What benchmarks share: compiling, timing in turns, and a report that says where its numbers come from."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
from plstm.results.sums import refresh_sums

from data.files import write_file
from plstm.training.environment import describe_environment

ROOT = Path(__file__).resolve().parents[1]


def compile_step(step: Callable, arguments: tuple) -> dict:
    """Compiles a step for its arguments.

    Returns {"run": the executable, "compile_seconds", "memory_bytes": arguments, outputs and temporaries as XLA plans}.
    """
    start = time.perf_counter()
    run = jax.jit(step).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    plan = run.memory_analysis()
    planned = (
        plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes - plan.alias_size_in_bytes
    )
    return {"run": run, "compile_seconds": seconds, "memory_bytes": planned}


def time_interleaved(runs: dict[str, Callable], arguments: tuple, repeats: int) -> dict[str, list[float]]:
    """Seconds of every repeat of every run: one round to warm up, then the runs take turns."""
    seconds = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def compare_steps(steps: dict[str, Callable], arguments: tuple, repeats: int) -> dict[str, dict]:
    """Compiles the steps and times them in turns.

    Returns for each what `compile_step` tells, without the executable, and "median_seconds" and "seconds".
    """
    found = {name: compile_step(step, arguments) for name, step in steps.items()}
    seconds = time_interleaved({name: form.pop("run") for name, form in found.items()}, arguments, repeats)
    return {
        name: form | {"median_seconds": statistics.median(seconds[name]), "seconds": seconds[name]}
        for name, form in found.items()
    }


def write_report(path: Path, settings: dict, rows: list[dict]) -> None:
    """Writes the rows next to the command, the settings, the commit, the versions and the machine."""
    command = shlex.join(["python", "scripts/benchmark.py", *sys.argv[1:]])
    # What an allocation costs decides about much on CPUs; see docs/speed.md.
    settings = settings | {"glibc_tunables": os.environ.get("GLIBC_TUNABLES")}
    report = {"command": command, "settings": settings, **describe_environment(ROOT), "rows": rows}
    write_results(path, report)


def add_to_report(path: Path, **entries) -> None:
    """Adds entries to a report that was written before."""
    write_results(path, json.loads(path.read_text()) | entries)


def write_results(path: Path, report: dict) -> None:
    """Writes what a script found as JSON, and enters it into the digests; see `note_results`."""
    write_file(path, (json.dumps(report, indent=2) + "\n").encode())
    note_results(path)


def note_results(path: Path) -> None:
    """Enters a file that was written, if it lies in the repository's results, into their digests."""
    if path.resolve().is_relative_to(ROOT / "results"):
        refresh_sums(ROOT / "results")


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1")
    return int(text)
