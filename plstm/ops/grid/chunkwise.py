"""pLSTM on grids block by block, at a cost and memory linear in the nodes (arXiv 2506.11997, Appendix D.8).

The grid is cut into blocks of R x R nodes. Between blocks travel matrix states, one for each of the 2R edges that enter
a block and the 2R that leave it; within a block everything is a small gating matrix. Four gatings describe a block:

    T [out, in]      edges that enter -> edges that leave
    S [out, node]    nodes            -> edges that leave
    M [node, in]     edges that enter -> nodes
    G [node, node]   nodes            -> nodes

and with the states C of its edges a block computes

    C_out = T C_in + S (k v^T)        H = (M q) C_in + (G * q k^T) v

The backward pass keeps the states between rows of blocks, of one chunk of batch x heads, and computes the rest again.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from plstm.ops.common import HIGHEST, add_up, chunked_map, direct_term
from plstm.ops.grid.cpu import num_state_chunks
from plstm.ops.grid.gates import GridGates, mirror, mirror_gates
from plstm.ops.grid.recurrence import pass_node

BLOCK = 4  # nodes a side: an edge costs as much as d_k nodes, so blocks are small
multiply = functools.partial(jnp.matmul, precision=HIGHEST)


def chunkwise(
    q, k, v, gates: GridGates, direct, structure: str, block: int = BLOCK, chunks: int | None = None
) -> Array:
    """Equations 1 and 2 on a grid; arguments as for `plstm.ops.grid.plstm2d`. Reverse-mode derivatives only. chunks: of
    batch x heads; None: as the backend likes it. Returns [..., Y, X, d_v] in the dtype of direct, which the gates must
    have too."""
    scale = q.shape[-1] ** -0.5
    dtype = direct.dtype
    leading = q.ndim - 3
    if chunks is None:
        chunks = num_state_chunks(math.prod(q.shape[:leading]))
    one_chunk: Callable[..., Array] = functools.partial(_one_chunk, structure=structure, block=block)
    if chunks == 1:  # several are checkpointed by `chunked_map`
        one_chunk = jax.checkpoint(one_chunk)
    inputs = (scale * q.astype(dtype), k.astype(dtype), v.astype(dtype), gates)
    return chunked_map(one_chunk, inputs, chunks, leading) + direct_term(q, k, v, direct, scale)


def _one_chunk(q, k, v, gates: GridGates, structure: str, block: int) -> Array:
    """q, k, v [B, Y, X, d], gates [B, 4, Y, X]; the lanes of what follows are B times directions."""
    batch, height, width, _ = q.shape
    q, k, v = (jnp.stack(mirror(jnp.stack([x] * 4), rows=(1,), columns=(2,)), axis=1) for x in (q, k, v))
    q, k, v = (_cut(x.reshape(4 * batch, *x.shape[2:]), block) for x in (q, k, v))  # [I, J, lanes, nodes, d]
    lanes = (gate.reshape(4 * batch, height, width, 1) for gate in mirror_gates(gates))
    gates = GridGates(*(_cut(gate, block)[..., 0] for gate in lanes))
    transfer, source, mark, within = _block_gatings(gates, block, structure)

    @jax.checkpoint
    def visit_row(upper, row):
        start = jnp.zeros_like(upper[0])
        _, (lower, hidden) = lax.scan(lambda left, inputs: _visit_block(left, *inputs), start, (upper, *row))
        return lower, hidden

    upper = jnp.zeros_like(q, shape=(q.shape[1], 4 * batch, block, q.shape[-1] * v.shape[-1]))
    _, hidden = lax.scan(visit_row, upper, (q, k, v, transfer, source, mark))
    hidden = hidden + multiply(within * multiply(q, k.swapaxes(-1, -2)), v)
    rows, columns, _, _, size = hidden.shape  # `_cut` is undone
    hidden = hidden.reshape(rows, columns, batch, 4, block, block, size).transpose(3, 2, 0, 4, 1, 5, 6)
    hidden = hidden.reshape(4, batch, rows * block, columns * block, size)[:, :, :height, :width]
    return add_up(mirror(hidden, rows=(1,), columns=(2,)))


@jax.checkpoint
def _visit_block(left, up, q, k, v, transfer, source, mark):
    """From the states of a block's left and upper edges, [lanes, R, d_k d_v], to those of its right, and of its lower
    edges with what its nodes [lanes, nodes, d] receive from outside."""
    states = jnp.concatenate([left, up], axis=1)
    to_edges = lax.collapse(source[..., None, :] * k.swapaxes(1, 2)[:, None], 1, 3)  # [lanes, 2R d_k, nodes]
    to_nodes = lax.collapse(mark[..., None] * q[:, :, None], 2)  # [lanes, nodes, 2R d_k]
    leaving = multiply(transfer, states) + multiply(to_edges, v).reshape(states.shape)
    hidden = multiply(to_nodes, states.reshape(len(v), to_nodes.shape[2], v.shape[2]))
    right, lower = jnp.split(leaving, 2, axis=1)
    return right, (lower, hidden)


def _block_gatings(gates: GridGates, block: int, structure: str) -> tuple[Array, ...]:
    """T, S, M and G of blocks; gates [I, J, lanes, nodes]: the recurrence itself, on states that hold the weight of
    each entering edge and each node. The blocks are the last axis meanwhile, along which CPUs compute in vectors."""
    ports = 2 * block
    nodes = block * block
    blocks = gates.s_r.shape[:-1]
    by_block = (gate.reshape(math.prod(blocks), block, block) for gate in gates)
    gates = GridGates(*(gate.transpose(1, 2, 0) for gate in by_block))  # [y, x, blocks]
    unit = jnp.eye(ports + nodes, dtype=gates.s_r.dtype)[..., None]
    zeros = jnp.zeros_like(gates.s_r, shape=(ports, ports + nodes, gates.s_r.shape[-1]))
    starts = unit[:ports] + zeros  # left edges, then upper ones

    def visit_row(upper, row):
        gates, left, sources = row
        lower = []
        marked = []
        for x in range(block):
            g = GridGates(*(gate[x] for gate in gates))
            mark, right, down = pass_node(g, left, upper[x], structure)
            left = right + g.s_r * sources[x]
            down = down + g.s_d * sources[x]
            lower.append(down)
            marked.append(mark)
        return jnp.stack(lower), (left, jnp.stack(marked))

    sources = unit[ports:].reshape(block, block, ports + nodes, 1)
    lower, (right, marked) = lax.scan(visit_row, starts[block:], (gates, starts[:block], sources))
    leaving = jnp.concatenate([right, lower])
    marked = marked.reshape(nodes, *marked.shape[2:])
    leaving, marked = (jnp.moveaxis(x, -1, 0).reshape(*blocks, *x.shape[:-1]) for x in (leaving, marked))
    return leaving[..., :ports], leaving[..., ports:], marked[..., :ports], marked[..., ports:]


def _cut(x: Array, block: int) -> Array:
    """[lanes, Y, X, d] -> [I, J, lanes, R * R, d]; blocks that reach over the border are padded with zeros."""
    lanes, height, width, size = x.shape
    x = jnp.pad(x, [(0, 0), (0, -height % block), (0, -width % block), (0, 0)])
    x = x.reshape(lanes, x.shape[1] // block, block, x.shape[2] // block, block, size).transpose(1, 3, 0, 2, 4, 5)
    return x.reshape(*x.shape[:3], block * block, size)
