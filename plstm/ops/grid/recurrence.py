"""pLSTM on grids as the paper defines it: Equations 1 and 2, node by node (arXiv 2506.11997, Section 3).

This is the definition that every fast form is tested against, and `method="recurrent"`. A direction is a mirror image
of the grid, which reads as right-down.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from plstm.ops.common import add_up, direct_term, product
from plstm.ops.grid.gates import GridGates, mirror, mirror_gates


def pass_node(g: GridGates, left: Array, up: Array, structure: str) -> tuple[Array, Array, Array]:
    """What a node marks, and passes on to its right and its lower edge, from its left and its upper edge's states
    (Equations 1 and 2 without the node's own source). g: the node's gates, of shapes that broadcast with the states.
    """
    if structure == "shared_incoming":
        both = left + up
        return g.m_l * both, g.t_rl * both, g.t_dl * both
    marked = g.m_l * left + g.m_u * up
    right = g.t_rl * left
    down = g.t_dl * left + g.t_du * up
    return marked, right if structure == "d_mode" else right + g.t_ru * up, down


def plstm2d_oracle(q: Array, k: Array, v: Array, gates: GridGates, direct: Array, structure: str = "general") -> Array:
    """Equations 1 and 2 with matrix states; arguments as for `plstm.ops.grid.plstm2d`. Returns [..., Y, X, d_v] in the
    widest dtype among the arguments."""
    scale = q.shape[-1] ** -0.5
    dtype = jnp.result_type(q, k, v, *gates)
    nodes = tuple(jnp.moveaxis(x.astype(dtype), (-3, -2), (0, 1)) for x in (scale * q.astype(dtype), k, v))
    empty = jnp.zeros_like(nodes[0], shape=(*q.shape[:-3], 4, k.shape[-1], v.shape[-1]))

    def emit(node):
        _, k, v = node
        return k[..., :, None] * v[..., None, :]

    def read(marked, node):
        return product("...k,...kv->...v", node[0], marked)

    hidden = _sum_directions(gates, nodes, empty, structure, emit, read)
    return jnp.moveaxis(hidden, (0, 1), (-3, -2)) + direct_term(q, k, v, direct, scale)


def scan_sources(gates: GridGates) -> Array:
    """G [..., N, N], target rows and source columns: each node emits a unit signal of its own, so that an edge's state
    has, instead of d_k x d_v numbers, its weight on each of the N source nodes."""
    *lead, _, height, width = gates.s_r.shape
    nodes = height * width
    dtype = gates.s_r.dtype
    signals = jnp.eye(nodes, dtype=dtype).reshape(height, width, *(1,) * len(lead), nodes)
    empty = jnp.zeros_like(gates.s_r, shape=(*lead, 4, nodes))
    received = _sum_directions(gates, signals, empty, "general", lambda signal: signal, lambda marked, _: marked)
    return jnp.moveaxis(received.reshape(nodes, *lead, nodes), 0, -2)


def gating_matrix_oracle(gates: GridGates) -> Array:
    """The gating matrix of Equation 3, as `plstm.ops.grid.gating_matrix`: [..., Y, X, Y, X], source, then target."""
    matrix = scan_sources(gates).swapaxes(-1, -2)
    return matrix.reshape(*matrix.shape[:-2], *gates.s_r.shape[-2:] * 2)


def _sum_directions(gates: GridGates, inputs, empty: Array, structure: str, emit, read) -> Array:
    """The recurrence in all four directions side by side: rows from the top, in each the nodes from the left.

    gates [..., 4, Y, X] in image coordinates; inputs of the nodes: a tree of arrays [Y, X, ..., d]; empty, the state of
    the edges into the grid, zeros [..., 4, *state]. emit(inputs): what the source gates multiply; read(marked state,
    inputs): a node's result [..., 4, d]. Returns [Y, X, ..., d] in image coordinates.
    """
    state_axes = (1,) * (empty.ndim - gates.s_r.ndim + 2)
    nodes_first = (jnp.moveaxis(gate, (-2, -1), (0, 1)) for gate in mirror_gates(gates))
    gates = GridGates(*(gate.reshape(*gate.shape, *state_axes) for gate in nodes_first))
    inputs = jax.tree.map(lambda x: jnp.stack(mirror(jnp.stack([x] * 4), rows=(0,), columns=(1,)), axis=-2), inputs)

    def visit_node(left, node):
        g, up, inputs = node
        source = emit(inputs)
        marked, right, down = pass_node(g, left, up, structure)
        return right + g.s_r * source, (down + g.s_d * source, read(marked, inputs))

    def visit_row(upper, row):
        return lax.scan(visit_node, empty, (row[0], upper, row[1]))[1]

    upper = jnp.broadcast_to(empty, (gates.s_r.shape[1], *empty.shape))
    _, results = lax.scan(visit_row, upper, (gates, inputs))
    return add_up(mirror(jnp.moveaxis(results, -2, 0), rows=(0,), columns=(1,)))
