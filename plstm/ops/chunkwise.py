"""pLSTM on grids block by block, at a cost and memory linear in the nodes (arXiv 2506.11997, Appendix D.8).

The grid is cut into blocks of R x R nodes. Between blocks travel matrix states, one for each of the 2R edges that enter
a block and the 2R that leave it; within a block everything is a small gating matrix. Four gatings describe a block:

    T [out, in]      edges that enter -> edges that leave
    S [out, node]    nodes            -> edges that leave
    M [node, in]     edges that enter -> nodes
    G [node, node]   nodes            -> nodes

and with the states C of its edges a block computes

    C_out = T C_in + S (k v^T)        H = (M q) C_in + (G * q k^T) v

Block rows follow one another, and in a row block columns. The backward pass keeps the states between block rows of one
group of images and heads at a time, and computes the rest again.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from plstm.ops.directions import GridGates, mirror, pass_node

BLOCK = 4  # nodes a side: an edge costs as much as d_k nodes, so blocks are small


def chunkwise(q, k, v, gates: GridGates, structure: str, block: int = BLOCK, group: int | None = None) -> jax.Array:
    """Equations 1 and 2 summed over the four directions, without the direct term.

    Args:
        q, k: [..., Y, X, d_k]; q is scaled by d_k ** -0.5.
        v: [..., Y, X, d_v].
        gates: mirrored, each [..., 4, Y, X], in the dtype to compute in.
        structure: as for `plstm.ops.grid.gating_matrix`.
        block: nodes a side of a block.
        group: so many of the leading axes' entries are computed together, one group after the other; it divides their
            number. By default 1 on CPUs, whose caches hold the states of few, and all elsewhere.

    Returns:
        [..., Y, X, d_v] in the gates' dtype. Reverse-mode derivatives only.
    """
    *lead, height, width, _ = q.shape
    entries = gates.s_r.size // (4 * height * width)
    group = group or (1 if jax.default_backend() == "cpu" else max(entries, 1))
    q, k, v = (tensor.astype(gates.s_r.dtype) for tensor in (q, k, v))
    inputs = (q * q.shape[-1] ** -0.5, k, v, gates)
    inputs = jax.tree.map(lambda x: x.reshape(entries // group, group, *x.shape[len(lead) :]), inputs)
    hidden = lax.map(jax.checkpoint(lambda inputs: _one_group(*inputs, structure, block)), inputs)
    return hidden.reshape(*lead, height, width, v.shape[-1])


def _one_group(q, k, v, gates: GridGates, structure: str, block: int) -> jax.Array:
    """q, k, v [group, Y, X, d], gates [group, 4, Y, X]; the lanes of what follows are the group times directions."""
    group, height, width, _ = q.shape
    lanes, nodes = 4 * group, block * block
    q, k, v = (_cut(jnp.stack(mirror(jnp.stack([x] * 4), 0, (-3,), (-2,)), axis=1), block, 1) for x in (q, k, v))
    q, k, v = (x.reshape(*x.shape[:2], lanes, nodes, x.shape[-1]) for x in (q, k, v))  # [I, J, lanes, nodes, d]
    gates = GridGates(*(_cut(gate, block, 0).reshape(*q.shape[:4]) for gate in gates))
    transfer, source, mark, within = _block_gatings(gates, block, structure)

    @jax.checkpoint
    def visit_row(upper, row):
        start = jnp.zeros_like(upper[0])
        _, (lower, hidden) = lax.scan(lambda left, inputs: _visit_block(left, *inputs), start, (upper, *row))
        return lower, hidden

    upper = jnp.zeros((q.shape[1], lanes, block, q.shape[-1] * v.shape[-1]), q.dtype)
    _, hidden = lax.scan(visit_row, upper, (q, k, v, transfer, source, mark))
    hidden = hidden + _product(within * _product(q, k.swapaxes(-1, -2)), v)
    hidden = _join(hidden.reshape(*hidden.shape[:2], group, 4, nodes, -1), block, height, width)
    return sum(mirror(hidden, 1, rows=(-3,), columns=(-2,)))


@jax.custom_vjp
def _visit_block(left, up, q, k, v, transfer, source, mark):
    """One block from the states of its left and upper edges, [lanes, R, d_k d_v] each.

    q, k, v [lanes, nodes, d], transfer [lanes, 2R, 2R], source [lanes, 2R, nodes], mark [lanes, nodes, 2R]. Returns the
    states of its right edges, and those of its lower edges with what the nodes receive from outside the block.

    The gradients are written out because every product below has its contracted axis last in the first factor and
    first in the second: as fast again, on CPUs, as the transposed ones that would be derived.
    """
    states = jnp.concatenate([left, up], axis=1)
    leaving = _product(transfer, states) + _product(_weighted(source, k), v).reshape(states.shape)
    hidden = _product(_weighted(mark, q, nodes_first=True), _by_key(states, v))
    right, lower = jnp.split(leaving, 2, axis=1)
    return right, (lower, hidden)


def _visit_block_forward(*inputs):
    return _visit_block(*inputs), inputs


def _visit_block_backward(inputs, cotangents):
    left, up, q, k, v, transfer, source, mark = inputs
    d_right, (d_lower, d_hidden) = cotangents
    states, d_leaving = jnp.concatenate([left, up], axis=1), jnp.concatenate([d_right, d_lower], axis=1)
    mark = mark.swapaxes(1, 2)  # [lanes, 2R, nodes], as source
    d_states = _product(transfer.swapaxes(1, 2), d_leaving)
    d_states += _product(_weighted(mark, q), d_hidden).reshape(states.shape)
    d_transfer = _product(d_leaving, states.swapaxes(1, 2))
    d_mark, d_q = _unweighted(_product(_by_key(states, v), d_hidden.swapaxes(1, 2)), mark, q)
    d_source, d_k = _unweighted(_product(_by_key(d_leaving, v), v.swapaxes(1, 2)), source, k)
    d_v = _product(_weighted(source.swapaxes(1, 2), k, nodes_first=True), _by_key(d_leaving, v))
    d_left, d_up = jnp.split(d_states, 2, axis=1)
    return d_left, d_up, d_q, d_k, d_v, d_transfer, d_source, d_mark.swapaxes(1, 2)


_visit_block.defvjp(_visit_block_forward, _visit_block_backward)


def _by_key(states: jax.Array, v: jax.Array) -> jax.Array:
    """States [lanes, 2R, d_k d_v] -> [lanes, 2R d_k, d_v]."""
    return states.reshape(len(states), -1, v.shape[-1])


def _weighted(gating: jax.Array, x: jax.Array, nodes_first: bool = False) -> jax.Array:
    """x [lanes, nodes, d] by an edge's gating of each node: [lanes, 2R d, nodes], or [lanes, nodes, 2R d].

    gating: [lanes, 2R, nodes], or [lanes, nodes, 2R].
    """
    if nodes_first:
        return (gating[..., None] * x[:, :, None]).reshape(*x.shape[:2], -1)
    return (gating[:, :, None] * x.swapaxes(1, 2)[:, None]).reshape(len(x), -1, x.shape[1])


def _unweighted(cotangent: jax.Array, gating: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradients of gating and x from that of `_weighted(gating, x)`."""
    cotangent = cotangent.reshape(*gating.shape[:2], x.shape[-1], x.shape[1])
    d_gating = (cotangent * x.swapaxes(1, 2)[:, None]).sum(2)
    return d_gating, (cotangent * gating[:, :, None]).sum(1).swapaxes(1, 2)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _block_gatings(gates: GridGates, block: int, structure: str) -> tuple[jax.Array, ...]:
    """T, S, M and G of blocks; gates [I, J, lanes, nodes].

    The recurrence itself, on states that hold the weight of each entering edge and each node of the block. The blocks
    are the last axis meanwhile, along which CPUs compute in vectors.
    """
    ports, nodes = 2 * block, block * block
    blocks = gates.s_r.shape[:-1]
    gates = GridGates(*(gate.reshape(-1, block, block).transpose(1, 2, 0) for gate in gates))  # [y, x, blocks]
    unit = jnp.eye(ports + nodes, dtype=gates.s_r.dtype)[..., None]
    starts = jnp.broadcast_to(unit[:ports], (ports, ports + nodes, gates.s_r.shape[-1]))  # left edges, then upper ones

    def visit_row(upper, row):
        gates, left, sources = row
        lower, marked = [], []
        for x in range(block):
            g = GridGates(*(gate[x] for gate in gates))
            mark, right, down = pass_node(g, left, upper[x], structure)
            left, down = right + g.s_r * sources[x], down + g.s_d * sources[x]
            lower.append(down)
            marked.append(mark)
        return jnp.stack(lower), (left, jnp.stack(marked))

    sources = unit[ports:].reshape(block, block, ports + nodes, 1)
    lower, (right, marked) = lax.scan(visit_row, starts[block:], (gates, starts[:block], sources))
    leaving, marked = jnp.concatenate([right, lower]), marked.reshape(nodes, *marked.shape[2:])
    leaving, marked = (jnp.moveaxis(x, -1, 0).reshape(*blocks, -1, ports + nodes) for x in (leaving, marked))
    return leaving[..., :ports], leaving[..., ports:], marked[..., :ports], marked[..., ports:]


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
