"""The gated delta rule (Yang et al., 2024): a decaying matrix memory that replaces what it holds under a key."""

import jax
import jax.numpy as jnp
from jax import Array

from plstm.ops.common import accumulation_dtype, check_axes, check_choice, product, public_operator
from plstm.ops.scans import FORGOTTEN, METHODS, cast, causal, even_chunk, join_axes, scan_chunks, scan_steps


@public_operator
def gated_delta_rule(
    q: Array, k: Array, v: Array, log_alpha: Array, beta: Array, *, method: str = "auto", chunk: int = 32
) -> Array:
    """q, k of norm 1 (the caller normalises) [..., T, d_k]; v [..., T, d_v]; log_alpha <= 0, beta in [0, 2] [..., T] ->
    y [..., T, d_v] in v's dtype. From S = 0:

        S' = alpha_t S_(t-1),  S_t = S' + beta_t k_t (v_t - S'^T k_t)^T,  y_t = S_t^T q_t / sqrt(d_k)

    in float32 or more; a log_alpha below -120 counts as -120. "recurrent" takes T steps, "chunkwise" (and "auto") one
    for each of the even chunks of at most `chunk` tokens, with reverse-mode derivatives only; 32 was faster on CPUs
    than 64. Raises ValueError where shapes disagree, an axis that is named is empty, `chunk` is under 1 or the method
    is unknown.
    """
    check_choice("method", method, METHODS)
    check_axes("q, k [..., T, d_k]; v [..., T, d_v]; log_alpha, beta [..., T]", q, k, v, log_alpha, beta)
    *lead, length, d_k = q.shape
    chunk = even_chunk(chunk, length)
    dtype = accumulation_dtype(q, k, v, log_alpha, beta)
    q = q.astype(dtype) * d_k**-0.5
    log_alpha = jnp.maximum(log_alpha, FORGOTTEN)
    inputs = join_axes(cast((q, k, v, log_alpha, beta), dtype), len(lead))
    state = jnp.zeros_like(inputs[0], shape=(len(inputs[0]), d_k, v.shape[-1]))
    recurrent = method == "recurrent"
    y = scan_steps(_step, state, inputs, 1) if recurrent else scan_chunks(_chunk, state, inputs, 1, chunk)
    return y.reshape(v.shape).astype(v.dtype)


def _step(state, inputs):
    """One token: q, k [..., d_k], v [..., d_v], log_alpha, beta [...]."""
    q, k, v, log_alpha, beta = inputs
    state = jnp.exp(log_alpha)[..., None, None] * state
    new = beta[..., None] * (v - product("...k,...kv->...v", k, state))
    state = state + k[..., :, None] * new[..., None, :]
    return state, product("...k,...kv->...v", q, state)


def _chunk(state, inputs):
    """L tokens: q, k [..., L, d_k], v [..., L, d_v], log_alpha, beta [..., L]. What the tokens write depends on what
    the earlier ones of the chunk have written: (I + N) new = beta (v - exp(b) k S), N strictly lower triangular."""
    q, k, v, log_alpha, beta = inputs
    b = jnp.cumsum(log_alpha, axis=-1)
    decay = jnp.exp(jnp.where(causal(b.shape[-1]), b[..., :, None] - b[..., None, :], -jnp.inf))
    since_start = jnp.exp(b)[..., None]
    until_end = decay[..., -1, :, None]
    # Only the part below the diagonal is read.
    system = beta[..., None] * decay * product("...tk,...sk->...ts", k, k)
    target = beta[..., None] * (v - since_start * product("...tk,...kv->...tv", k, state))
    new = solve_unit_lower(system, target)
    within = product("...tk,...sk->...ts", q, k) * decay
    out = product("...tk,...kv->...tv", since_start * q, state) + product("...ts,...sv->...tv", within, new)
    return since_start[..., -1:, :] * state + product("...sk,...sv->...kv", until_end * k, new), out


@jax.custom_vjp
def solve_unit_lower(lower: Array, right: Array) -> Array:
    """(I + N)^-1 right, N the part of `lower` [..., L, L] below its diagonal; right [..., L, d].

    The inverse grows from blocks of one row by doubling, as exact as substitution. The product (I - N)(I + N^2) ...
    is not: where keys repeat, its terms cancel."""
    return _solve(lower, right)[0]


def _solve(lower, right):
    """The solution, and what its gradient needs: the inverse and the solution."""
    row, column = jnp.indices(lower.shape[-2:])
    inverse = jnp.broadcast_to(jnp.eye(lower.shape[-1], dtype=lower.dtype), lower.shape)
    size = 1
    while size < lower.shape[-1]:
        crossing = (row // size == column // size + 1) & (row // size % 2 == 1)  # from a block to its right neighbour
        crossing = product("...ij,...jk->...ik", inverse, jnp.where(crossing, lower, 0))
        inverse = inverse - product("...ij,...jk->...ik", crossing, inverse)
        size = 2 * size
    solution = product("...ij,...jd->...id", inverse, right)
    return solution, (inverse, solution)


def _solve_backward(saved, cotangent):
    inverse, solution = saved
    right = product("...ji,...jd->...id", inverse, cotangent)
    return -jnp.tril(product("...id,...jd->...ij", right, solution), -1), right


solve_unit_lower.defvjp(_solve, _solve_backward)
