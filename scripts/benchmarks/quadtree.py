"""The gating matrix by the quad-tree recursion of the paper (arXiv 2506.11997, Appendix D.3), Equations 16-24.

The grid is padded to a square with a power of two as its side; at each level 2 x 2 blocks merge into one, whose source,
transition and mark tensors then cover the block's nodes and boundary edges.
"""

from collections.abc import Callable
from math import isqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plstm.ops.grid import GridGates

DIRECTION_FLIPS = ((), (-1,), (-2,), (-2, -1))  # right-down, left-down, right-up, left-up


class Blocks(NamedTuple):
    """One level: [..., 4, By, Bx] blocks, each of 4^level nodes n in row-major order with 2^level edges e on a side."""

    s_r: jax.Array  # [..., n, e] nodes -> right boundary edges
    s_d: jax.Array  # [..., n, e] nodes -> lower boundary edges
    t_rl: jax.Array  # [..., e, e] left -> right boundary edges
    t_ru: jax.Array  # [..., e, e] upper -> right
    t_dl: jax.Array  # [..., e, e] left -> lower
    t_du: jax.Array  # [..., e, e] upper -> lower
    m_l: jax.Array  # [..., e, n] left boundary edges -> nodes
    m_u: jax.Array  # [..., e, n] upper -> nodes
    gating: jax.Array  # [..., n, n] source node -> target node, within the block


def plstm2d(q, k, v, gates: GridGates, direct) -> jax.Array:
    """`plstm.ops.grid.plstm2d` with the gating matrix by quad-tree; what follows the matrix is the same."""
    *lead, height, width, key_dim = q.shape
    nodes = height * width
    weights = gating_matrix(gates).reshape(*lead, nodes, nodes)
    weights += direct.reshape(*lead, nodes, 1) * jnp.eye(nodes)
    q, k, v = (tensor.reshape(*lead, nodes, -1) for tensor in (q, k, v))
    weights *= jnp.einsum("...ak,...bk->...ab", k, q) * key_dim**-0.5
    return jnp.einsum("...ab,...av->...bv", weights, v).reshape(*lead, height, width, -1)


def gating_matrix(gates: GridGates) -> jax.Array:
    """The gating matrix G of Equation 3 for any 2x2 transitions.

    Args:
        gates: eight tensors [..., 4, Y, X].

    Returns:
        [..., Y, X, Y, X], source node, then target; directions summed; no direct term.
    """
    height, width = gates.s_r.shape[-2:]
    levels = (max(height, width) - 1).bit_length()
    blocks = _single_nodes(gates, 2**levels)
    for _ in range(levels):
        blocks = _merge(blocks)
    matrix = blocks.gating.reshape(*gates.s_r.shape[:-2], *(2**levels,) * 4)[..., :height, :width, :height, :width]
    return sum(
        jnp.flip(matrix[..., n, :, :, :, :], (*axes, *(axis - 2 for axis in axes)))
        for n, axes in enumerate(DIRECTION_FLIPS)
    )


def _single_nodes(gates: GridGates, side: int) -> Blocks:
    """Level 0: a block is a node. Padded nodes have zero gates, so nothing passes through them."""
    height, width = gates.s_r.shape[-2:]
    gates = (jnp.stack([jnp.flip(g[..., n, :, :], axes) for n, axes in enumerate(DIRECTION_FLIPS)], -3) for g in gates)
    padding = ((0, side - height), (0, side - width))
    padded = [jnp.pad(gate, ((0, 0),) * (gate.ndim - 2) + padding)[..., None, None] for gate in gates]
    return Blocks(*padded, gating=jnp.zeros_like(padded[0]))


def _merge(blocks: Blocks) -> Blocks:
    """One level up: a, b are the upper left and right blocks of each four, c, d the lower left and right ones.

    Signals cross from a to b and from c to d through right edges, from a to c and from b to d through lower edges.
    Every tensor below is written as the table of its sub-blocks: from where (a line) to where (a column).
    """
    a, b, c, d = (
        Blocks(*(tensor[..., y::2, x::2, :, :] for tensor in blocks)) for y, x in ((0, 0), (0, 1), (1, 0), (1, 1))
    )
    # From a's right edges through b, and from a's lower edges through c, into d: its right and lower edges, its nodes.
    b_to_r, b_to_d, b_to_m = b.t_dl @ d.t_ru, b.t_dl @ d.t_du, b.t_dl @ d.m_u
    c_to_r, c_to_d, c_to_m = c.t_ru @ d.t_rl, c.t_ru @ d.t_dl, c.t_ru @ d.m_l
    no_s, no_t, no_m, no_g = (jnp.zeros_like(tensor) for tensor in (a.s_r, a.t_rl, a.m_l, a.gating))
    s_r = [  # nodes of a, b, c, d -> right edges of b, d: Equations 16, 17
        [a.s_r @ b.t_rl, a.s_r @ b_to_r + a.s_d @ c_to_r],
        [b.s_r, b.s_d @ d.t_ru],
        [no_s, c.s_r @ d.t_rl],
        [no_s, d.s_r],
    ]
    s_d = [  # nodes of a, b, c, d -> lower edges of c, d: Equation 18
        [a.s_d @ c.t_du, a.s_r @ b_to_d + a.s_d @ c_to_d],
        [no_s, b.s_d @ d.t_du],
        [c.s_d, c.s_r @ d.t_dl],
        [no_s, d.s_d],
    ]
    # left edges of a, c -> right edges of b, d: Equation 19
    t_rl = [[a.t_rl @ b.t_rl, a.t_rl @ b_to_r + a.t_dl @ c_to_r], [no_t, c.t_rl @ d.t_rl]]
    # upper edges of a, b -> lower edges of c, d: Equation 20
    t_du = [[a.t_du @ c.t_du, a.t_ru @ b_to_d + a.t_du @ c_to_d], [no_t, b.t_du @ d.t_du]]
    # upper edges of a, b -> right edges of b, d: Equation 21
    t_ru = [[a.t_ru @ b.t_rl, a.t_ru @ b_to_r + a.t_du @ c_to_r], [b.t_ru, b.t_du @ d.t_ru]]
    # left edges of a, c -> lower edges of c, d: Equation 22
    t_dl = [[a.t_dl @ c.t_du, a.t_rl @ b_to_d + a.t_dl @ c_to_d], [c.t_dl, c.t_rl @ d.t_dl]]
    m_l = [  # left edges of a, c -> nodes of a, b, c, d: Equation 23
        [a.m_l, a.t_rl @ b.m_l, a.t_dl @ c.m_u, a.t_rl @ b_to_m + a.t_dl @ c_to_m],
        [no_m, no_m, c.m_l, c.t_rl @ d.m_l],
    ]
    m_u = [  # upper edges of a, b -> nodes of a, b, c, d: Equation 24
        [a.m_u, a.t_ru @ b.m_l, a.t_du @ c.m_u, a.t_ru @ b_to_m + a.t_du @ c_to_m],
        [no_m, b.m_u, no_m, b.t_du @ d.m_u],
    ]
    gating = [  # nodes -> nodes: a pair meets in the smallest block that holds both, Appendix D.2
        [a.gating, a.s_r @ b.m_l, a.s_d @ c.m_u, a.s_r @ b_to_m + a.s_d @ c_to_m],
        [no_g, b.gating, no_g, b.s_d @ d.m_u],
        [no_g, no_g, c.gating, c.s_r @ d.m_l],
        [no_g, no_g, no_g, d.gating],
    ]
    edges = jnp.concatenate
    sources = (_join(table, _nodes, edges) for table in (s_r, s_d))
    transitions = (_join(table, edges, edges) for table in (t_rl, t_ru, t_dl, t_du))
    marks = (_join(table, edges, _nodes) for table in (m_l, m_u))
    return Blocks(*sources, *transitions, *marks, _join(gating, _nodes, _nodes))


def _join(table: list[list[jax.Array]], lines: Callable, columns: Callable) -> jax.Array:
    return lines([columns(line, -1) for line in table], -2)


def _nodes(parts: list[jax.Array], axis: int) -> jax.Array:
    """Joins the node axes of a, b, c, d so that the nodes of the new block are in row-major order again."""
    before, (nodes, *after) = parts[0].shape[:axis], parts[0].shape[axis:]
    a, b, c, d = (part.reshape(*before, isqrt(nodes), isqrt(nodes), *after) for part in parts)
    rows = [jnp.concatenate(pair, axis) for pair in ((a, b), (c, d))]
    return jnp.concatenate(rows, axis - 1).reshape(*before, 4 * nodes, *after)
