"""The benchmark harness: it times runs in alternation, and what it measures becomes rows of numbers."""

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

Row = dict[str, Any]


def shown(row: Row) -> str:
    """A row in words, without the single times."""
    texts = {dict: lambda value: f"({shown(value)})", float: "{:.4g}".format}
    kept = {name: value for name, value in row.items() if not isinstance(value, list)}
    return ", ".join(f"{name} {texts.get(type(value), str)(value)}" for name, value in kept.items())


def wall_seconds(run: Callable[[], Any]) -> float:
    """Seconds until what `run` returns is there."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def alternate(runs: Mapping[Any, Any], repeats: int, measure: Callable = wall_seconds) -> dict[Any, list]:
    """What `measure` finds in every repeat of every run: the runs take turns, and the first round is a warm-up."""
    rounds = [{name: measure(run) for name, run in runs.items()} for _ in range(repeats + 1)]
    return {name: [found[name] for found in rounds[1:]] for name in runs}


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


def compare(runs: Mapping[str, tuple[Callable, Row]], repeats: int) -> dict[str, Row]:
    """The report of each (run, report), with the run's times in turns."""
    seconds = alternate({name: run for name, (run, _) in runs.items()}, repeats)
    return {name: report | timing(seconds[name]) for name, (_, report) in runs.items()}


def peak_memory() -> int:
    """The most bytes in use so far: of the fullest device, or of this process where devices do not count."""
    used = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    return max((peak for peak in used if peak), default=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
