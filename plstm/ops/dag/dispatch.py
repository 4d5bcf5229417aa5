"""pLSTM on directed acyclic graphs (arXiv 2506.11997, Section 3, Equations 1 to 4).

Cell states live on edges; transitions act on line edges, from an edge to one that starts where it ends. Inside, nodes,
edges and line edges come first, then heads: [N, H, ...].
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from plstm.ops.common import accumulation_dtype, attend, check_axes, check_choice, direct_term, public_operator
from plstm.ops.dag.forms import IN_BOUNDS, by_doubling, by_levels, recurrent
from plstm.ops.dag.gates import DAG_AXES, DagGates
from plstm.ops.dag.line_graph import Dag, PackedDags

METHODS = ("auto", "levels", "doubling", "recurrent")
NORMS = ("l1", "linf")
NORM_OFFSET = 0.5
MAX_DOUBLING_EDGES = 256  # of a block: doubling works on matrices of edges x edges


@public_operator
def plstm_dag(
    q: Array,
    k: Array,
    v: Array,
    gates: DagGates,
    direct: Array,
    dag: Dag | PackedDags,
    *,
    scale: float | None = None,
    method: str = "auto",
) -> Array:
    """Equations 1 and 2 on a DAG, or on several that are packed.

    q, k [..., N, d_k], v [..., N, d_v], source and mark [..., E], transition [..., L], direct [..., N], the weight of a
    node's own key and value. Gating and accumulation are done in the gates' dtype, at least float32; gates of padding
    count as zero. The arrays of packed graphs may be traced, so that one program serves many.

    scale: of the queries; None: d_k ** -0.5. method: "levels" (gating matrix by a scan over levels), "doubling" (gating
    matrix by few large products), "recurrent" (matrix states, for large graphs), or "auto": "recurrent" where a block
    has more than d_k d_v nodes; else "levels" on a CPU; elsewhere "doubling", over 256 edges a block "recurrent".

    Returns [..., N, d_v] in v's dtype, with reverse-mode derivatives only; `plstm_dag_oracle` has others. Raises
    ValueError where shapes disagree, d_k or d_v is 0 or the method is unknown.
    """
    dag = dag.packed if isinstance(dag, Dag) else dag
    check_choice("method", method, METHODS)
    check_axes(DAG_AXES, q, k, v, direct, *gates, N=dag.num_nodes, E=dag.num_edges, L=dag.num_line_edges)
    if method == "auto":
        method = choose_method(dag, q.shape[-1] * v.shape[-1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    shape = v.shape
    heads = math.prod(shape[:-2])
    dtype = accumulation_dtype(*gates)
    q, k, v = (jnp.moveaxis(tensor.reshape(heads, *tensor.shape[-2:]), 0, 1) for tensor in (q, k, v))
    gates, direct = jax.tree.map(lambda gate: gate.reshape(heads, gate.shape[-1]).T.astype(dtype), (gates, direct))
    masks = dag.edge_mask, dag.line_mask, dag.edge_mask
    gates = DagGates(*(jnp.where(mask[:, None], gate, 0) for mask, gate in zip(masks, gates, strict=True)))
    if method == "recurrent":
        hidden = recurrent(q, k, v, gates, dag, scale)
    else:
        gating = by_levels(gates, dag) if method == "levels" else by_doubling(gates, dag)
        by_block = [x.reshape(dag.blocks, dag.block_nodes, *x.shape[1:]).swapaxes(1, 2) for x in (q, k, v)]
        hidden = attend(by_block[0], by_block[1], by_block[2], gating, scale).swapaxes(1, 2).reshape(v.shape)
    hidden = hidden + direct_term(q, k, v, direct, scale)
    return jnp.moveaxis(hidden, 1, 0).reshape(shape).astype(v.dtype)


@public_operator
def normalise_transitions(transition: Array, dag: Dag | PackedDags, norm: str = "l1") -> Array:
    """The P-mode's stabilisation: t / (0.5 + sum of |t|), over line edges that share an edge.

    transition [..., L], finite also in padding, gives [..., L], at least float32; sums of magnitudes over a shared edge
    stay below 1. norm: "l1" sums over the line edges that leave the edge e', so that Equation 4 holds; "linf" over
    those that enter the edge e, as in the paper's released code. Raises ValueError for another one, and where shapes
    disagree.
    """
    dag = dag.packed if isinstance(dag, Dag) else dag
    check_choice("norm", norm, NORMS)
    check_axes("transition [..., L]", transition, L=dag.num_line_edges)
    shared = dag.line_from if norm == "l1" else dag.line_to
    transition = transition.astype(accumulation_dtype(transition))
    size = jnp.where(dag.line_mask, jnp.abs(transition), 0)
    sums = jnp.zeros((*transition.shape[:-1], dag.num_edges), size.dtype).at[..., shared].add(size, mode=IN_BOUNDS)
    return transition / (NORM_OFFSET + sums[..., shared])


def choose_method(dag: PackedDags, state_size: int) -> str:
    """What "auto" takes for states of so many numbers."""
    if dag.block_nodes > state_size:
        return "recurrent"
    if jax.default_backend() == "cpu":
        return "levels"
    return "doubling" if dag.block_edges <= MAX_DOUBLING_EDGES else "recurrent"
