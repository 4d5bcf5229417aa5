"""pLSTM on directed acyclic graphs (arXiv 2506.11997, Section 3, Equations 1 to 4).

Cell states live on edges; transitions act on line edges, from an edge to one that starts where it ends. Inside, nodes,
edges and line edges come first, then heads: [N, H, ...].
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from plstm.ops.common import (
    DagGates,
    accumulation_dtype,
    attend,
    check_choice,
    check_inputs,
    check_shapes,
    direct_term,
    product,
)
from plstm.ops.dag.line_graph import Dag, PackedDags, pack

__all__ = ["Dag", "DagGates", "PackedDags", "normalise_transitions", "pack", "plstm_dag", "plstm_dag_oracle"]

IN_BOUNDS = "promise_in_bounds"  # of indices; otherwise the gradient of a sum masks those that are not
METHODS = ("auto", "levels", "doubling", "recurrent")
NORMS = ("l1", "linf")
NORM_OFFSET = 0.5
MAX_DOUBLING_EDGES = 256  # of a block: doubling works on matrices of edges x edges


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

    Returns [..., N, d_v] in v's dtype, with reverse-mode derivatives only. Raises ValueError where shapes disagree or
    the method is unknown.
    """
    dag = dag.packed if isinstance(dag, Dag) else dag
    check_choice("method", method, METHODS)
    check_inputs("N", q, k, v, direct=direct)
    check_shapes("[..., N, d_k]", (*q.shape[:-2], dag.num_nodes, q.shape[-1]), q=q)
    check_shapes("[..., E]", (*q.shape[:-2], dag.num_edges), source=gates.source, mark=gates.mark)
    check_shapes("[..., L]", (*q.shape[:-2], dag.num_line_edges), transition=gates.transition)
    if method == "auto":
        method = _choose(dag, q.shape[-1] * v.shape[-1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    heads, dtype, shape = math.prod(v.shape[:-2]), accumulation_dtype(*gates), v.shape
    q, k, v = (jnp.moveaxis(tensor.reshape(heads, *tensor.shape[-2:]), 0, 1) for tensor in (q, k, v))
    *gates, direct = (gate.reshape(heads, gate.shape[-1]).T.astype(dtype) for gate in (*gates, direct))
    masks = dag.edge_mask, dag.line_mask, dag.edge_mask
    gates = DagGates(*(jnp.where(mask[:, None], gate, 0) for mask, gate in zip(masks, gates, strict=True)))
    if method == "recurrent":
        hidden = recurrent(q, k, v, gates, dag, scale)
    else:
        gating = by_levels(gates, dag) if method == "levels" else by_doubling(gates, dag)
        blocks = (x.reshape(dag.blocks, dag.block_nodes, *x.shape[1:]).swapaxes(1, 2) for x in (q, k, v))
        hidden = attend(*blocks, gating, scale).swapaxes(1, 2).reshape(v.shape)
    hidden = hidden + direct_term(q, k, v, direct, scale)
    return jnp.moveaxis(hidden, 1, 0).reshape(shape).astype(v.dtype)


def normalise_transitions(transition: Array, dag: Dag | PackedDags, norm: str = "l1") -> Array:
    """The P-mode's stabilisation: t / (0.5 + sum of |t|), over line edges that share an edge.

    transition [..., L], finite also in padding, gives [..., L]; sums of magnitudes over a shared edge stay below 1.
    norm: "l1" sums over the line edges that leave the edge e', so that Equation 4 holds; "linf" over those that enter
    the edge e, as in the paper's released code. Another one raises ValueError.
    """
    check_choice("norm", norm, NORMS)
    shared = dag.line_from if norm == "l1" else dag.line_to
    real = True if isinstance(dag, Dag) else dag.line_mask
    size = jnp.where(real, jnp.abs(transition), 0)
    sums = jnp.zeros((*transition.shape[:-1], dag.num_edges), size.dtype).at[..., shared].add(size, mode=IN_BOUNDS)
    return transition / (NORM_OFFSET + sums[..., shared])


def _choose(dag: PackedDags, state_size: int) -> str:
    if dag.block_nodes > state_size:
        return "recurrent"
    if jax.default_backend() == "cpu":
        return "levels"
    return "doubling" if dag.block_edges <= MAX_DOUBLING_EDGES else "recurrent"


def by_levels(gates: DagGates, dag: PackedDags) -> Array:
    """G as [blocks, H, target, source], numbered within the block: level by level, each edge carries its weights on
    the nodes of its block. The cost is linear in the line edges."""
    edges, heads = gates.source.shape
    own = jnp.arange(edges)[:, None], jnp.arange(heads), (dag.tail % dag.block_nodes)[:, None]
    start = jnp.zeros((edges, heads, dag.block_nodes), gates.source.dtype)
    states = _propagate(gates.transition, start.at[own].set(gates.source, unique_indices=True), dag)
    matrix = _into_nodes(gates.mark[..., None] * states, dag)
    return matrix.reshape(dag.blocks, dag.block_nodes, *states.shape[1:]).swapaxes(1, 2)


def by_doubling(gates: DagGates, dag: PackedDags) -> Array:
    """G as [blocks, H, target, source]: the transitions T of a block are a nilpotent matrix, so
    G = S (I + T + T^2 + ...) M takes log2(depth) steps Z <- Z + Z T, T <- T T from Z = S."""
    blocks, nodes, edges = dag.blocks, dag.block_nodes, dag.block_edges
    heads, dtype = gates.source.shape[1], gates.source.dtype
    line_from, line_to = (jnp.asarray(line) % max(edges, 1) for line in (dag.line_from, dag.line_to))
    step = jnp.zeros((blocks, edges, edges, heads), dtype)
    step = step.at[dag.line_to // max(edges, 1), line_from, line_to].add(gates.transition)
    step = jnp.moveaxis(step, 3, 1)  # T [blocks, H, from, to]
    tail, head = (
        jax.nn.one_hot(end % nodes, nodes, dtype=dtype).reshape(blocks, edges, nodes) for end in (dag.tail, dag.head)
    )
    source, mark = (gate.reshape(blocks, edges, heads) for gate in (gates.source, gates.mark))
    paths = product("ben,beh->bhne", tail, source)  # S, then S (I + T), S (I + T + T^2 + T^3), ...
    doublings = math.ceil(math.log2(max(dag.depth, 1)))
    for n in range(doublings):
        paths = paths + product("bhne,bhef->bhnf", paths, step)
        if n + 1 < doublings:
            step = product("bhef,bhfg->bheg", step, step)
    return product("bhne,bemh->bhmn", paths, head[..., None] * mark[:, :, None])


def recurrent(q, k, v, gates: DagGates, dag: PackedDags, scale: float) -> Array:
    """Equations 1 and 2 with d_k x d_v states on the edges, level by level: [N, H, d_v]."""
    q, k, v = (tensor.astype(gates.source.dtype) for tensor in (q, k, v))
    tail, head = jnp.asarray(dag.tail), jnp.asarray(dag.head)
    outer = (gates.source[..., None] * k[tail])[..., :, None] * v[tail][..., None, :]
    states = _propagate(gates.transition, outer, dag)
    read = product("ehk,ehkv->ehv", scale * q[head], states)
    return _into_nodes(gates.mark[..., None] * read, dag)


@jax.custom_vjp
def _propagate(transition: Array, inputs: Array, dag: PackedDags) -> Array:
    """Solves C_e = inputs_e + sum over e' of T_e'e C_e' (Equation 1), level by level. transition [L, H]; inputs and
    result [E, H, ...]. The cotangents solve the same equation on the reverse graph, so neither pass keeps more than the
    states."""
    return _scan_levels(transition, inputs, dag)[0]


def _propagate_backward(kept, cotangent):
    transition, states, dag = kept
    reached, weights = _scan_levels(transition, cotangent, dag.reverse(), states)
    return weights, reached, None


_propagate.defvjp(lambda t, inputs, dag: (c := _propagate(t, inputs, dag), (t, c, dag)), _propagate_backward)


def _scan_levels(transition, inputs, dag, other=None):
    """The states C; with `other`, states of the reverse graph, also C_e' times other_e at each line edge, [L, H]."""
    padding = len(transition)  # the number that fills a row of the schedule
    if not padding:
        return inputs, transition
    in_range = jnp.minimum(dag.schedule, padding - 1)

    def visit(states, step):
        weight, line_from, line_to = step
        arriving = states[line_from]
        weights = None if other is None else (other[line_to] * arriving).sum(range(2, states.ndim))
        weight = weight.reshape(*weight.shape, *(1,) * (states.ndim - 2))
        return states.at[line_to].add(weight * arriving, mode=IN_BOUNDS), weights

    padded = jnp.pad(transition, ((0, 1), (0, 0)))[dag.schedule]
    steps = (padded, jnp.asarray(dag.line_from)[in_range], jnp.asarray(dag.line_to)[in_range])
    states, weights = lax.scan(visit, inputs, steps)
    if other is not None:
        weights = jnp.zeros_like(transition).at[dag.schedule].set(weights, mode="drop")
    return states, weights


def _into_nodes(edges: Array, dag: PackedDags) -> Array:
    """Sums [E, ...] over the edges that end in a node: [N, ...]."""
    return jnp.zeros((dag.num_nodes, *edges.shape[1:]), edges.dtype).at[dag.head].add(edges, mode=IN_BOUNDS)


def plstm_dag_oracle(
    q: Array, k: Array, v: Array, gates: DagGates, direct: Array, dag: Dag, scale: float | None = None
) -> Array:
    """Equations 1 and 2, the nodes in topological order; arguments as for `plstm.ops.dag.plstm_dag`. Returns
    [..., N, d_v] in the widest dtype among the arguments."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
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
        hidden = jnp.einsum("...k,...ekv->...v", scale * q[..., n, :], mark * arrived)  # Equation 2
        leaving = jnp.einsum("...fe,...fkv->...ekv", transition, arrived) + source * outer[..., n, None, :, :]  # 1
        return jnp.where(out_of[:, None, None], leaving, cells), hidden

    _, hidden = lax.scan(visit, cells, (nodes, into, out_of))
    return jnp.moveaxis(hidden, 0, -2)[..., dag.rank, :] + direct_term(q, k, v, direct, scale)
