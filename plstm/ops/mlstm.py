"""The mLSTM of xLSTM (Beck et al., 2024): a matrix memory with exponential input gates, stabilised and normalised."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from plstm.ops.common import accumulation_dtype, check_axes, check_choice, product, public_operator
from plstm.ops.scans import FORGOTTEN, METHODS, cast, causal, even_chunk, join_axes, scan_chunks, scan_steps

EPSILON = 1e-6  # of the normaliser
MOST = 80.0  # of -m: from 88.7 on exp is infinite in float32, and its gradient NaN


@public_operator
def mlstm(q: Array, k: Array, v: Array, i: Array, f: Array, *, method: str = "auto", chunk: int = 64) -> Array:
    """q, k [..., T, d_k]; v [..., T, d_v]; pre-activations i, f [..., T] -> h [..., T, d_v] in v's dtype.

        m_t = max(log sigmoid(f_t) + m_(t-1), i_t),  F = exp(log sigmoid(f_t) + m_(t-1) - m_t),  I = exp(i_t - m_t)
        C_t = F C_(t-1) + I k_t v_t^T / sqrt(d_k),   n_t = F n_(t-1) + I k_t / sqrt(d_k)
        h_t = C_t^T q_t / (max(|n_t . q_t|, exp(-m_t)) + 1e-6)

    from C, n, m = 0, in float32 or more; log sigmoid(f_t) below -120 counts as -120. "recurrent" takes T steps,
    "chunkwise" (and "auto") one for each of the even chunks of at most `chunk` tokens. Raises ValueError where shapes
    disagree, an axis that is named is empty, `chunk` is under 1 or the method is unknown.
    """
    check_choice("method", method, METHODS)
    check_axes("q, k [..., T, d_k]; v [..., T, d_v]; i, f [..., T]", q, k, v, i, f)
    chunk = even_chunk(chunk, q.shape[-2])
    dtype = accumulation_dtype(q, k, v, i, f)
    *lead, _, d_k = q.shape
    # The normaliser n is one more column of C, that of a value of 1.
    values = jnp.concatenate([v.astype(dtype), jnp.ones((*v.shape[:-1], 1), dtype)], axis=-1)
    q, k, i, f = cast((q, k, i, f), dtype)
    log_f = jnp.maximum(jax.nn.log_sigmoid(f), FORGOTTEN)
    inputs = join_axes((q, k * d_k**-0.5, values, i, log_f), len(lead))
    zeros = partial(jnp.zeros_like, inputs[0])
    batch_heads = len(inputs[0])
    state = zeros(shape=(batch_heads, d_k, v.shape[-1] + 1)), zeros(shape=batch_heads)
    recurrent = method == "recurrent"
    h = scan_steps(_step, state, inputs, 1) if recurrent else scan_chunks(_chunk, state, inputs, 1, chunk)
    return h.reshape(v.shape).astype(v.dtype)


def _normalise(summed: Array, m: Array) -> Array:
    """Sums of values and, last, of ones [..., d_v + 1], over exp(m) [...] -> h [..., d_v]."""
    size = jnp.maximum(jnp.abs(summed[..., -1]), jnp.exp(jnp.minimum(-m, MOST))) + EPSILON
    return summed[..., :-1] / size[..., None]


def _step(state, inputs):
    """One token: q, k [..., d_k], v [..., d_v + 1], i, log_f [...]."""
    cell, m = state
    q, k, v, i, log_f = inputs
    decayed = log_f + m
    m = jnp.maximum(decayed, i)
    keep = jnp.exp(decayed - m)
    write = jnp.exp(i - m)
    cell = keep[..., None, None] * cell + (write[..., None] * k)[..., None] * v[..., None, :]
    return (cell, m), _normalise(product("...k,...kv->...v", q, cell), m)


def _chunk(state, inputs):
    """L tokens: q, k [..., L, d_k], v [..., L, d_v + 1], i, log_f [..., L]; weights of all pairs, and of the state."""
    cell, m = state
    q, k, v, i, log_f = inputs
    b = jnp.cumsum(log_f, axis=-1)
    pairs = jnp.where(causal(b.shape[-1]), b[..., :, None] - b[..., None, :] + i[..., None, :], -jnp.inf)
    decayed = b + m[..., None]
    largest = jnp.maximum(pairs.max(-1), decayed)
    weights = product("...tk,...sk->...ts", q, k) * jnp.exp(pairs - largest[..., None])
    read = product("...tk,...kv->...tv", q * jnp.exp(decayed - largest)[..., None], cell)
    out = _normalise(product("...ts,...sv->...tv", weights, v) + read, largest)
    # The last row weighs what the chunk leaves to the state.
    m = largest[..., -1]
    write = jnp.exp(pairs[..., -1, :] - m[..., None])
    cell = jnp.exp(decayed[..., -1] - m)[..., None, None] * cell
    return (cell + product("...sk,...sv->...kv", k * write[..., None], v), m), out
