"""The sequence operators, forward and backward: in chunks against step by step, and beside attention."""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp

from plstm.ops.delta_rule import gated_delta_rule
from plstm.ops.mlstm import mlstm
from plstm.ops.sequence import plstm1d_tracking
from plstm.ops.slstm import slstm
from plstm.ops.ssd import ssd
from scripts.benchmarks.operators import Row, compare, compile_step, ratio

TRACK = 2  # the side of pLSTM's transitions
QUADRATIC = 4096  # attention is measured up to this length, its weights need 4 GiB at 8,192


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(*(part.swapaxes(1, 2) for part in (q, k, v)), is_causal=True)


def draw(name: str, batch: int, heads: int, length: int, dim: int) -> tuple:
    """An operator's arguments, float32, with gates as layers have them at the start."""
    keys = iter(jax.random.split(jax.random.key(0), 16))
    normal = lambda *shape: jax.random.normal(next(keys), (batch, heads, length, *shape))  # noqa: E731
    unit = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    if name == "slstm":
        gates = (jax.random.normal(next(keys), (batch, length, heads, dim)) for _ in range(4))
        return *gates, 0.1 * jax.random.normal(next(keys), (heads, dim, 4, dim))
    if name == "plstm1d_tracking":
        gates = (
            jax.nn.sigmoid(normal(*shape)) for shape in ((TRACK, 1, TRACK), (TRACK, 1, TRACK), (TRACK, 1, 1, TRACK))
        )
        source, mark, direct = gates
        inputs = normal(dim, 1), normal(dim, 1), normal(dim // TRACK, TRACK)
        return *inputs, source, normal(TRACK, TRACK) / (2 * TRACK), mark, direct
    q, k, v = normal(dim), normal(dim), normal(dim)
    if name == "ssd":
        dt = jax.nn.softplus(normal() - 3).swapaxes(1, 2)
        return v.swapaxes(1, 2), dt, jnp.linspace(1, 16, heads), k[:, 0], q[:, 0]
    if name == "gated_delta_rule":
        return unit(q), unit(k), v, -0.1 * jax.nn.softplus(normal()), 2 * jax.nn.sigmoid(normal())
    return (q, k, v) if name == "attention" else (q, k, v, normal(), normal() + 3)


CHUNKED = {operator.__name__: operator for operator in (mlstm, ssd, gated_delta_rule, plstm1d_tracking)}

NAMES = (*CHUNKED, "slstm")


def gradient_step(operator: Callable) -> Callable:
    """Output and gradients of every argument, for a cotangent of ones."""

    def step(*arguments):
        output, backward = jax.vjp(operator, *arguments)
        return output, backward(jnp.ones_like(output))

    return step


def forms_of(name: str, length: int, recurrent_up_to: int) -> dict[str, Callable]:
    """What is measured at a length; the operator's own fastest form first."""
    forms = {"recurrent": slstm}
    if name in CHUNKED:
        forms = {form: partial(CHUNKED[name], method=form) for form in ("chunkwise", "recurrent")}
    if length > recurrent_up_to:
        del forms["recurrent"]
    return forms | ({"attention": attention} if length <= QUADRATIC else {})


def measure_sequences(
    repeats: int, operators=NAMES, lengths=(512, 2048, 8192), batch=4, heads=2, dim=64, recurrent_up_to=2048
) -> Iterator[Row]:
    """The sequence operators, forward and backward: chunkwise over recurrent, attention over chunkwise, growth."""
    for name in operators:
        shorter: Row = {}
        for length in lengths:
            runs = {}
            for form, operator in forms_of(name, length, recurrent_up_to).items():
                arguments = draw("attention" if form == "attention" else name, batch, heads, length, dim)
                run, report = compile_step(gradient_step(operator), arguments)
                runs[form] = partial(run, *arguments), report
            if not runs:
                continue
            found, best = compare(runs, repeats), next(iter(runs))
            row = {"operator": name, "length": length, **found}
            if {"chunkwise", "recurrent"} <= found.keys():
                row |= ratio(found, "recurrent", "chunkwise", "speedup")
            if "attention" in found:
                row |= ratio(found, "attention", best, "attention_over_operator")
            for cost in ("median_seconds", "memory_bytes") if shorter else ():  # 1 where it is linear in the length
                growth = found[best][cost] / shorter[best][cost]
                row[f"{cost.partition('_')[2]}_growth"] = growth * shorter["length"] / length
            shorter = row
            yield row
