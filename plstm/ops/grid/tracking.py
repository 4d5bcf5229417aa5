"""pLSTM on grids with matrices as transitions, so that it can track states (arXiv 2506.11997, Appendix D.6)."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from plstm.ops.common import accumulation_dtype, add_up, check_axes, product, public_operator
from plstm.ops.grid.gates import GridGates, mirror
from plstm.ops.scans import cast

AXES = "s_r, s_d [..., 4, Y, X, J_T, J_K, J_V]; t_rl, t_ru, t_dl, t_du [..., 4, Y, X, J_T, J_T]; "
AXES += "m_l, m_u [..., 4, Y, X, J_O, J_Q, J_T]; q [..., Y, X, d_k, J_Q]; k [..., Y, X, d_k, J_K]; "
AXES += "v [..., Y, X, d_v, J_V]; direct [..., Y, X, J_O, J_Q, J_K, J_V]"


@public_operator
def plstm2d_tracking(q: Array, k: Array, v: Array, gates: GridGates, direct: Array) -> Array:
    """`plstm.ops.grid.plstm2d` with the axes of Equations 31 to 34: matrices multiply a state C [d_k, d_v, J_T], as in
    `plstm.ops.sequence.plstm1d_tracking`; summed over the four directions.

    q [..., Y, X, d_k, J_Q], k [..., Y, X, d_k, J_K], v [..., Y, X, d_v, J_V]; gates: sources [..., 4, Y, X, J_T, J_K,
    J_V], transitions [..., 4, Y, X, J_T, J_T], to, then from, and marks [..., 4, Y, X, J_O, J_Q, J_T]; direct [..., Y,
    X, J_O, J_Q, J_K, J_V], added once -> [..., Y, X, d_v, J_O] in v's dtype. q is scaled by d_k ** -0.5. With every
    J = 1 it is `plstm2d`.

    Row by row in float32 or more; within a row the states of all nodes follow in about 2 log2(X) products. Raises
    ValueError where shapes disagree or an axis that is named is empty.
    """
    check_axes(AXES, *gates, q, k, v, direct)
    dtype = v.dtype
    wide = accumulation_dtype(*gates, q, k, v, direct)
    gates = GridGates(*cast(gates, wide))
    q, k, v, direct = cast((q, k, v, direct), wide)
    q = q * q.shape[-2] ** -0.5
    axis = q.ndim - 4  # of Y, and of the directions

    def by_row(directions):  # [4, ..., Y, X, ...] -> [Y, 4, ..., X, ...], each direction in its own coordinates
        return jnp.moveaxis(jnp.stack(mirror(directions, rows=(axis,), columns=(axis + 1,))), axis + 1, 0)

    nodes = [by_row([x] * 4) for x in (q, k, v)]
    inputs = *nodes, GridGates(*(by_row(jnp.moveaxis(gate, axis, 0)) for gate in gates))
    size = gates.t_rl.shape[-1], q.shape[-2] * v.shape[-2]
    upper = jnp.zeros_like(q, shape=(4, *q.shape[:axis], q.shape[axis + 1], *size))
    row = jax.checkpoint(_row, prevent_cse=False)  # or the backward pass would keep each state several times
    hidden = jnp.moveaxis(lax.scan(row, upper, inputs)[1], 0, axis + 1)
    own = product("...ojkl,...jk,...vl->...vo", direct, product("...aj,...ak->...jk", q, k), v)
    return (add_up(mirror(hidden, rows=(axis,), columns=(axis + 1,))) + own).astype(dtype)


def _row(upper: Array, inputs: tuple[Array, Array, Array, GridGates]) -> tuple[Array, Array]:
    """A row in all directions: states of its upper edges [4, ..., X, J_T, d_k d_v] -> of its lower ones, and what its
    nodes read [4, ..., X, d_v, J_O]."""
    q, k, v, g = inputs
    times = functools.partial(product, "...sr,...rx->...sx")  # of states, and of one transition after another

    def write(source):
        states = product("...ak,...skv->...sav", k, product("...skl,...vl->...skv", source, v))
        return lax.collapse(states, upper.ndim - 1)

    def follow(first, second):  # two stretches of a row: what passes through both, and what leaves them
        return times(second[0], first[0]), times(second[0], first[1]) + second[1]

    right = lax.associative_scan(follow, (g.t_rl, times(g.t_ru, upper) + write(g.s_r)), axis=upper.ndim - 3)[1]
    left = jnp.concatenate([jnp.zeros_like(right[..., :1, :, :]), right[..., :-1, :, :]], axis=-3)

    def read(mark, states):
        states = states.reshape(*states.shape[:-1], k.shape[-2], v.shape[-2])
        return product("...ojs,...jsv->...vo", mark, product("...aj,...sav->...jsv", q, states))

    return times(g.t_dl, left) + times(g.t_du, upper) + write(g.s_d), read(g.m_l, left) + read(g.m_u, upper)
