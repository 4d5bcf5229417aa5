"""What the operators share: checks of their arguments, the gates' dtype, attention with a gating matrix."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

# In full precision: the default of GPUs and TPUs would round gates to fewer bits.
product = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)


class DagGates(NamedTuple):
    """The gates of a DAG of E edges and L line edges, or those of a sequence, each [..., T]."""

    source: Array  # [..., E]
    transition: Array  # [..., L]
    mark: Array  # [..., E]


def gate_dtype(gates):
    """The dtype of gating and accumulation: that of the gates, at least float32."""
    return jnp.promote_types(jnp.result_type(*gates), jnp.float32)


def attend(q: Array, k: Array, v: Array, gating: Array, scale: float) -> Array:
    """Sums values over source nodes, weighted by gating and scaled similarity (Equation 3). q [..., T, d_k], k [..., S,
    d_k], v [..., S, d_v], gating [..., T, S] -> [..., T, d_v] in the gating's dtype."""
    similarity = jnp.einsum("...tk,...sk->...ts", q, k, preferred_element_type=gating.dtype)
    weights = (gating * similarity * scale).astype(v.dtype)
    return jnp.einsum("...ts,...sv->...tv", weights, v, preferred_element_type=gating.dtype)


def direct_term(q: Array, k: Array, v: Array, direct: Array, scale: float) -> Array:
    """What each node receives from itself: direct [...] times the scaled similarity of its q and k, times its v."""
    return (scale * direct * (q.astype(direct.dtype) * k).sum(-1))[..., None] * v


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def check_shape(name: str, array: Array, axes: str, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} must be {axes} = {shape}; got {array.shape}")


def check_inputs(q: Array, k: Array, v: Array, direct: Array, axes: str) -> None:
    """Raises ValueError unless q, k are [..., axes, d_k], v is [..., axes, d_v] and direct is [..., axes]."""
    if q.ndim < 2 + axes.count(",") or q.shape != k.shape:
        raise ValueError(f"q and k must have one shape [..., {axes}, d_k]; got q {q.shape} and k {k.shape}")
    check_shape("v", v, f"[..., {axes}, d_v]", (*q.shape[:-1], *v.shape[-1:]))
    check_shape("direct", direct, f"[..., {axes}]", q.shape[:-1])
