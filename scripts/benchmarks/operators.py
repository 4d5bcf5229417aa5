"""The 2-D operator, forward and backward: against the plain scan, in chunks, and in each of its forms."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp

from plstm.ops.grid import FORMS, STRUCTURES, GridGates, by_matrix, plstm2d
from plstm.ops.grid.chunks import num_chunks
from scripts.benchmarks.harness import Row, compare, compile_step, ratio
from scripts.common import positive

HEADS, DIM = 3, 64  # of pLSTM-Vis-T
CASES = ((8, 128), (12, 128), (16, 32), (24, 16))  # side of the grid, images


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
        "rank_one": (decay_l * angle_l, decay_l * angle_l, decay_l * (1 - angle_l), decay_l * (1 - angle_l)),
        "no_ru": (decay_l, jnp.zeros(shape), decay_l, decay_u),
    }[structure]
    gates = GridGates(s_r, s_d, *transitions, m_l, m_l if structure == "rank_one" else m_u)
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


def forms_of(structure: str) -> dict[str, Callable]:
    """The forms that are fit for this backend."""
    backend = jax.default_backend()
    forms = [form for form in FORMS[structure] if form != "batch_minor" or backend == "cpu"]  # made for CPUs
    methods = ["chunkwise", "fused"] if backend == "gpu" else ["chunkwise"]
    found = {form: partial(by_matrix, structure=structure, form=form) for form in forms}
    return found | {method: partial(plstm2d, structure=structure, method=method) for method in methods}


def measure_forms(repeats: int, structures=STRUCTURES, grids=(12, 24, 32, 48), batches=(1, 3)) -> Iterator[Row]:
    """The operator in every form by structure, batch and grid: what `plstm.ops.grid.TABLE` is written from."""
    for structure, batch, grid in itertools.product(structures, batches, grids):
        arguments = draw_operator_inputs(structure, grid, batch)
        found = compare_operators(forms_of(structure), arguments, repeats)
        fastest = min(found, key=lambda form: found[form]["median_seconds"])
        yield {"structure": structure, "grid": grid, "batch": batch, "dim": DIM, "fastest": fastest, "forms": found}
