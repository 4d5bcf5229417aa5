"""pLSTM on grids and DAGs as the paper defines it: Equations 1 and 2, node by node (arXiv 2506.11997, Section 3).

Slow and plain on purpose: this is the definition that every fast form is tested against. Under ``jax.enable_x64`` it
runs in float64; it can be jitted and differentiated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from plstm.ops.dag import Dag, DagGates
    from plstm.ops.grid import GridGates

# Axes of [..., Y, X] to reverse so that each direction reads as right-down: right-down, left-down, right-up, left-up.
DIRECTION_FLIPS = ((), (-1,), (-2,), (-2, -1))


def _right_down(q: jax.Array, k: jax.Array, v: jax.Array, gates: GridGates) -> jax.Array:
    """Visits the nodes in topological order: rows from the top, each from the left.

    q, k [..., Y, X, d_k], v [..., Y, X, d_v], gates [..., Y, X]; returns the hidden states [..., Y, X, d_v].
    """
    q, k, v = (jnp.moveaxis(tensor, (-3, -2), (0, 1)) for tensor in (q, k, v))
    gates = jax.tree.map(lambda gate: jnp.moveaxis(gate, (-2, -1), (0, 1))[..., None, None], gates)
    dtype = jnp.result_type(k, v, gates.s_r)
    edge = jnp.zeros((*v.shape[2:-1], k.shape[-1], v.shape[-1]), dtype)

    def visit_node(left, inputs):
        q, k, v, g, up = inputs
        outer = k[..., :, None] * v[..., None, :]
        hidden = jnp.einsum("...k,...kv->...v", q, g.m_l * left + g.m_u * up)  # Equation 2
        right = g.t_rl * left + g.t_ru * up + g.s_r * outer  # Equation 1
        down = g.t_dl * left + g.t_du * up + g.s_d * outer
        return right, (down, hidden)

    def visit_row(upper_edges, row):
        _, (lower_edges, hidden) = jax.lax.scan(visit_node, edge, (*row, upper_edges))
        return lower_edges, hidden

    upper_edges = jnp.broadcast_to(edge, (v.shape[1], *edge.shape))
    _, hidden = jax.lax.scan(visit_row, upper_edges, (q, k, v, gates))
    return jnp.moveaxis(hidden, (0, 1), (-3, -2))


def plstm2d_oracle(q: jax.Array, k: jax.Array, v: jax.Array, gates: GridGates, direct: jax.Array) -> jax.Array:
    """The recurrence of Equations 1 and 2 with any 2x2 transition, summed over the four directions.

    Args:
        q, k: [..., Y, X, d_k]; q is scaled by d_k ** -0.5.
        v: [..., Y, X, d_v].
        gates: eight tensors [..., 4, Y, X] in image coordinates; directions right-down, left-down, right-up, left-up.
        direct: [..., Y, X], the weight of a node's own key and value; added once, not once a direction.

    Returns:
        [..., Y, X, d_v] in the widest dtype among the arguments.
    """
    q = q * q.shape[-1] ** -0.5
    q_dir, k_dir, v_dir = (
        jnp.stack([jnp.flip(tensor, [axis - 1 for axis in axes]) for axes in DIRECTION_FLIPS]) for tensor in (q, k, v)
    )
    gates = jax.tree.map(
        lambda gate: jnp.stack([jnp.flip(gate[..., n, :, :], axes) for n, axes in enumerate(DIRECTION_FLIPS)]), gates
    )
    hidden = _right_down(q_dir, k_dir, v_dir, gates)
    hidden = sum(jnp.flip(hidden[n], [axis - 1 for axis in axes]) for n, axes in enumerate(DIRECTION_FLIPS))
    return hidden + (direct * (q * k).sum(-1))[..., None] * v


def gating_matrix_oracle(gates: GridGates) -> jax.Array:
    """The gating matrix of Equation 3 by propagating a unit signal from every node.

    Args:
        gates: eight tensors [..., 4, Y, X].

    Returns:
        [..., Y, X, Y, X], source node, then target; directions summed; no direct term.
    """
    *lead, _, height, width = gates.s_r.shape
    dtype = gates.s_r.dtype
    ones = jnp.ones((*lead, height, width, 1), dtype)
    signals = jnp.eye(height * width, dtype=dtype).reshape(height, width, height * width)
    received = plstm2d_oracle(
        ones, ones, jnp.broadcast_to(signals, (*lead, *signals.shape)), gates, jnp.zeros(ones.shape[:-1], dtype)
    )
    received = received.reshape(*lead, height, width, height, width)  # target, then source
    return jnp.moveaxis(received, (-2, -1), (-4, -3))


def plstm_dag_oracle(
    q: jax.Array, k: jax.Array, v: jax.Array, gates: DagGates, direct: jax.Array, dag: Dag, scale: float | None = None
) -> jax.Array:
    """The recurrence of Equations 1 and 2 on any DAG, its nodes visited in topological order.

    Args:
        q, k: [..., N, d_k]; q is scaled by `scale`, or d_k ** -0.5.
        v: [..., N, d_v].
        gates: source and mark [..., E], transition [..., L].
        direct: [..., N], the weight of a node's own key and value.
        dag: the graph.

    Returns:
        [..., N, d_v] in the widest dtype among the arguments.
    """
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    nodes = np.argsort(dag.rank)
    into, out_of = dag.head == nodes[:, None], dag.tail == nodes[:, None]  # [N, E]
    transition = jnp.zeros((*gates.source.shape, dag.num_edges), gates.transition.dtype)  # from, then to
    transition = transition.at[..., dag.line_from, dag.line_to].set(gates.transition)
    source, mark = (gate[..., None, None] for gate in (gates.source, gates.mark))
    outer = k[..., :, None] * v[..., None, :]
    cells = jnp.zeros((*gates.source.shape, k.shape[-1], v.shape[-1]), jnp.result_type(outer, gates.source))

    def visit(cells, step):
        n, into, out_of = step
        arrived = jnp.where(into[:, None, None], cells, 0)
        hidden = jnp.einsum("...k,...ekv->...v", q[..., n, :], mark * arrived)  # Equation 2
        leaving = jnp.einsum("...fe,...fkv->...ekv", transition, arrived) + source * outer[..., n, None, :, :]  # 1
        return jnp.where(out_of[:, None, None], leaving, cells), hidden

    _, hidden = jax.lax.scan(visit, cells, (nodes, into, out_of))
    hidden = jnp.moveaxis(hidden, 0, -2)[..., dag.rank, :]
    return hidden + (direct * (q * k).sum(-1))[..., None] * v
