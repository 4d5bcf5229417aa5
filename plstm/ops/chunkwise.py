"""pLSTM on grids block by block, at a cost and memory linear in the nodes (arXiv 2506.11997, Appendix D.8).

The grid is cut into blocks of R x R nodes. Between blocks travel matrix states, one for each of the 2R edges that enter
a block and the 2R that leave it; within a block everything is a small gating matrix. Four gatings describe a block:

    T [out, in]      edges that enter -> edges that leave
    S [out, node]    nodes            -> edges that leave
    M [node, in]     edges that enter -> nodes
    G [node, node]   nodes            -> nodes

and with the states C of its edges a block computes

    C_out = T C_in + S (k v^T)        H = (M q) C_in + (G * q k^T) v

Block rows follow one another, and in a row block columns. The backward pass keeps the states between block rows and
computes the rest again.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from plstm.ops.directions import GridGates, mirror, pass_node

BLOCK = 4  # nodes a side: an edge costs as much as d_k nodes, so blocks are small


def chunkwise(q, k, v, gates: GridGates, structure: str, block: int = BLOCK) -> jax.Array:
    """Equations 1 and 2 summed over the four directions, without the direct term.

    Args:
        q, k: [..., Y, X, d_k]; q is scaled by d_k ** -0.5.
        v: [..., Y, X, d_v].
        gates: mirrored, each [..., 4, Y, X], in the dtype to compute in.
        structure: as for `plstm.ops.grid.gating_matrix`.
        block: nodes a side of a block.

    Returns:
        [..., Y, X, d_v] in the gates' dtype.
    """
    dtype = gates.s_r.dtype
    q, k, v = (jnp.stack(_directions(tensor.astype(dtype))) for tensor in (q * q.shape[-1] ** -0.5, k, v))
    gates = GridGates(*(jnp.moveaxis(gate, -3, 0) for gate in gates))
    # One direction after the other: their states need not be in memory together.
    hidden = lax.map(jax.checkpoint(lambda inputs: _one_direction(*inputs, structure, block)), (q, k, v, gates))
    return sum(mirror(hidden, 0, rows=(-3,), columns=(-2,)))


def _one_direction(q, k, v, gates: GridGates, structure: str, block: int) -> jax.Array:
    *_, height, width, _ = q.shape
    q, k, v = (_cut(tensor, block, trailing=1) for tensor in (q, k, v))  # [I, J, ..., R * R, d]
    gates = GridGates(*(_cut(gate, block, trailing=0) for gate in gates))  # [I, J, ..., R * R]
    lead = q.shape[2:-2]
    empty = jnp.zeros((*lead, block, k.shape[-1], v.shape[-1]), q.dtype)

    def visit_block(left, inputs):
        up, q, k, v, (transfer, source, mark, within) = inputs
        states = jnp.concatenate([left, up], axis=-3)
        hidden = jnp.einsum("...ni,...nk,...ikv->...nv", mark, q, states, optimize=ORDER)
        hidden += (within * jnp.einsum("...nk,...mk->...nm", q, k)) @ v
        states = jnp.einsum("...oi,...ikv->...okv", transfer, states)
        states += jnp.einsum("...on,...nk,...nv->...okv", source, k, v, optimize=ORDER)
        return states[..., :block, :, :], (states[..., block:, :, :], hidden)

    @jax.checkpoint
    def visit_row(upper, row):
        q, k, v, gates = row
        _, (lower, hidden) = lax.scan(visit_block, empty, (upper, q, k, v, _block_gatings(gates, block, structure)))
        return lower, hidden

    upper = jnp.broadcast_to(empty, (q.shape[1], *empty.shape))
    _, hidden = lax.scan(visit_row, upper, (q, k, v, gates))
    return _join(hidden, block, height, width)


# Of three factors, which product is taken first: queries and keys are weighed by the gating.
ORDER = [(0, 1), (0, 1)]


def _block_gatings(gates: GridGates, block: int, structure: str) -> tuple[jax.Array, ...]:
    """T, S, M and G of blocks; gates [..., R * R].

    The recurrence itself, on states that hold the weight of each entering edge and each node of the block.
    """
    ports, nodes = 2 * block, block * block
    unit = jnp.eye(ports + nodes, dtype=gates.s_r.dtype)
    shape = (*gates.s_r.shape[:-1], ports + nodes)
    edges = [jnp.broadcast_to(unit[n], shape) for n in range(ports)]  # left edges of the rows, then upper ones
    marked = []
    for n in range(nodes):
        row, column = divmod(n, block)
        g = GridGates(*(gate[..., n, None] for gate in gates))
        mark, right, down = pass_node(g, edges[row], edges[block + column], structure)
        edges[row], edges[block + column] = right + g.s_r * unit[ports + n], down + g.s_d * unit[ports + n]
        marked.append(mark)
    leaving, marked = jnp.stack(edges, axis=-2), jnp.stack(marked, axis=-2)
    return leaving[..., :ports], leaving[..., ports:], marked[..., :ports], marked[..., ports:]


def _directions(tensor: jax.Array) -> list[jax.Array]:
    """[..., Y, X, d] as each of the four directions meets it."""
    return mirror(jnp.stack([tensor] * 4), 0, rows=(-3,), columns=(-2,))


def _cut(tensor: jax.Array, block: int, trailing: int) -> jax.Array:
    """[..., Y, X, *trailing] -> [I, J, ..., R * R, *trailing]; blocks over the edge are filled up with zeros."""
    axis = tensor.ndim - trailing - 2
    height, width = tensor.shape[axis : axis + 2]
    padding = [(0, 0)] * axis + [(0, -height % block), (0, -width % block)] + [(0, 0)] * trailing
    tensor = jnp.pad(tensor, padding)
    rows, columns = (side // block for side in tensor.shape[axis : axis + 2])
    lead, rest = tensor.shape[:axis], tensor.shape[axis + 2 :]
    tensor = tensor.reshape(*lead, rows, block, columns, block, *rest)
    tensor = jnp.moveaxis(tensor, (axis, axis + 2), (0, 1))
    return tensor.reshape(rows, columns, *lead, block * block, *rest)


def _join(tensor: jax.Array, block: int, height: int, width: int) -> jax.Array:
    """Undoes `_cut` with one trailing axis."""
    rows, columns, *lead, _, size = tensor.shape
    tensor = tensor.reshape(rows, columns, *lead, block, block, size)
    tensor = jnp.moveaxis(tensor, (0, 1), (-5, -3))
    return tensor.reshape(*lead, rows * block, columns * block, size)[..., :height, :width, :]
