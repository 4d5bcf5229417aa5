"""Directed acyclic graphs and what pLSTM needs of them: line graph, levels, multitree (arXiv 2506.11997, Section 3.2).

A line edge (e', e) joins an edge e' to an edge e that starts where e' ends; transitions act on line edges. Everything
here is NumPy on the host, computed once a graph; `PackedDags` is what the operator takes into jitted programs.
"""

from __future__ import annotations

import dataclasses
import functools
import graphlib
import heapq
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

MAX_STEP_WIDTH = 64  # line edges that one step of a level scan handles
FORWARD = ("tail", "line_from", "level", "multitree", "schedule")
BACKWARD = ("head", "line_to", "height", "reverse_multitree", "reverse_schedule")  # the same in the reverse graph
STATIC = {"static": True}


@dataclasses.dataclass(frozen=True, eq=False)
class Dag:
    """A directed acyclic graph of N nodes, E edges and L line edges; build one with `Dag.from_edges`."""

    num_nodes: int
    rank: np.ndarray  # int32 [N]: each node's place in a topological order
    tail: np.ndarray  # int32 [E]: edge e leads from tail[e] to head[e]
    head: np.ndarray
    line_from: np.ndarray  # int32 [L]: line edge l joins edge line_from[l] to line_to[l], sorted by (to, from)
    line_to: np.ndarray
    level: np.ndarray  # int32 [E]: number of edges on the longest path that ends with an edge
    height: np.ndarray  # int32 [E]: ... that starts with an edge
    multitree: np.ndarray  # bool [L]: the line edges that the D-mode keeps
    reverse_multitree: np.ndarray  # bool [L]: ... in the reverse graph

    @classmethod
    def from_edges(cls, num_nodes: int, edges) -> Dag:
        """The graph of `edges` [E, 2], pairs (tail, head) of node numbers; gates of edges keep this order.

        Nodes without an order between them are visited lowest number first; this decides what the multitree keeps.
        Two edges may join the same nodes. Raises ValueError for numbers outside 0 to num_nodes - 1, and for a cycle,
        which it names.
        """
        if num_nodes < 1:
            raise ValueError(f"num_nodes must be at least 1; got {num_nodes}")
        edges = np.asarray(edges)
        if edges.size == 0:
            edges = np.zeros((0, 2), np.int32)
        if edges.ndim != 2 or edges.shape[1] != 2 or not np.issubdtype(edges.dtype, np.integer):
            raise ValueError(f"edges must be integers [E, 2]; got {edges.dtype} {edges.shape}")
        outside = ((edges < 0) | (edges >= num_nodes)).any(axis=1)
        if outside.any():
            e = int(np.argmax(outside))
            raise ValueError(f"edge {e}, {_arrow(edges[e])}: nodes are numbered from 0 to {num_nodes - 1}")
        tail, head = np.ascontiguousarray(edges.T, np.int32)
        rank = _topological_rank(num_nodes, tail, head)
        backward = num_nodes - 1 - rank
        line_from, line_to = _line_edges(num_nodes, tail, head)
        levels = _levels(num_nodes, tail, head, rank), _levels(num_nodes, head, tail, backward)
        kept = _multitree(tail, head, rank, line_from, line_to), _multitree(head, tail, backward, line_to, line_from)
        return cls(num_nodes, rank, tail, head, line_from, line_to, *levels, *kept)

    def reverse(self) -> Dag:
        """The graph with the direction of every edge reversed; edges and line edges keep their numbers."""
        return dataclasses.replace(_swap_directions(self), rank=self.num_nodes - 1 - self.rank)

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.tail)

    @property
    def depth(self) -> int:
        """The number of edges on the longest path."""
        return int(self.level.max(initial=0))

    @functools.cached_property
    def packed(self) -> PackedDags:
        """This graph alone, as the operator takes it; nodes, edges and line edges keep their numbers."""
        return pack([self], self.num_nodes, self.num_edges)[0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PackedDags:
    """One or more DAGs side by side, padded: a pytree of arrays whose shapes do not depend on the single graphs.

    Nodes and edges are in `blocks` equal blocks of `block_nodes` and `block_edges`; no edge leaves its block, and a
    block may hold several graphs. N, E and L include padding, whose gates the operator sets to zero.
    """

    tail: np.ndarray  # int32 [E]
    head: np.ndarray  # int32 [E]
    edge_mask: np.ndarray  # bool [E]: False for padding
    line_from: np.ndarray  # int32 [L]
    line_to: np.ndarray  # int32 [L]
    line_mask: np.ndarray  # bool [L]: False for padding
    multitree: np.ndarray  # bool [L]
    reverse_multitree: np.ndarray  # bool [L]
    schedule: (
        np.ndarray
    )  # int32 [steps, width]: line edges by the level of line_to, no row over two levels, padded with L
    reverse_schedule: np.ndarray  # int32 [steps, width]: ... by the height of line_from
    blocks: int = dataclasses.field(metadata=STATIC)
    block_nodes: int = dataclasses.field(metadata=STATIC)
    block_edges: int = dataclasses.field(metadata=STATIC)
    depth: int = dataclasses.field(metadata=STATIC)  # at least the number of edges on the longest path

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.blocks * self.block_nodes

    @property
    def num_edges(self) -> int:
        """E."""
        return self.blocks * self.block_edges

    @property
    def num_line_edges(self) -> int:
        """L."""
        return self.line_from.shape[-1]

    def reverse(self) -> PackedDags:
        """As `Dag.reverse`."""
        return _swap_directions(self)

    def pad(self, blocks: int, line_edges: int, steps: int, depth: int) -> PackedDags:
        """Padded to these sizes, so that batches of many sizes share one compiled program; positions stay.

        Raises ValueError where a size is smaller than now.
        """
        more_lines = line_edges - self.num_line_edges
        missing = steps - max(len(self.schedule), len(self.reverse_schedule))
        if min(blocks - self.blocks, more_lines, missing, depth - self.depth) < 0:
            raise ValueError(f"cannot pad to {blocks} blocks, {line_edges} line edges, {steps} steps, depth {depth}")
        first = np.repeat(np.arange(self.blocks, blocks, dtype=np.int32) * self.block_nodes, self.block_edges)
        padded = {name: np.append(getattr(self, name), first) for name in ("tail", "head")}
        padded["edge_mask"] = np.pad(self.edge_mask, (0, len(first)))
        for name in ("line_from", "line_to", "line_mask", "multitree", "reverse_multitree"):
            padded[name] = np.pad(getattr(self, name), (0, more_lines))
        for name in ("schedule", "reverse_schedule"):
            schedule = getattr(self, name)
            schedule = np.where(schedule == self.num_line_edges, line_edges, schedule).astype(np.int32)
            padded[name] = np.pad(schedule, ((0, steps - len(schedule)), (0, 0)), constant_values=line_edges)
        return dataclasses.replace(self, **padded, blocks=blocks, depth=depth)


class Placement(NamedTuple):
    """The first node and the first edge of each packed graph, int32 [graphs] each; line edges follow one another."""

    node: np.ndarray
    edge: np.ndarray


def pack(
    dags: Sequence[Dag], block_nodes: int, block_edges: int, *, width: int | None = None
) -> tuple[PackedDags, Placement]:
    """Places graphs into equal blocks by first fit, largest first.

    Args:
        dags: the graphs; a graph's nodes, edges and line edges stay together and in order.
        block_nodes, block_edges: the size of a block.
        width: line edges that a step of the level scan handles; None: by the mean number of line edges on a level.

    Raises ValueError where there is no graph, or one is larger than a block.
    """
    if not dags:
        raise ValueError("there are no graphs to pack")
    nodes, edges, lines = (np.array([len(getattr(dag, name)) for dag in dags]) for name in ("rank", "tail", "line_to"))
    if nodes.max() > block_nodes or edges.max() > block_edges:
        raise ValueError(
            f"a graph of {nodes.max()} nodes or {edges.max()} edges does not fit a block of {block_nodes} nodes and "
            f"{block_edges} edges"
        )
    blocks, placement = _first_fit(nodes, edges, block_nodes, block_edges)
    real = np.repeat(placement.edge, edges) + _ranges(edges)
    no_edge = np.zeros(blocks * block_edges, np.int32)
    first_node = np.repeat(np.arange(blocks, dtype=np.int32) * block_nodes, block_edges)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(dag, name) for dag in dags])

    def on_edges(values, padding: np.ndarray) -> np.ndarray:
        placed = padding.copy()
        placed[real] = values
        return placed

    shift = np.repeat(placement.node, edges)
    tail, head = (on_edges(joined(name) + shift, first_node) for name in ("tail", "head"))
    level, height = (on_edges(joined(name), no_edge) for name in ("level", "height"))
    line_from, line_to = (joined(name) + np.repeat(placement.edge, lines) for name in ("line_from", "line_to"))
    depth = int(level.max(initial=0))
    width = width or _step_width(len(line_to), depth)
    packed = PackedDags(
        tail=tail,
        head=head,
        edge_mask=on_edges(True, no_edge.astype(bool)),
        line_from=line_from,
        line_to=line_to,
        line_mask=np.ones(len(line_to), bool),
        multitree=joined("multitree"),
        reverse_multitree=joined("reverse_multitree"),
        schedule=_schedule(level[line_to], width),
        reverse_schedule=_schedule(height[line_from], width),
        blocks=blocks,
        block_nodes=block_nodes,
        block_edges=block_edges,
        depth=depth,
    )
    return packed, placement


def _swap_directions(graph):
    """A `Dag` or `PackedDags` with the fields of the reverse graph, except for rank."""
    pairs = [pair for pair in zip(FORWARD + BACKWARD, BACKWARD + FORWARD, strict=True) if hasattr(graph, pair[0])]
    return dataclasses.replace(graph, **{name: getattr(graph, reverse) for name, reverse in pairs})


def _starts(counts: np.ndarray) -> np.ndarray:
    """The first position of each of several consecutive ranges of these lengths."""
    return np.cumsum(counts) - counts


def _ranges(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... counts[0] - 1, 0, 1, ... counts[1] - 1, and so on."""
    return np.arange(counts.sum()) - np.repeat(_starts(counts), counts)


def _first_fit(nodes, edges, block_nodes: int, block_edges: int) -> tuple[int, Placement]:
    """The number of blocks, and where the graphs are in them."""
    used: list[list[int]] = []
    placement = Placement(*np.zeros((2, len(nodes)), np.int32))
    for g in np.argsort(-nodes, kind="stable").tolist():
        n, e = int(nodes[g]), int(edges[g])
        fits = (block for block, (a, b) in enumerate(used) if a + n <= block_nodes and b + e <= block_edges)
        block = next(fits, len(used))
        if block == len(used):
            used.append([0, 0])
        placement.node[g] = block * block_nodes + used[block][0]
        placement.edge[g] = block * block_edges + used[block][1]
        used[block][0] += n
        used[block][1] += e
    return len(used), placement


def _step_width(line_edges: int, depth: int) -> int:
    mean = -(-line_edges // max(depth - 1, 1))
    return min(MAX_STEP_WIDTH, 1 << max(mean - 1, 0).bit_length())


def _schedule(level: np.ndarray, width: int) -> np.ndarray:
    """Line edges in rows of `width`, no row over two levels; see `PackedDags`."""
    order, counts = np.argsort(level, kind="stable"), np.bincount(level)
    rows = -(-counts // width)
    schedule = np.full(int(rows.sum()) * width, len(order), np.int32)
    schedule[np.repeat(_starts(rows) * width, counts) + _ranges(counts)] = order
    return schedule.reshape(-1, width)


def _topological_rank(num_nodes: int, tail: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Each node's place in the topological order that takes the lowest free number first."""
    sorter = graphlib.TopologicalSorter({node: () for node in range(num_nodes)})
    for t, h in zip(tail.tolist(), head.tolist(), strict=True):
        sorter.add(h, t)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"the edges form a cycle: {_arrow(error.args[1])}") from None
    free = list(sorter.get_ready())
    heapq.heapify(free)
    rank = np.empty(num_nodes, np.int32)
    for place in range(num_nodes):
        node = heapq.heappop(free)
        rank[node] = place
        sorter.done(node)
        for child in sorter.get_ready():
            heapq.heappush(free, child)
    return rank


def _arrow(nodes) -> str:
    return " -> ".join(str(int(node)) for node in nodes)


def _line_edges(num_nodes: int, tail: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of an edge into a node and an edge out of it, sorted by the second, then the first."""
    by_head = np.argsort(head, kind="stable").astype(np.int32)
    into = np.bincount(head, minlength=num_nodes)
    counts = into[tail]
    line_to = np.repeat(np.arange(len(tail), dtype=np.int32), counts)
    return by_head[np.repeat(_starts(into)[tail], counts) + _ranges(counts)], line_to


def _levels(num_nodes: int, tail: np.ndarray, head: np.ndarray, rank: np.ndarray) -> np.ndarray:
    longest = [0] * num_nodes
    level = np.zeros(len(tail), np.int32)
    for e in np.argsort(rank[tail], kind="stable").tolist():
        level[e] = longest[tail[e]] + 1
        longest[head[e]] = max(longest[head[e]], int(level[e]))
    return level


def _multitree(tail, head, rank, line_from, line_to) -> np.ndarray:
    """Which line edges to keep so that at most one path joins any two edges (Section 3.2, D-mode).

    Visits the edges in topological order and their predecessors earliest first; keeps a line edge unless some edge
    that leads to the predecessor, or the predecessor itself, already leads to the edge.
    """
    place = np.empty(len(tail), np.int32)
    place[np.lexsort((rank[head], rank[tail]))] = np.arange(len(tail))
    keep = np.zeros(len(line_to), bool)
    ancestors = [0] * len(tail)  # of each edge, as bits of one integer
    for line in np.lexsort((place[line_from], place[line_to])).tolist():
        parent, child = line_from[line], line_to[line]
        reaching = ancestors[parent] | (1 << int(parent))
        if not ancestors[child] & reaching:
            ancestors[child] |= reaching
            keep[line] = True
    return keep
