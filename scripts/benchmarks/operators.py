"""The 2-D operator, forward and backward: against the quad-tree, in chunks, and in each of its forms."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp

from plstm.ops.grid import FORMS, METHODS, STRUCTURES, GridGates, by_matrix, plstm2d
from plstm.ops.grid.chunks import num_chunks
from scripts.benchmarks import quadtree
from scripts.benchmarks.harness import Row, Subject, bind_step, compare, option, ratio

HEADS, DIM = 3, 64  # of pLSTM-Vis-T
HOPELESS = 2.5  # times slower than the best form on one grid: not tried on larger ones


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


def compare_operators(
    operators: dict[str, Callable], arguments: tuple, repeats: int, **options: bool
) -> dict[str, Row]:
    """As `compare`, of forward and backward passes."""
    makers = {name: partial(bind_step, gradient_step(operator), arguments) for name, operator in operators.items()}
    return compare(makers, repeats, **options)


def measure_operator(options: argparse.Namespace) -> Iterator[Row]:
    """The 2-D operator, forward and backward, against the paper's quad-tree and the plain scan."""
    for grid in options.grids:
        for structure in STRUCTURES:
            operators = {
                "ours": partial(plstm2d, method=options.method, structure=structure),
                "scan": partial(plstm2d, method="recurrent", structure=structure),
                "quadtree": quadtree.plstm2d,
            }
            arguments = draw_operator_inputs(structure, grid, options.batch, options.heads, options.dim)
            found = compare_operators(operators, arguments, options.repeats)
            speedups = ratio(found, "quadtree", "ours", "speedup") | ratio(found, "scan", "ours", "speedup_over_scan")
            yield {"grid": grid, "structure": structure, "method": options.method, **found, **speedups}


def measure_chunks(options: argparse.Namespace) -> Iterator[Row]:
    """The operator in chunks of batch and heads that stay in the cache, against all at once."""
    for structure in options.structures:
        for grid, images in options.cases:
            chunks = num_chunks(images * HEADS, grid**4 * jnp.dtype(jnp.float32).itemsize)
            by_chunks = partial(by_matrix, structure=structure, form="auto")
            operators = {"chunked": partial(by_chunks, chunks=chunks), "at_once": partial(by_chunks, chunks=1)}
            found = compare_operators(operators, draw_operator_inputs(structure, grid, images), options.repeats)
            speedup = ratio(found, "at_once", "chunked", "speedup")
            yield {"structure": structure, "grid": grid, "images": images, "chunks": chunks, **found, **speedup}


def grid_and_images(text: str) -> tuple[int, int]:
    """Side of the grid and number of images of SIDExIMAGES."""
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be SIDExIMAGES, such as 12x128")
    grid, images = map(int, text.split("x"))
    return grid, images


def forms_of(structure: str) -> dict[str, Callable]:
    """The forms that are fit for this backend."""
    forms = {form: partial(by_matrix, structure=structure, form=form) for form in FORMS[structure]}
    if jax.default_backend() != "cpu":
        forms.pop("batch_minor", None)  # made for CPUs
    methods = ("chunkwise", "fused") if jax.default_backend() == "gpu" else ("chunkwise",)
    return forms | {method: partial(plstm2d, structure=structure, method=method) for method in methods}


def measure_forms(options: argparse.Namespace) -> Iterator[Row]:
    """Every form of the operator by structure, batch and grid: what plstm/ops/tuned.py chooses by."""
    for structure, batch in itertools.product(options.structures, options.batches):
        forms = forms_of(structure)
        for grid in sorted(options.grids):
            q, k, v, gates, direct, cotangent = draw_operator_inputs(structure, grid, batch)
            q, k, v, cotangent = (tensor.astype(options.dtype) for tensor in (q, k, v, cotangent))
            found = compare_operators(forms, (q, k, v, gates, direct, cotangent), options.repeats, tolerant=True)
            seconds = {name: form["median_seconds"] for name, form in found.items() if "median_seconds" in form}
            fastest = min(seconds, key=seconds.get, default=None)
            yield {"structure": structure, "grid": grid, "batch": batch, "dim": DIM, "fastest": fastest, "forms": found}
            hopeless = {name for name, value in seconds.items() if value > HOPELESS * seconds[fastest]} - {"chunkwise"}
            forms = {name: form for name, form in forms.items() if name not in hopeless}


STRUCTURE_OPTION = option(list(STRUCTURES), "of the transitions", str, choices=STRUCTURES)
SUBJECTS = {
    "operator": Subject(
        measure_operator,
        {
            "--grids": option([12, 24], "side lengths"),
            "--batch": option(8, "images"),
            "--heads": option(HEADS, "of an image"),
            "--dim": option(DIM, "of a head's queries, keys and values"),
            "--method": option("auto", "of our operator", str, choices=METHODS),
        },
    ),
    "chunks": Subject(
        measure_chunks,
        {
            "--structures": STRUCTURE_OPTION,
            "--cases": option([(8, 128), (12, 128), (16, 32), (24, 16)], "SIDExIMAGES", grid_and_images),
        },
    ),
    "tune": Subject(
        measure_forms,
        {
            "--grids": option([12, 24, 32, 48], "side lengths"),
            "--batches": option([1, 3], f"images of {HEADS} heads"),
            "--structures": STRUCTURE_OPTION,
            "--dtype": option("float32", "of queries, keys and values", str, choices=["float32", "bfloat16"]),
        },
    ),
}
