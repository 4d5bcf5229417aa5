"""The state space of Mamba-2 (Dao and Gu, 2024): one decay a head, whose gates for input and memory are tied."""

import jax.numpy as jnp
from jax import Array

from plstm.ops.common import accumulation_dtype, check_axes, check_choice, product, public_operator
from plstm.ops.scans import FORGOTTEN, METHODS, cast, causal, even_chunk, scan_chunks, scan_steps


@public_operator
def ssd(x: Array, dt: Array, a: Array, b: Array, c: Array, *, method: str = "auto", chunk: int = 64) -> Array:
    """x [..., T, H, P]; dt > 0 [..., T, H]; a > 0 [H]; b, c [..., T, N], shared by the heads -> y [..., T, H, P] in x's
    dtype. For each head, from S = 0, without the skip D x:

        S_t = exp(-dt_t a) S_(t-1) + dt_t x_t b_t^T,  y_t = S_t c_t

    in float32 or more; dt a above 120 counts as 120. "recurrent" takes T steps, "chunkwise" (and "auto") one for each
    of the even chunks of at most `chunk` tokens. Raises ValueError where shapes disagree, an axis that is named is
    empty, `chunk` is under 1 or the method is unknown.
    """
    check_choice("method", method, METHODS)
    check_axes("x [..., T, H, P]; dt [..., T, H]; a [H]; b, c [..., T, N]", x, dt, a, b, c)
    *lead, length, heads, width = x.shape
    chunk = even_chunk(chunk, length)
    dtype = accumulation_dtype(x, dt, a, b, c)
    out_dtype = x.dtype
    x, dt, b, c = cast((x.swapaxes(-2, -3), dt.swapaxes(-1, -2), b[..., None, :, :], c[..., None, :, :]), dtype)
    log_decay = jnp.maximum(-dt * a.astype(dtype)[:, None], FORGOTTEN)
    inputs = x * dt[..., None], log_decay, b, c  # the heads before the time axis
    state = jnp.zeros_like(x, shape=(*lead, heads, width, b.shape[-1]))
    if method == "recurrent":
        y = scan_steps(_step, state, inputs, len(lead) + 1)
    else:
        y = scan_chunks(_chunk, state, inputs, len(lead) + 1, chunk)
    return y.swapaxes(-2, -3).astype(out_dtype)


def _step(state, inputs):
    """One token: dt x [..., H, P], log decay [..., H], b, c [..., 1, N]."""
    x, log_decay, b, c = inputs
    state = jnp.exp(log_decay)[..., None, None] * state + x[..., None] * b[..., None, :]
    return state, product("...hpn,...n->...hp", state, c[..., 0, :])


def _chunk(state, inputs):
    """L tokens: dt x [..., H, L, P], log decays [..., H, L], b, c [..., 1, L, N]."""
    x, log_decay, b, c = inputs
    b = b[..., 0, :, :]
    c = c[..., 0, :, :]
    total = jnp.cumsum(log_decay, axis=-1)
    pairs = jnp.exp(jnp.where(causal(x.shape[-2]), total[..., :, None] - total[..., None, :], -jnp.inf))
    weights = pairs * product("...tn,...sn->...ts", c, b)[..., None, :, :]
    read = product("...tn,...hpn->...htp", c, state) * jnp.exp(total)[..., None]
    out = product("...hts,...hsp->...htp", weights, x) + read
    state = jnp.exp(total[..., -1])[..., None, None] * state
    # The last row weighs what the chunk leaves to the state.
    return state + product("...hsp,...sn->...hpn", x * pairs[..., -1, :, None], b), out
