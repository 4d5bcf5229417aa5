"""pLSTM on directed acyclic graphs as the paper defines it, node by node: what the fast forms are tested against."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from plstm.ops.common import direct_term, product
from plstm.ops.dag.gates import DagGates
from plstm.ops.dag.line_graph import Dag


def plstm_dag_oracle(
    q: Array, k: Array, v: Array, gates: DagGates, direct: Array, dag: Dag, scale: float | None = None
) -> Array:
    """Equations 1 and 2, the nodes in topological order; arguments as for `plstm.ops.dag.plstm_dag`. Returns
    [..., N, d_v] in the widest dtype among the arguments."""
    q, k, v = map(jnp.asarray, (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    nodes = np.argsort(dag.rank)
    into = dag.head == nodes[:, None]  # [N, E]
    out_of = dag.tail == nodes[:, None]
    transition = jnp.zeros((*gates.source.shape, dag.num_edges), gates.transition.dtype)  # from, then to
    transition = transition.at[..., dag.line_from, dag.line_to].set(gates.transition)
    source, mark = (gate[..., None, None] for gate in (gates.source, gates.mark))
    outer = k[..., :, None] * v[..., None, :]
    cells = jnp.zeros((*gates.source.shape, k.shape[-1], v.shape[-1]), jnp.result_type(outer, *gates))

    def visit(cells, step):
        n, into, out_of = step
        arrived = jnp.where(into[:, None, None], cells, 0)
        hidden = product("...k,...ekv->...v", scale * q[..., n, :], mark * arrived)  # Equation 2
        leaving = product("...fe,...fkv->...ekv", transition, arrived) + source * outer[..., n, None, :, :]  # 1
        return jnp.where(out_of[:, None, None], leaving, cells), hidden

    _, hidden = lax.scan(visit, cells, (nodes, into, out_of))
    return jnp.moveaxis(hidden, 0, -2)[..., dag.rank, :] + direct_term(q, k, v, direct, scale)


def plstm_dag_tracking(q: Array, k: Array, v: Array, gates: DagGates, direct: Array, dag: Dag) -> Array:
    """`plstm_dag_oracle` with the axes of Equations 31 to 34: a state C [d_k, d_v, J_T] is multiplied by matrices, so
    that states can be tracked (Appendices D.6 and D.7).

    q [..., N, d_k, J_Q], k [..., N, d_k, J_K], v [..., N, d_v, J_V]; gates: source [..., E, J_T, J_K, J_V], transition
    [..., L, J_T, J_T], to, then from, mark [..., E, J_O, J_Q, J_T]; direct [..., N, J_O, J_Q, J_K, J_V]. Returns [...,
    N, d_v, J_O] in the widest dtype among the arguments. The program grows with the graph.
    """
    q, k, v = (jnp.moveaxis(x, -3, 0) for x in (q * q.shape[-2] ** -0.5, k, v))
    source, transition, mark = (jnp.moveaxis(gate, n, 0) for gate, n in zip(gates, (-4, -3, -4), strict=True))
    direct = jnp.moveaxis(direct, -5, 0)
    state = *q.shape[1:-2], transition.shape[-1], k.shape[-2], v.shape[-2]
    cells = jnp.zeros((dag.num_edges, *state), jnp.result_type(q, k, v, *gates))
    hidden = []
    for n in np.argsort(dag.rank):
        into = dag.head == n
        out_of = dag.tail == n
        lines = np.flatnonzero(out_of[dag.line_to])
        read = product("...aj,e...ojs,e...sav->...vo", q[n], mark[into], cells[into])  # Equation 2
        own = product("...aj,...ojkl,...ak,...vl->...vo", q[n], direct[n], k[n], v[n])
        hidden.append(read + own)
        leaving = product("e...skl,...ak,...vl->e...sav", source[out_of], k[n], v[n])  # Equation 1
        arrived = product("l...sr,l...rav->l...sav", transition[lines], cells[dag.line_from[lines]])
        cells = cells.at[out_of].set(leaving).at[dag.line_to[lines]].add(arrived)
    return jnp.stack([hidden[place] for place in dag.rank], axis=-3)
