"""How the sum over paths of a graph is computed: the gating matrix level by level or by doubling, or matrix states."""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from plstm.ops.common import product
from plstm.ops.dag.gates import DagGates
from plstm.ops.dag.line_graph import PackedDags

IN_BOUNDS = "promise_in_bounds"  # of indices; otherwise the gradient of a sum masks those that are not


def by_levels(gates: DagGates, dag: PackedDags) -> Array:
    """G as [blocks, H, target, source], numbered within the block: level by level, each edge carries its weights on
    the nodes of its block. The cost is linear in the line edges."""
    edges, heads = gates.source.shape
    at_tail = jnp.arange(edges)[:, None], jnp.arange(heads), (dag.tail % dag.block_nodes)[:, None]
    start = jnp.zeros((edges, heads, dag.block_nodes), gates.source.dtype)
    states = _propagate(gates.transition, start.at[at_tail].set(gates.source, unique_indices=True), dag)
    matrix = _into_nodes(gates.mark[..., None] * states, dag)
    return matrix.reshape(dag.blocks, dag.block_nodes, *states.shape[1:]).swapaxes(1, 2)


def by_doubling(gates: DagGates, dag: PackedDags) -> Array:
    """G as [blocks, H, target, source]: the transitions T of a block are a nilpotent matrix, so
    G = S (I + T + T^2 + ...) M takes log2(depth) steps Z <- Z + Z T, T <- T T from Z = S."""
    blocks = dag.blocks
    nodes = dag.block_nodes
    edges = dag.block_edges
    heads = gates.source.shape[1]
    dtype = gates.source.dtype
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
    tail = jnp.asarray(dag.tail)
    head = jnp.asarray(dag.head)
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
