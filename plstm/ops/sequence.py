"""pLSTM on sequences: linear RNNs with source, transition and mark gates (arXiv 2506.11997, Appendix D.4)."""

import jax
import jax.numpy as jnp
from jax import Array

from plstm.ops.common import (
    accumulation_dtype,
    attend,
    check_axes,
    check_choice,
    direct_term,
    product,
    public_operator,
    small_product,
)
from plstm.ops.dag.gates import DagGates as SequenceGates
from plstm.ops.scans import METHODS, cast, even_chunk, scan_chunks, scan_steps, split_chunks


def segment_products(transition: Array) -> Array:
    """L [..., T, T] of transitions [..., T]: L[a, b] = prod_{a < u < b} transition[u] for b > a, else 0. Multiplied
    out, so that zero and negative transitions are exact and every gradient is finite."""
    node = jnp.arange(transition.shape[-1])
    later = node[:, None] < node
    factors = jnp.where(later, transition[..., None, :], 1)
    # The last is not read: a product with it could overflow, and its gradient, 0 times infinity, be NaN.
    before = jnp.concatenate([jnp.ones_like(factors[..., :1]), jnp.cumprod(factors[..., :-1], axis=-1)], axis=-1)
    return jnp.where(later, before, 0)


@public_operator
def gating_matrix_1d(gates: SequenceGates) -> Array:
    """G [..., T, T], source node, then target (Equations 25-28): G[a, b] = source[a] prod_{a < u < b} transition[u]
    mark[b] for b > a, else 0; no direct term. Gates [..., T]; in their dtype, at least float32. Raises ValueError where
    shapes disagree."""
    check_axes("source, transition, mark [..., T]", *gates)
    gates = SequenceGates(*cast(gates, accumulation_dtype(*gates)))
    return gates.source[..., :, None] * segment_products(gates.transition) * gates.mark[..., None, :]


@public_operator
def plstm1d(q: Array, k: Array, v: Array, gates: SequenceGates, direct: Array, *, method: str = "auto") -> Array:
    """Equations 1 and 2 on a sequence, causal: a node receives from earlier nodes and, through `direct`, from itself.

    For a sequence without an order, run it twice, the second time with gates of its own, zero `direct` and all
    arguments and the output reversed along T, and add the two outputs (Appendix D.4).

    q, k [..., T, d_k], v [..., T, d_v], gates and direct [..., T] -> [..., T, d_v] in v's dtype. q is scaled by
    d_k ** -0.5. Gating and accumulation are done in the gates' dtype, at least float32. "parallel" builds the T x T
    gating matrix and has reverse-mode derivatives only, "recurrent" steps through T with a d_k x d_v state, "auto"
    is "parallel" up to T = d_k d_v. Raises ValueError where shapes disagree, an axis that is named is empty or the
    method is unknown.
    """
    check_choice("method", method, ("auto", "parallel", "recurrent"))
    axes = "q, k [..., T, d_k]; v [..., T, d_v]; direct, source, transition, mark [..., T]"
    check_axes(axes, q, k, v, direct, *gates)
    dtype = accumulation_dtype(*gates)
    scale = q.shape[-1] ** -0.5
    small = q.shape[-2] <= q.shape[-1] * v.shape[-1]
    gates, direct = jax.tree.map(lambda gate: gate.astype(dtype), (gates, direct))
    if method == "parallel" or (method == "auto" and small):
        gating = gating_matrix_1d(gates).swapaxes(-1, -2) + direct[..., None] * jnp.eye(q.shape[-2], dtype=dtype)
        return attend(q, k, v, gating, scale).astype(v.dtype)

    def step(cell, inputs):
        q, k, v, source, transition, mark = inputs
        hidden = product("...k,...kv->...v", q, mark * cell)
        return transition * cell + source * k[..., :, None] * v[..., None, :], hidden

    inputs = *cast((scale * q.astype(dtype), k, v), dtype), *(gate[..., None, None] for gate in gates)
    state = jnp.zeros_like(v, dtype, shape=(*v.shape[:-2], k.shape[-1], v.shape[-1]))
    return (scan_steps(step, state, inputs, q.ndim - 2) + direct_term(q, k, v, direct, scale)).astype(v.dtype)


@public_operator
def plstm1d_tracking(
    q: Array,
    k: Array,
    v: Array,
    source: Array,
    transition: Array,
    mark: Array,
    direct: Array,
    *,
    method: str = "auto",
    chunk: int = 16,
) -> Array:
    """pLSTM whose state is multiplied by matrices, so that it can track states (Appendices D.4, D.6 and D.7), causal.

    q [..., T, d_k, J_Q], k [..., T, d_k, J_K], v [..., T, d_v, J_V], source [..., T, J_T, J_K, J_V], transition
    [..., T, J_T, J_T], mark [..., T, J_O, J_Q, J_T], direct [..., T, J_O, J_Q, J_K, J_V] -> [..., T, d_v, J_O] in v's
    dtype. From C = 0, summed over the indices that the left side does not have:

        o_t[v,o] = d_k^-1/2 (q_t[a,j] mark_t[o,j,s] C_(t-1)[a,v,s] + q_t[a,j] direct_t[o,j,k,l] k_t[a,k] v_t[v,l])
        C_t[a,v,s] = transition_t[s,r] C_(t-1)[a,v,r] + source_t[s,k,l] k_t[a,k] v_t[v,l]

    in float32 or more. With every J = 1 it is `plstm1d`. "recurrent" takes T steps of the state, "chunkwise" `chunk`
    steps of the gates and T / chunk of the state, with reverse-mode derivatives only; "auto" takes the one that was
    faster on a CPU. Raises ValueError where shapes disagree, an axis that is named is empty, `chunk` is under 1 or the
    method is unknown.
    """
    check_choice("method", method, METHODS)
    arrays = q, k, v, transition, source, mark, direct
    axes = "q [..., T, d_k, J_Q]; k [..., T, d_k, J_K]; v [..., T, d_v, J_V]; transition [..., T, J_T, J_T]; "
    axes += "source [..., T, J_T, J_K, J_V]; mark [..., T, J_O, J_Q, J_T]; direct [..., T, J_O, J_Q, J_K, J_V]"
    check_axes(axes, *arrays)
    chunk = even_chunk(chunk, q.shape[-3])
    dtype = accumulation_dtype(*arrays)
    axis = q.ndim - 3
    q, *others = cast((q, k, v, source, transition, mark, direct), dtype)
    inputs = (q * q.shape[-2] ** -0.5, *others)
    state = jnp.zeros_like(q, shape=(*q.shape[:-3], transition.shape[-1], q.shape[-2], v.shape[-2]))
    by_steps = transition.shape[-1] > 3 and q.shape[-3] < 256  # faster there; longer rows keep too many states
    if method == "recurrent" or (method == "auto" and by_steps):
        return _track_by_steps(state, *inputs, axis=axis).astype(v.dtype)
    gatings = _chunk_gatings(inputs[3:], axis, chunk)
    return scan_chunks(_tracking_chunk, state, inputs[:3], axis, chunk, gatings).astype(v.dtype)


def _track_by_steps(state, q, k, v, source, transition, mark, direct, *, axis: int) -> Array:
    """Token by token; the state [..., J_T, d_k, d_v]. Steps compute only what needs the state."""
    step = jax.checkpoint(_tracking_step, prevent_cse=False)  # or the backward pass would keep each state twice
    read = scan_steps(step, state, (q, k, product("...skl,...vl->...skv", source, v), transition), axis)
    direct_read = product("...ojkl,...jk->...ol", direct, product("...aj,...ak->...jk", q, k))
    return product("...ojs,...jsv->...vo", mark, read) + product("...ol,...vl->...vo", direct_read, v)


def _tracking_step(cell, inputs):
    """One token: the next state, and what q reads of this one, [..., J_Q, J_T, d_v]."""
    q, k, written, transition = inputs
    read = product("...aj,...sav->...jsv", q, cell)
    rows = jax.lax.collapse(cell, -2)  # one long axis: XLA's CPU backend multiplies it several times faster
    kept = product("...sr,...rx->...sx", transition, rows).reshape(cell.shape)
    return kept + product("...ak,...skv->...sav", k, written), read


def _tracking_chunk(cell, inputs):
    """L tokens: q [..., L, d_k, J_Q], k [..., L, d_k, J_K], v [..., L, d_v, J_V], and what `_chunk_gatings` gives."""
    q, k, v, gating, mark, source, transition = inputs
    weights = product("...taj,...sak->...jkts", q, k)[..., None, :, :, None, :, :] * gating
    out = product("...olts,...svl->...tvo", weights.sum((-5, -4)), v)
    out = out + product("...taj,...tojr,...rav->...tvo", q, mark, cell)
    write = product("...rkls,...sak,...svl->...rav", source, k, v)
    return product("...sr,...rav->...sav", transition, cell) + write, out


def _chunk_gatings(gates: tuple[Array, ...], axis: int, chunk: int) -> tuple[Array, ...]:
    """Gates that are multiplied within chunks of L tokens, for all chunks at once in L steps:

    gating [chunks, ..., J_O, J_Q, J_K, J_V, L, L], from a token, last, to a later one, `direct` on the diagonal; mark
    [chunks, ..., L, J_O, J_Q, J_T] of the state before the chunk; source [chunks, ..., J_T, J_K, J_V, L] of tokens for
    the state after it; transition [chunks, ..., J_T, J_T] from one to the other.
    """
    source, transition, mark, direct = gates
    j_t, j_k, j_v = source.shape[-3:]
    j_o, j_q, _ = mark.shape[-3:]

    def split(gate, rows, columns):
        """[..., T, rows * columns] -> [L, rows, columns, chunks, ...]"""
        gate = split_chunks(gate.reshape(*gate.shape[: axis + 1], rows, columns), axis, chunk)
        return jnp.moveaxis(gate, (axis + 1, -2, -1), (0, 1, 2))

    here = jnp.arange(chunk)
    source = split(source, j_t, j_k * j_v)
    transition = split(transition, j_t, j_t)
    inputs = here, source, transition, split(mark, j_o * j_q, j_t), split(direct, j_o * j_q, j_k * j_v)
    lead = source.shape[3:]

    def to_all_tokens(gate):
        return jnp.broadcast_to(gate[..., None], (*gate.shape, chunk))

    def step(state, inputs):
        left, entering = state
        t, source, transition, mark, direct = inputs
        row = jnp.where(here == t, direct[..., None], small_product(to_all_tokens(mark), left))
        left = jnp.where(here == t, source[..., None], small_product(to_all_tokens(transition), left))
        return (left, small_product(transition, entering)), (row, small_product(mark, entering))

    left = jnp.zeros_like(source, shape=(j_t, j_k * j_v, *lead, chunk))
    unit = jnp.eye(j_t, dtype=source.dtype).reshape(j_t, j_t, *(1,) * len(lead))
    entering = unit + jnp.zeros_like(source, shape=(j_t, j_t, *lead))
    (left, leaving), (rows, marks) = jax.lax.scan(step, (left, entering), inputs)
    gating = jnp.moveaxis(rows, (0, 1, 2), (-2, -4, -3))  # [chunks, ..., J_O J_Q, J_K J_V, L, L]
    gating = gating.reshape(*lead, j_o, j_q, j_k, j_v, chunk, chunk)
    marks = jnp.moveaxis(marks, (0, 1, 2), (-3, -2, -1)).reshape(*lead, chunk, j_o, j_q, j_t)
    left = jnp.moveaxis(left, (0, 1), (-3, -2)).reshape(*lead, j_t, j_k, j_v, chunk)
    return gating, marks, left, jnp.moveaxis(leaving, (0, 1), (-2, -1))
