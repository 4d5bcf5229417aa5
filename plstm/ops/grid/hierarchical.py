"""The gating matrix by merging blocks of nodes, in logarithmically many products (Appendix D.3).

A block is known by what it does to signals on its boundary: its source [nodes, edges out], transition [edges in, edges
out] and mark [edges in, nodes], with the names of the nodes' gates, and the gating matrix of its own nodes. The paper's
Equations 16 to 24 merge four blocks; here two neighbours are merged at a time, which is the recursion of a sequence
(Equations 25 to 28) along the rows, then along the columns.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plstm.ops.common import product
from plstm.ops.grid.gates import GridGates


class Block(NamedTuple):
    """A block, or many; fields as in `GridGates`, each a matrix [..., from, to]."""

    s_r: Array
    s_d: Array
    t_rl: Array
    t_ru: Array
    t_dl: Array
    t_du: Array
    m_l: Array
    m_u: Array
    gating: Array  # of its nodes

    def transpose(self) -> "Block":
        """The block with rows and columns of the grid exchanged."""
        s_r, s_d, t_rl, t_ru, t_dl, t_du, m_l, m_u, gating = self
        return Block(s_d, s_r, t_du, t_dl, t_ru, t_rl, m_u, m_l, gating)


def merge_blocks(gates: GridGates) -> Array:
    """gates [B, 4, Y, X], each direction in its own coordinates -> [B, 4, N, N], source, then target."""
    *_, height, width = gates.s_r.shape
    rows = 1 << (height - 1).bit_length()
    columns = 1 << (width - 1).bit_length()
    padding = ((0, rows - height), (0, columns - width))
    nodes = np.pad(np.arange(height * width).reshape(height, width), padding, constant_values=-1)[..., None]
    gates = jax.tree.map(lambda gate: jnp.pad(gate, ((0, 0), (0, 0), *padding))[..., None, None], gates)
    blocks = Block(*gates, gating=jnp.zeros_like(gates.s_r))
    while rows * columns > 1:
        if columns > 1:
            blocks = _join(*(jax.tree.map(lambda x, n=n: x[:, :, :, n::2], blocks) for n in (0, 1)))
            nodes = np.concatenate([nodes[:, 0::2], nodes[:, 1::2]], axis=-1)
            columns //= 2
        if rows > 1:
            upper, lower = (jax.tree.map(lambda x, n=n: x[:, :, n::2], blocks).transpose() for n in (0, 1))
            blocks = _join(upper, lower).transpose()
            nodes = np.concatenate([nodes[0::2], nodes[1::2]], axis=-1)
            rows //= 2
    order = np.argsort(nodes.ravel())[-height * width :]  # of the grid's nodes; the padding is in front
    return blocks.gating[:, :, 0, 0][..., order[:, None], order]


def _join(a: Block, b: Block) -> Block:
    """Blocks [..., rows, columns] and their right neighbours: what leaves `a` on the right enters `b` on the left."""

    def through(out_of_a: Array, into_b: Array) -> Array:
        return product("...ij,...jk->...ik", out_of_a, into_b)

    def beside(of_a: Array, across: Array, of_b: Array) -> Array:  # from b there is no way to a
        return jnp.block([[of_a, across], [jnp.zeros_like(of_a), of_b]])

    return Block(
        s_r=jnp.concatenate([through(a.s_r, b.t_rl), b.s_r], axis=-2),
        s_d=beside(a.s_d, through(a.s_r, b.t_dl), b.s_d),
        t_rl=through(a.t_rl, b.t_rl),
        t_ru=jnp.concatenate([through(a.t_ru, b.t_rl), b.t_ru], axis=-2),
        t_dl=jnp.concatenate([a.t_dl, through(a.t_rl, b.t_dl)], axis=-1),
        t_du=beside(a.t_du, through(a.t_ru, b.t_dl), b.t_du),
        m_l=jnp.concatenate([a.m_l, through(a.t_rl, b.m_l)], axis=-1),
        m_u=beside(a.m_u, through(a.t_ru, b.m_l), b.m_u),
        gating=beside(a.gating, through(a.s_r, b.m_l), b.gating),
    )
