"""pLSTM on sequences: linear RNNs with source, transition and mark gates (arXiv 2506.11997, Appendix D.4)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

METHODS = ("auto", "parallel", "recurrent")


class SequenceGates(NamedTuple):
    """The gates of the nodes of a sequence, each [..., T]."""

    source: jax.Array
    transition: jax.Array
    mark: jax.Array


def segment_products(transition: jax.Array) -> jax.Array:
    """The products of the transitions strictly between two nodes.

    Products are multiplied out, not taken from logarithms or quotients of prefix products, so zero and negative
    transitions are exact and every gradient is finite.

    Args:
        transition: [..., T].

    Returns:
        L [..., T, T] with L[a, b] = prod_{a < u < b} transition[u] for b > a (1 where the product is empty), else 0.
    """
    node = jnp.arange(transition.shape[-1])
    later = node[:, None] < node
    through = jnp.cumprod(jnp.where(later, transition[..., None, :], 1), axis=-1)
    before = jnp.concatenate([jnp.ones_like(through[..., :1]), through[..., :-1]], axis=-1)
    return jnp.where(later, before, 0)


def gating_matrix_1d(gates: SequenceGates) -> jax.Array:
    """The gating matrix of a sequence, what the recursion of Equations 25-28 builds level by level.

    Args:
        gates: three tensors [..., T], any T >= 1.

    Returns:
        G [..., T, T], source node, then target: G[a, b] = source[a] prod_{a < u < b} transition[u] mark[b] for b > a,
        else 0; no direct term.
    """
    return gates.source[..., :, None] * segment_products(gates.transition) * gates.mark[..., None, :]


def plstm1d(
    q: jax.Array, k: jax.Array, v: jax.Array, gates: SequenceGates, direct: jax.Array, *, method: str = "auto"
) -> jax.Array:
    """Equations 1 and 2 on a sequence, causal: a node receives from earlier nodes and, through `direct`, from itself.

    For a sequence without an order, run it twice, the second time with gates of its own, zero `direct` and all
    arguments and the output reversed along T, and add the two outputs (Appendix D.4).

    Args:
        q, k: [..., T, d_k]; q is scaled by d_k ** -0.5.
        v: [..., T, d_v].
        gates: three tensors [..., T]; gating and accumulation are done in their dtype, at least float32.
        direct: [..., T].
        method: "parallel" builds the T x T gating matrix, "recurrent" steps through T with a d_k x d_v state. "auto"
            takes the one that keeps the smaller of the two for the backward pass: parallel where T <= d_k d_v.

    Returns:
        [..., T, d_v] in v's dtype.

    Raises:
        ValueError: where shapes disagree or the method is unknown.
    """
    _check_arguments(q, k, v, gates, direct, method)
    if method == "auto":
        method = "parallel" if q.shape[-2] <= q.shape[-1] * v.shape[-1] else "recurrent"
    dtype = jnp.promote_types(jnp.result_type(*gates), jnp.float32)
    gates = SequenceGates(*(gate.astype(dtype) for gate in gates))
    form = _parallel if method == "parallel" else _recurrent
    return form(q, k, v, gates, direct.astype(dtype)).astype(v.dtype)


def _parallel(q, k, v, gates, direct):
    dtype = direct.dtype
    weights = gating_matrix_1d(gates) + direct[..., None] * jnp.eye(direct.shape[-1], dtype=dtype)
    similarity = jnp.einsum("...ak,...bk->...ab", k, q, preferred_element_type=dtype)
    weights = (weights * similarity * q.shape[-1] ** -0.5).astype(v.dtype)
    return jnp.einsum("...ab,...av->...bv", weights, v, preferred_element_type=dtype)


def _recurrent(q, k, v, gates, direct):
    dtype = direct.dtype
    q, k, v = (tensor.astype(dtype) for tensor in (q, k, v))
    q = q * q.shape[-1] ** -0.5

    def step(cell, inputs):
        q, k, v, source, transition, mark, direct = inputs
        outer = k[..., :, None] * v[..., None, :]
        hidden = jnp.einsum("...k,...kv->...v", q, mark * cell + direct * outer)
        return transition * cell + source * outer, hidden

    nodes = [jnp.moveaxis(tensor, -2, 0) for tensor in (q, k, v)]
    nodes += [jnp.moveaxis(gate, -1, 0)[..., None, None] for gate in (*gates, direct)]
    cell = jnp.zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]), dtype)
    _, hidden = jax.lax.scan(step, cell, nodes)
    return jnp.moveaxis(hidden, 0, -2)


def _check_arguments(q, k, v, gates, direct, method):
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if q.ndim < 2 or q.shape != k.shape:
        raise ValueError(f"q and k must have one shape [..., T, d_k]; got q {q.shape} and k {k.shape}")
    if v.shape[:-1] != q.shape[:-1]:
        raise ValueError(f"v must be [..., T, d_v] with q's leading axes and T {q.shape[:-1]}; got v {v.shape}")
    for name, gate in (*gates._asdict().items(), ("direct", direct)):
        if gate.shape != q.shape[:-1]:
            raise ValueError(f"{name} must be [..., T] = {q.shape[:-1]}; got {gate.shape}")
