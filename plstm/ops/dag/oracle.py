"""pLSTM on directed acyclic graphs as the paper defines it, node by node: what the fast forms are tested against."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from plstm.ops.common import direct_term
from plstm.ops.dag.gates import DagGates
from plstm.ops.dag.line_graph import Dag


def plstm_dag_oracle(
    q: Array, k: Array, v: Array, gates: DagGates, direct: Array, dag: Dag, scale: float | None = None
) -> Array:
    """Equations 1 and 2, the nodes in topological order; arguments as for `plstm.ops.dag.plstm_dag`. Returns
    [..., N, d_v] in the widest dtype among the arguments."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    nodes = np.argsort(dag.rank)
    into = dag.head == nodes[:, None]  # [N, E]
    out_of = dag.tail == nodes[:, None]
    transition = jnp.zeros((*gates.source.shape, dag.num_edges), gates.transition.dtype)  # from, then to
    transition = transition.at[..., dag.line_from, dag.line_to].set(gates.transition)
    source, mark = (gate[..., None, None] for gate in (gates.source, gates.mark))
    outer = k[..., :, None] * v[..., None, :]
    cells = jnp.zeros((*gates.source.shape, k.shape[-1], v.shape[-1]), jnp.result_type(outer, gates.source))

    def visit(cells, step):
        n, into, out_of = step
        arrived = jnp.where(into[:, None, None], cells, 0)
        hidden = jnp.einsum("...k,...ekv->...v", scale * q[..., n, :], mark * arrived)  # Equation 2
        leaving = jnp.einsum("...fe,...fkv->...ekv", transition, arrived) + source * outer[..., n, None, :, :]  # 1
        return jnp.where(out_of[:, None, None], leaving, cells), hidden

    _, hidden = lax.scan(visit, cells, (nodes, into, out_of))
    return jnp.moveaxis(hidden, 0, -2)[..., dag.rank, :] + direct_term(q, k, v, direct, scale)
