"""pLSTM on one large graph by parts: the gates of whole parts in parallel, then the recurrence between parts (arXiv
2506.11997, Appendices D.1 and D.2).

A part is a set of nodes that follow one another in topological order. It is known by what it does to signals on its
boundary: its source [nodes, edges out], transition [edges in, edges out] and mark [edges in, nodes], and the gating
matrix of its own nodes (Equations 10 to 12).
"""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from plstm.ops.common import accumulation_dtype, attend, check_axes, direct_term, product, public_operator
from plstm.ops.dag.gates import DAG_AXES, DagGates
from plstm.ops.dag.line_graph import Dag
from plstm.ops.scans import cast


class Parts(NamedTuple):
    """P parts of a graph, each padded to n nodes, e edges with an end in it, i edges in and o edges out. Places are
    numbers within a part. The B edges between parts have numbers, too; padding has the number B, or the place e."""

    node: np.ndarray  # int [N]: the place of a node, part after part
    tail: np.ndarray  # int [3, E]: the part of an edge's tail, and the places there of the tail and of the edge
    head: np.ndarray  # int [3, E]: likewise of its head
    line: np.ndarray  # int [3, L]: the part that a line edge is in, and the places of its two edges
    entering: np.ndarray  # int [P, i]: numbers of the edges in
    entry: np.ndarray  # int [3, B]: of an edge between parts its head's part, its places in `entering` and that part
    leaving: np.ndarray  # int [P, o]: numbers of the edges out
    exit: np.ndarray  # int [P, o]: their places
    nodes: int  # n
    edges: int  # e
    longest: int  # at least the number of edges on the longest path through a part


def cut(dag: Dag, count: int) -> Parts:
    """Cuts a graph into at most `count` parts of nearly as many nodes; ValueError for a `count` not from 1 to N."""
    if not 1 <= count <= dag.num_nodes:
        raise ValueError(f"parts must be from 1 to {dag.num_nodes}, the number of nodes; got {count}")
    size = -(-dag.num_nodes // count)
    count = -(-dag.num_nodes // size)
    place = dag.rank.astype(np.int64)
    tail = place[dag.tail]
    head = place[dag.head]
    tail_part = tail // size
    head_part = head // size
    every = np.arange(dag.num_edges)
    crossing = np.flatnonzero(tail_part != head_part)
    number = np.full(dag.num_edges, len(crossing))
    number[crossing] = np.arange(len(crossing))
    members = [np.flatnonzero((tail_part == part) | (head_part == part)) for part in range(count)]
    entries = [crossing[head_part[crossing] == part] for part in range(count)]
    exits = [crossing[tail_part[crossing] == part] for part in range(count)]
    at = np.zeros((count, dag.num_edges), int)  # an edge's place in a part
    entry = np.zeros(dag.num_edges, int)  # its place among the edges in
    for part in range(count):
        at[part, members[part]] = np.arange(len(members[part]))
        entry[entries[part]] = np.arange(len(entries[part]))
    most = max(map(len, members))
    middle = tail_part[dag.line_to]
    spans = [np.ptp(dag.level[tail_part == part]) for part in range(count) if (tail_part == part).any()]
    return Parts(
        node=place,
        tail=np.stack([tail_part, tail % size, at[tail_part, every]]),
        head=np.stack([head_part, head % size, at[head_part, every]]),
        line=np.stack([middle, at[middle, dag.line_from], at[middle, dag.line_to]]),
        entering=_pad([number[edges] for edges in entries], len(crossing)),
        entry=np.stack([head_part[crossing], entry[crossing], at[head_part[crossing], crossing]]),
        leaving=_pad([number[edges] for edges in exits], len(crossing)),
        exit=_pad([at[part, edges] for part, edges in enumerate(exits)], most),
        nodes=size,
        edges=most,
        longest=2 + int(max(spans, default=0)),  # levels rise along a path, and one edge more comes in
    )


def _pad(rows: list[np.ndarray], value: int) -> np.ndarray:
    width = max(map(len, rows))
    return np.stack([np.pad(row, (0, width - len(row)), constant_values=value) for row in rows])


def part_gates(gates: DagGates, parts: Parts) -> tuple[Array, Array, Array, Array]:
    """Source [P, H, n, o], transition [P, H, i, o] and mark [P, H, i, n] of each part (Equations 10 to 12), and the
    gating matrix of its nodes [P, H, n, n], all from, then to. Gates have edges and line edges first: [E, H]."""
    count, entering = parts.entering.shape
    heads = gates.source.shape[1]
    n = parts.nodes
    e = parts.edges
    zeros = functools.partial(jnp.zeros, dtype=gates.source.dtype)
    step = zeros((count, e, e, heads)).at[*parts.line].add(gates.transition)
    paths = zeros((count, n + entering, e, heads)).at[*parts.tail].set(gates.source)
    part, row, edge = parts.entry
    paths = paths.at[part, n + row, edge].set(1.0)
    step, paths = (jnp.moveaxis(matrix, 3, 1) for matrix in (step, paths))
    doublings = math.ceil(math.log2(parts.longest))
    for doubling in range(doublings):  # times I + T + T^2 + ...
        paths = paths + product("phae,phef->phaf", paths, step)
        if doubling + 1 < doublings:
            step = product("phef,phfg->pheg", step, step)
    part, node, edge = parts.head
    into = zeros((count, e, n, heads)).at[part, edge, node].set(gates.mark)
    to_nodes = product("phae,penh->phan", paths, into)
    out = jnp.pad(paths, ((0, 0),) * 3 + ((0, 1),))  # padding of `exit` reads zeros
    to_edges = jnp.take_along_axis(out, parts.exit[:, None, None], axis=-1)
    return to_edges[:, :, :n], to_edges[:, :, n:], to_nodes[:, :, n:], to_nodes[:, :, :n]


@public_operator
def plstm_dag_by_parts(
    q: Array, k: Array, v: Array, gates: DagGates, direct: Array, dag: Dag, parts: int, *, scale: float | None = None
) -> Array:
    """`plstm.ops.dag.plstm_dag` on one graph that is cut into at most `parts` parts: gating matrices within the parts,
    all in parallel, and matrix states on the edges between them, one part after another.

    More parts have smaller matrices and more steps; one part is fully parallel. Returns [..., N, d_v] in v's dtype,
    with reverse-mode derivatives only. Raises ValueError where shapes disagree, d_k or d_v is 0, or parts is no number
    from 1 to N.
    """
    check_axes(DAG_AXES, q, k, v, direct, *gates, N=dag.num_nodes, E=dag.num_edges, L=len(dag.line_to))
    cuts = cut(dag, parts)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    size = v.shape[-1]
    dtype = accumulation_dtype(*gates)
    heads = math.prod(v.shape[:-2])
    on_edges = DagGates(*(gate.reshape(heads, gate.shape[-1]).T.astype(dtype) for gate in gates))
    source, transition, mark, gating = part_gates(on_edges, cuts)
    count = len(gating)

    def split(x):  # [..., N, d] -> [P, H, n, d]
        x = x.reshape(heads, dag.num_nodes, x.shape[-1])
        placed = jnp.zeros_like(x, shape=(heads, count * cuts.nodes, x.shape[-1])).at[:, cuts.node].set(x)
        return placed.reshape(heads, count, cuts.nodes, x.shape[-1]).swapaxes(0, 1)

    def visit(states, part):  # of the edges between parts [B + 1, H, d_k, d_v], the last one padding
        q, k, v, source, transition, mark, entering, leaving = part
        arrived = states[entering]
        read = product("hnk,ihkv->hinv", q, arrived)
        sent = product("hio,ihkv->ohkv", transition, arrived) + product("hno,hnk,hnv->ohkv", source, k, v)
        return states.at[leaving].set(sent), product("hin,hinv->hnv", mark, read)

    queries, keys, values = (split(x) for x in (q, k, v))
    states = jnp.zeros_like(source, shape=(cuts.entry.shape[1] + 1, heads, q.shape[-1], size))
    wide = cast((queries, keys, values), dtype)
    _, crossed = lax.scan(visit, states, (*wide, source, transition, mark, cuts.entering, cuts.leaving))
    hidden = scale * crossed + attend(queries, keys, values, gating.swapaxes(-1, -2), scale)
    hidden = hidden.swapaxes(0, 1).reshape(heads, count * cuts.nodes, size)[:, cuts.node].reshape(v.shape)
    return (hidden + direct_term(q, k, v, direct.astype(dtype), scale)).astype(v.dtype)
