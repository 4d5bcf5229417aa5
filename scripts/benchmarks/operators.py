"""The benchmark harness, which times runs in alternation, and the 2-D operator's forward and backward passes: against
the plain scan, in chunks, and in each of its forms."""

import itertools
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plstm.ops.grid import FORMS, STRUCTURES, GridGates, plstm2d
from plstm.ops.grid.cpu import num_chunks
from plstm.ops.grid.matrix import by_matrix
from scripts.common import positive

Row = dict[str, Any]
HEADS, DIM = 3, 64  # of pLSTM-Vis-T
CASES = ((8, 128), (12, 128), (16, 32), (24, 16))  # side of the grid, images


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
    """The executable, its compilation's seconds, and the bytes a device needs for it as XLA plans them: all, and those
    for neither arguments nor results."""
    start = time.perf_counter()
    run = jax.jit(step).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    plan = run.memory_analysis()
    used = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    memory = {"memory_bytes": used - plan.alias_size_in_bytes, "temporary_bytes": plan.temp_size_in_bytes}
    return run, {"compile_seconds": seconds} | memory


def compare(runs: Mapping[str, tuple[Callable, Row]], repeats: int) -> dict[str, Row]:
    """The report of each (run, report), with the run's times in turns."""
    seconds = alternate({name: run for name, (run, _) in runs.items()}, repeats)
    return {name: report | timing(seconds[name]) for name, (_, report) in runs.items()}


def peak_memory() -> int:
    """The most bytes in use so far: of the fullest device, or of this process where devices do not count."""
    used = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    return max((peak for peak in used if peak), default=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def draw_operator_inputs(structure: str, grid: int, batch: int, heads: int = HEADS, dim: int = DIM) -> tuple:
    """q, k, v, gates, direct and the output's cotangent, float32, with transitions near criticality."""
    keys = iter(jax.random.split(jax.random.key(0), 16))
    lead, shape = (batch, heads, grid, grid), (batch, heads, 4, grid, grid)
    q, k, v, cotangent = (jax.random.normal(next(keys), (*lead, dim)) for _ in range(4))
    decay_l, decay_u = jax.random.uniform(next(keys), (2, *shape), minval=0.9)
    angle_l, angle_u = jax.random.uniform(next(keys), (2, *shape))
    s_r, s_d, m_l, m_u = jax.random.uniform(next(keys), (4, *shape))
    transitions = {  # t_rl, t_ru, t_dl, t_du
        "general": (decay_l * angle_l, decay_u * angle_u, decay_l * (1 - angle_l), decay_u * (1 - angle_u)),
        "shared_incoming": (decay_l * angle_l, decay_l * angle_l, decay_l * (1 - angle_l), decay_l * (1 - angle_l)),
        "d_mode": (decay_l, jnp.zeros(shape), decay_l, decay_u),
    }[structure]
    gates = GridGates(s_r, s_d, *transitions, m_l, m_l if structure == "shared_incoming" else m_u)
    return q, k, v, gates, jax.random.uniform(next(keys), lead), cotangent


def gradient_step(operator: Callable) -> Callable:
    """Output and gradients of every argument: one forward and one backward pass."""

    def step(q, k, v, gates, direct, cotangent):
        output, backward = jax.vjp(operator, q, k, v, gates, direct)
        return output, backward(cotangent)

    return step


def compare_operators(operators: dict[str, Callable], arguments: tuple, repeats: int) -> dict[str, Row]:
    """Reports and times of forward and backward passes."""
    runs = {}
    for name, operator in operators.items():
        run, report = compile_step(gradient_step(operator), arguments)
        runs[name] = partial(run, *arguments), report
    return compare(runs, repeats)


def measure_operator(repeats: int, grids=(12, 24), batch=8, heads=HEADS, dim=DIM) -> Iterator[Row]:
    """The 2-D operator, forward and backward, against the plain scan."""
    for grid, structure in itertools.product(grids, STRUCTURES):
        ours, scan = (partial(plstm2d, method=method, structure=structure) for method in ("auto", "recurrent"))
        arguments = draw_operator_inputs(structure, grid, batch, heads, dim)
        found = compare_operators({"ours": ours, "scan": scan}, arguments, repeats)
        speedup = ratio(found, "scan", "ours", "speedup_over_scan")
        yield {"grid": grid, "structure": structure, "method": "auto", **found, **speedup}


def measure_chunks(repeats: int, structures=STRUCTURES, cases=CASES) -> Iterator[Row]:
    """The operator in chunks of batch and heads that stay in the cache, against all at once."""
    for structure, (grid, images) in itertools.product(structures, cases):
        chunks = num_chunks(images * HEADS, grid**4 * jnp.dtype(jnp.float32).itemsize)
        by_chunks = partial(by_matrix, structure=structure, form="auto")
        operators = {"chunked": partial(by_chunks, chunks=chunks), "at_once": partial(by_chunks, chunks=1)}
        found = compare_operators(operators, draw_operator_inputs(structure, grid, images), repeats)
        speedup = ratio(found, "at_once", "chunked", "speedup")
        yield {"structure": structure, "grid": grid, "images": images, "chunks": chunks, **found, **speedup}


def side_x_images(text: str) -> tuple[int, int]:
    side, images = map(positive, text.split("x"))
    return side, images


def measure_forms(repeats: int, structures=STRUCTURES, grids=(12, 24, 32, 48), batches=(1, 3)) -> Iterator[Row]:
    """The operator in every form by structure, batch and grid, for FASTEST_FORM of `plstm.ops.grid.cpu`."""
    backend = jax.default_backend()
    methods = ["chunkwise", "fused"] if backend == "gpu" else ["chunkwise"]
    for structure, batch, grid in itertools.product(structures, batches, grids):
        made = [form for form in FORMS[structure] if form != "cpu" or backend == "cpu"]  # made for CPUs
        forms = {form: partial(by_matrix, structure=structure, form=form) for form in made}
        forms |= {method: partial(plstm2d, structure=structure, method=method) for method in methods}
        found = compare_operators(forms, draw_operator_inputs(structure, grid, batch), repeats)
        fastest = min(found, key=lambda form: found[form]["median_seconds"])
        yield {"structure": structure, "grid": grid, "batch": batch, "dim": DIM, "fastest": fastest, "forms": found}
