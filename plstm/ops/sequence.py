"""pLSTM on sequences: linear RNNs with source, transition and mark gates (arXiv 2506.11997, Appendix D.4)."""

import jax
import jax.numpy as jnp
from jax import Array

from plstm.ops.common import DagGates as SequenceGates
from plstm.ops.common import attend, check_choice, check_inputs, check_shape, direct_term, gate_dtype


def segment_products(transition: Array) -> Array:
    """L [..., T, T] of transitions [..., T]: L[a, b] = prod_{a < u < b} transition[u] for b > a, else 0. Multiplied
    out, so that zero and negative transitions are exact and every gradient is finite."""
    node = jnp.arange(transition.shape[-1])
    later = node[:, None] < node
    through = jnp.cumprod(jnp.where(later, transition[..., None, :], 1), axis=-1)
    before = jnp.concatenate([jnp.ones_like(through[..., :1]), through[..., :-1]], axis=-1)
    return jnp.where(later, before, 0)


def gating_matrix_1d(gates: SequenceGates) -> Array:
    """G [..., T, T], source node, then target (Equations 25-28): G[a, b] = source[a] prod_{a < u < b} transition[u]
    mark[b] for b > a, else 0; no direct term."""
    return gates.source[..., :, None] * segment_products(gates.transition) * gates.mark[..., None, :]


def plstm1d(q: Array, k: Array, v: Array, gates: SequenceGates, direct: Array, *, method: str = "auto") -> Array:
    """Equations 1 and 2 on a sequence, causal: a node receives from earlier nodes and, through `direct`, from itself.

    For a sequence without an order, run it twice, the second time with gates of its own, zero `direct` and all
    arguments and the output reversed along T, and add the two outputs (Appendix D.4).

    q, k [..., T, d_k], v [..., T, d_v], gates and direct [..., T] -> [..., T, d_v] in v's dtype. q is scaled by
    d_k ** -0.5. Gating and accumulation are done in the gates' dtype, at least float32. "parallel" builds the T x T
    gating matrix, "recurrent" steps through T with a d_k x d_v state, "auto" takes the smaller of the two.
    Raises ValueError where shapes disagree or the method is unknown.
    """
    check_choice("method", method, ("auto", "parallel", "recurrent"))
    check_inputs(q, k, v, direct, "T")
    for name, gate in gates._asdict().items():
        check_shape(name, gate, "[..., T]", q.shape[:-1])
    dtype, scale, small = gate_dtype(gates), q.shape[-1] ** -0.5, q.shape[-2] <= q.shape[-1] * v.shape[-1]
    gates, direct = jax.tree.map(lambda gate: gate.astype(dtype), (gates, direct))
    if method == "parallel" or (method == "auto" and small):
        gating = gating_matrix_1d(gates).swapaxes(-1, -2) + direct[..., None] * jnp.eye(q.shape[-2], dtype=dtype)
        return attend(q, k, v, gating, scale).astype(v.dtype)

    def step(cell, inputs):
        q, k, v, source, transition, mark = inputs
        hidden = jnp.einsum("...k,...kv->...v", q, mark * cell)
        return transition * cell + source * k[..., :, None] * v[..., None, :], hidden

    nodes = [jnp.moveaxis(tensor.astype(dtype), -2, 0) for tensor in (scale * q.astype(dtype), k, v)]
    nodes += [jnp.moveaxis(gate, -1, 0)[..., None, None] for gate in gates]
    _, hidden = jax.lax.scan(step, jnp.zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]), dtype), nodes)
    return (jnp.moveaxis(hidden, 0, -2) + direct_term(q, k, v, direct, scale)).astype(v.dtype)
