"""pLSTM on directed acyclic graphs (arXiv 2506.11997, Section 3, Equations 1 to 4).

Cell states live on edges; transitions act on line edges, from an edge to one that starts where it ends. Three forms
give the same numbers:

* *levels*: a scan over the line graph, level by level, in which each edge carries its weights on the nodes of its
  block; that makes the gating matrix of Equation 3 at a cost linear in the line edges.
* *doubling*: the transitions T of a block are a nilpotent matrix, so G = S (I + T + T^2 + ...) M takes log2(depth)
  steps Z <- Z + Z T, T <- T T from Z = S. Few and large products, as accelerators want them.
* *recurrent*: Equations 1 and 2 as they stand, d_k x d_v states on the edges, level by level. It needs no matrix of
  pairs of nodes, so it is the one for large graphs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from plstm.ops.line_graph import Dag, PackedDags, Placement, pack

__all__ = ["Dag", "DagGates", "PackedDags", "Placement", "normalise_transitions", "pack", "plstm_dag"]

METHODS = ("auto", "levels", "doubling", "recurrent")
NORMS = ("l1", "linf")
NORM_OFFSET = 0.5
MOST_DOUBLED = 256  # edges of a block: doubling works on matrices of edges x edges
IN_BOUNDS = "promise_in_bounds"  # of indices; otherwise the gradient of a sum masks those that are not


class DagGates(NamedTuple):
    """The gates of a DAG: source [..., E], transition [..., L], mark [..., E], in the order of `Dag`'s fields."""

    source: jax.Array
    transition: jax.Array
    mark: jax.Array


def plstm_dag(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    gates: DagGates,
    direct: jax.Array,
    dag: Dag | PackedDags,
    *,
    scale: float | None = None,
    method: str = "auto",
) -> jax.Array:
    """Equations 1 and 2 on a DAG, or on several that are packed.

    Args:
        q, k: [..., N, d_k].
        v: [..., N, d_v].
        gates: source and mark [..., E], transition [..., L]; gating and accumulation are done in their dtype, at least
            float32. Gates of padding count as zero.
        direct: [..., N], the weight of a node's own key and value.
        dag: the graph, or packed graphs (whose arrays may be traced, so that one program serves many).
        scale: of the queries; none: d_k ** -0.5.
        method: "levels", "doubling", "recurrent" (see above), or "auto": "recurrent" where a block has more than
            d_k d_v nodes; else "levels" on a CPU; elsewhere "doubling", over 256 edges a block "recurrent".

    Returns:
        [..., N, d_v] in v's dtype; "levels" and "recurrent" have reverse-mode derivatives only.

    Raises:
        ValueError: where shapes disagree or the method is unknown.
    """
    if isinstance(dag, Dag):
        dag = dag.packed
    _check_arguments(q, k, v, gates, direct, dag, method)
    if method == "auto":
        method = _choose(dag, q.shape[-1] * v.shape[-1])
    lead, heads = v.shape[:-2], math.prod(v.shape[:-2])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = jnp.promote_types(jnp.result_type(*gates), jnp.float32)
    # Inside, nodes, edges and line edges come first and the leading axes are one: [rows, H, ...].
    q, k, v = (jnp.moveaxis(tensor.reshape(heads, *tensor.shape[-2:]), 0, 1) for tensor in (q, k, v))
    source, transition, mark, direct = (
        gate.reshape(heads, gate.shape[-1]).T.astype(dtype) for gate in (*gates, direct)
    )
    source, mark = (jnp.where(dag.edge_mask[:, None], gate, 0) for gate in (source, mark))
    gates = DagGates(source, jnp.where(dag.line_mask[:, None], transition, 0), mark)
    if method == "recurrent":
        hidden = _recurrent(q, k, v, gates, dag, scale)
    else:
        gating = _by_levels(gates, dag) if method == "levels" else _by_doubling(gates, dag)
        hidden = _attend(q, k, v, gating, dag, scale)
    own = direct * _product("nhk,nhk->nh", q.astype(dtype), k.astype(dtype)) * scale
    hidden = hidden + own[..., None] * v
    return jnp.moveaxis(hidden, 1, 0).reshape(*lead, *hidden.shape[::2]).astype(v.dtype)


def normalise_transitions(transition: jax.Array, dag: Dag | PackedDags, norm: str = "l1") -> jax.Array:
    """The P-mode's stabilisation: t / (0.5 + sum of |t|), over line edges that share an edge.

    Args:
        transition: [..., L]; entries of padding must be finite.
        dag: the graph or the packed graphs.
        norm: "l1" sums over the line edges that leave the edge e', so that Equation 4 holds; "linf" over those that
            enter the edge e, as in the paper's released code.

    Returns:
        [..., L]; sums of magnitudes over a shared edge stay below 1.

    Raises ValueError for an unknown norm.
    """
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}; got {norm!r}")
    shared = dag.line_from if norm == "l1" else dag.line_to
    real = True if isinstance(dag, Dag) else dag.line_mask
    size = jnp.where(real, jnp.abs(transition), 0)
    sums = jnp.zeros((*transition.shape[:-1], dag.num_edges), size.dtype).at[..., shared].add(size, mode=IN_BOUNDS)
    return transition / (NORM_OFFSET + sums[..., shared])


def _choose(dag: PackedDags, state: int) -> str:
    if dag.block_nodes > state:
        return "recurrent"
    if jax.default_backend() == "cpu":
        return "levels"
    return "doubling" if dag.block_edges <= MOST_DOUBLED else "recurrent"


@jax.custom_vjp
def _propagate(transition: jax.Array, inputs: jax.Array, dag: PackedDags) -> jax.Array:
    """Solves C_e = inputs_e + sum over e' of T_e'e C_e' (Equation 1), level by level.

    transition [L, H]; inputs and result [E, H, ...]. The cotangents solve the same equation on the reverse graph, so
    neither pass keeps more than the states.
    """
    return _scan_levels(transition, inputs, dag)[0]


def _propagate_forward(transition, inputs, dag):
    states, _ = _scan_levels(transition, inputs, dag)
    return states, (transition, states, dag)


def _propagate_backward(kept, cotangent):
    transition, states, dag = kept
    reached, weights = _scan_levels(transition, cotangent, dag.reverse(), states)
    return weights, reached, None


_propagate.defvjp(_propagate_forward, _propagate_backward)


def _scan_levels(transition, inputs, dag, other=None):
    """The states C; with `other`, states of the reverse graph, also C_e' times other_e at each line edge, [L, H]."""
    nothing = len(transition)  # what fills a row of the schedule
    padded = jnp.pad(transition, ((0, 1), (0, 0)))[dag.schedule]
    in_range = jnp.minimum(dag.schedule, max(nothing - 1, 0))

    def visit(states, step):
        weight, line_from, line_to = step
        arriving = states[line_from]
        product = None if other is None else (other[line_to] * arriving).sum(range(2, states.ndim))
        weight = weight.reshape(*weight.shape, *(1,) * (states.ndim - 2))
        return states.at[line_to].add(weight * arriving, mode=IN_BOUNDS), product

    if not nothing:
        return inputs, transition
    steps = (padded, jnp.asarray(dag.line_from)[in_range], jnp.asarray(dag.line_to)[in_range])
    states, products = lax.scan(visit, inputs, steps)
    if other is not None:
        products = jnp.zeros_like(transition).at[dag.schedule].set(products, mode="drop")
    return states, products


def _by_levels(gates: DagGates, dag: PackedDags) -> jax.Array:
    """G as [blocks, target, H, source], numbered within the block."""
    edges, heads = gates.source.shape
    own = jnp.arange(edges)[:, None], jnp.arange(heads), (dag.tail % dag.block_nodes)[:, None]
    start = jnp.zeros((edges, heads, dag.block_nodes), gates.source.dtype)
    states = _propagate(gates.transition, start.at[own].set(gates.source, unique_indices=True), dag)
    return _into_nodes(gates.mark[..., None] * states, dag).reshape(dag.blocks, dag.block_nodes, *states.shape[1:])


def _by_doubling(gates: DagGates, dag: PackedDags) -> jax.Array:
    """G as [blocks, target, H, source], numbered within the block."""
    blocks, nodes, edges = dag.blocks, dag.block_nodes, dag.block_edges
    heads, dtype = gates.source.shape[1], gates.source.dtype
    start = jnp.zeros((blocks, edges, edges, heads), dtype)
    line_from, line_to = jnp.asarray(dag.line_from), jnp.asarray(dag.line_to)
    step = start.at[line_to // max(edges, 1), line_from % max(edges, 1), line_to % max(edges, 1)].add(gates.transition)
    step = jnp.moveaxis(step, 3, 1)  # T [blocks, H, from, to]
    tail, head = (jax.nn.one_hot(end % nodes, nodes, dtype=dtype).reshape(blocks, edges, nodes) for end in _ends(dag))
    source, mark = (gate.reshape(blocks, edges, heads) for gate in (gates.source, gates.mark))
    paths = _product("ben,beh->bhne", tail, source)  # S, then S (I + T), S (I + T + T^2 + T^3), ...
    doublings = math.ceil(math.log2(max(dag.depth, 1)))
    for n in range(doublings):
        paths = paths + _product("bhne,bhef->bhnf", paths, step)
        if n + 1 < doublings:
            step = _product("bhef,bhfg->bheg", step, step)
    return _product("bhne,bemh->bmhn", paths, head[..., None] * mark[:, :, None])


def _attend(q, k, v, gating, dag, scale):
    """Sums over the source nodes of each block: [N, H, d_v]."""
    q, k, v = (tensor.reshape(dag.blocks, dag.block_nodes, *tensor.shape[1:]).swapaxes(1, 2) for tensor in (q, k, v))
    similarity = jnp.einsum("bhtk,bhsk->bhts", q, k, preferred_element_type=gating.dtype)
    weights = (gating.swapaxes(1, 2) * similarity * scale).astype(v.dtype)
    hidden = jnp.einsum("bhts,bhsv->bhtv", weights, v, preferred_element_type=gating.dtype).swapaxes(1, 2)
    return hidden.reshape(-1, *hidden.shape[2:])


def _recurrent(q, k, v, gates, dag, scale):
    q, k, v = (tensor.astype(gates.source.dtype) for tensor in (q, k, v))
    tail, head = _ends(dag)
    outer = (gates.source[..., None] * k[tail])[..., :, None] * v[tail][..., None, :]
    states = _propagate(gates.transition, outer, dag)
    read = _product("ehk,ehkv->ehv", scale * q[head], states)
    return _into_nodes(gates.mark[..., None] * read, dag)


def _into_nodes(edges: jax.Array, dag: PackedDags) -> jax.Array:
    """Sums [E, ...] over the edges that end in a node: [N, ...]."""
    return jnp.zeros((dag.num_nodes, *edges.shape[1:]), edges.dtype).at[dag.head].add(edges, mode=IN_BOUNDS)


def _ends(dag: PackedDags) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(dag.tail), jnp.asarray(dag.head)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """An einsum in full precision: the default of GPUs and TPUs would round gates to fewer bits."""
    return jnp.einsum(equation, a, b, precision=lax.Precision.HIGHEST)


def _check_arguments(q, k, v, gates, direct, dag, method):
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    lead, nodes = q.shape[:-2], dag.num_nodes
    if q.ndim < 2 or q.shape != k.shape or q.shape[-2] != nodes:
        raise ValueError(f"q and k must be [..., N, d_k] with N = {nodes}; got q {q.shape} and k {k.shape}")
    if v.shape[:-1] != q.shape[:-1]:
        raise ValueError(f"v must be [..., N, d_v] with q's leading axes and N {q.shape[:-1]}; got v {v.shape}")
    rows = {"source": dag.num_edges, "transition": dag.num_line_edges, "mark": dag.num_edges}
    for name, gate in gates._asdict().items():
        if gate.shape != (*lead, rows[name]):
            raise ValueError(f"{name} must be {(*lead, rows[name])}; got {gate.shape}")
    if direct.shape != (*lead, nodes):
        raise ValueError(f"direct must be {(*lead, nodes)}; got {direct.shape}")
