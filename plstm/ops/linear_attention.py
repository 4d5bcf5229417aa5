"""Linear attention with a decay and a write strength a token, the recurrence that mLSTM, Mamba-2, Gated DeltaNet and
pLSTM share; docs/operators.md has what each adds."""

import jax.numpy as jnp
from jax import Array

from plstm.ops.common import accumulation_dtype, check_axes, check_choice, product, public_operator
from plstm.ops.scans import FORGOTTEN, METHODS, cast, causal, even_chunk, join_axes, scan_chunks, scan_steps


@public_operator
def linear_attention(
    q: Array, k: Array, v: Array, log_decay: Array, write: Array, *, method: str = "auto", chunk: int = 64
) -> Array:
    """q, k [..., T, d_k]; v [..., T, d_v]; log_decay <= 0, write [..., T] -> y [..., T, d_v] in v's dtype. From S = 0:

        S_t = exp(log_decay_t) S_(t-1) + write_t k_t v_t^T,  y_t = S_t^T q_t

    in float32 or more; nothing is scaled or normalised, and log decays below -120 count as -120. Log decays of 0 and
    writes of 1 are plain linear attention. "recurrent" takes T steps, "chunkwise" (and "auto") one for each of the even
    chunks of at most `chunk` tokens. Raises ValueError where shapes disagree, an axis that is named is empty, `chunk`
    is under 1 or the method is unknown.
    """
    check_choice("method", method, METHODS)
    check_axes("q, k [..., T, d_k]; v [..., T, d_v]; log_decay, write [..., T]", q, k, v, log_decay, write)
    *lead, length, d_k = q.shape
    chunk = even_chunk(chunk, length)
    dtype = accumulation_dtype(q, k, v, log_decay, write)
    log_decay = jnp.maximum(log_decay, FORGOTTEN)
    q, k, values, log_decay, write = join_axes(cast((q, k, v, log_decay, write), dtype), len(lead))
    inputs = q, k * write[..., None], values, log_decay
    state = jnp.zeros_like(q, shape=(len(q), d_k, v.shape[-1]))
    recurrent = method == "recurrent"
    y = scan_steps(_step, state, inputs, 1) if recurrent else scan_chunks(_chunk, state, inputs, 1, chunk)
    return y.reshape(v.shape).astype(v.dtype)


def _step(state, inputs):
    """One token: q, write k [..., d_k], v [..., d_v], log_decay [...]."""
    q, k, v, log_decay = inputs
    state = jnp.exp(log_decay)[..., None, None] * state + k[..., :, None] * v[..., None, :]
    return state, product("...k,...kv->...v", q, state)


def _chunk(state, inputs):
    """L tokens: q, write k [..., L, d_k], v [..., L, d_v], log_decay [..., L]."""
    q, k, v, log_decay = inputs
    total = jnp.cumsum(log_decay, axis=-1)
    pairs = jnp.exp(jnp.where(causal(total.shape[-1]), total[..., :, None] - total[..., None, :], -jnp.inf))
    weights = pairs * product("...tk,...sk->...ts", q, k)
    since_start = jnp.exp(total)[..., None]
    out = product("...ts,...sv->...tv", weights, v) + product("...tk,...kv->...tv", since_start * q, state)
    # The last row weighs what the chunk leaves to the state.
    return since_start[..., -1:, :] * state + product("...sk,...sv->...kv", pairs[..., -1, :, None] * k, v), out
