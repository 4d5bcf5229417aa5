"""The sLSTM of xLSTM (Beck et al., 2024): scalar memories, exponential input gates, gates that read the last output."""

import jax
import jax.numpy as jnp
from jax import Array

from plstm.ops.common import accumulation_dtype, check_axes, product, public_operator
from plstm.ops.scans import cast, scan_steps


@public_operator
def slstm(i: Array, f: Array, z: Array, o: Array, recurrent: Array) -> Array:
    """Pre-activations [..., T, heads, d_h], to which step t adds h_(t-1) `recurrent` [heads, d_h, 4, d_h], gates in the
    order i, f, z, o -> h [..., T, heads, d_h] in z's dtype. For each unit, from c, n = 0:

        m_t = max(log sigmoid(f_t) + m_(t-1), i_t),  F = exp(log sigmoid(f_t) + m_(t-1) - m_t),  I = exp(i_t - m_t)
        c_t = F c_(t-1) + I tanh(z_t),  n_t = F n_(t-1) + I,  h_t = sigmoid(o_t) c_t / n_t

    in float32 or more. i must be above minus infinity at the first token and wherever f is minus infinity, else h is
    NaN from there on. Gates read outputs, so it takes T steps. Raises ValueError where shapes disagree or an axis that
    is named is empty.
    """
    check_axes("z, i, f, o [..., T, heads, d_h]; recurrent [heads, d_h, 4, d_h]", z, i, f, o, recurrent)
    *lead, _, heads, dim = z.shape
    dtype = accumulation_dtype(i, f, z, o, recurrent)
    weight = recurrent.astype(dtype)

    def step(state, inputs):
        h, c, n, m = state
        inputs = jnp.stack(inputs, axis=-2) + product("...hd,hdge->...hge", h, weight)
        i, f, z, o = jnp.moveaxis(inputs, -2, 0)
        decayed = jax.nn.log_sigmoid(f) + m
        m = jax.lax.stop_gradient(jnp.maximum(decayed, i))  # c / n does not depend on it
        keep = jnp.exp(decayed - m)
        write = jnp.exp(i - m)
        c = keep * c + write * jnp.tanh(z)
        n = keep * n + write
        h = jax.nn.sigmoid(o) * c / n
        return (h, c, n, m), h

    zeros = jnp.zeros_like(z, dtype, shape=(*lead, heads, dim))
    state = zeros, zeros, zeros, jnp.full_like(zeros, -jnp.inf)
    return scan_steps(step, state, cast((i, f, z, o), dtype), len(lead)).astype(z.dtype)
