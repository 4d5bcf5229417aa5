"""Directed acyclic graphs and what pLSTM needs of them: line graph, levels, multitree (arXiv 2506.11997, Section 3.2).

A line edge (e', e) joins an edge e' to an edge e that starts where e' ends; transitions act on line edges. Everything
here is NumPy on the host, computed once a graph; `PackedDags` is what the operator takes into jitted programs.
"""

import dataclasses
import functools
import graphlib
import heapq
from collections.abc import Sequence
from typing import Any, Self

import jax
import numpy as np

MAX_STEP_WIDTH = 64  # line edges that one step of a level scan handles
PACKED = ("tail", "head", "line_from", "line_to", "multitree", "reverse_multitree")  # what `pack` joins
BACKWARD = {"tail": "head", "line_from": "line_to", "level": "height"}  # the fields of the reverse graph
BACKWARD |= {name: f"reverse_{name}" for name in ("multitree", "schedule")}
BACKWARD |= {backward: forward for forward, backward in BACKWARD.items()}


def _reversed_fields(graph: "Dag | PackedDags") -> dict[str, Any]:
    return {name: getattr(graph, BACKWARD[name]) for name in vars(graph) if name in BACKWARD}


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
    multitree: np.ndarray  # bool [L]: the line edges that the D-mode keeps
    height: np.ndarray  # int32 [E]: number of edges on the longest path that starts with an edge
    reverse_multitree: np.ndarray  # bool [L]: as multitree, in the reverse graph

    @classmethod
    def from_edges(cls, num_nodes: int, edges) -> Self:
        """The graph of `edges` [E, 2], pairs (tail, head) of node numbers, among which a pair may come twice. Nodes
        without an order between them are visited lowest number first, which decides what the multitree keeps. Memory
        grows with the square of the edges. Raises ValueError for `num_nodes` under 1, edges of another shape or dtype,
        numbers outside 0 to num_nodes - 1, and a cycle."""
        if num_nodes < 1:
            raise ValueError(f"num_nodes must be at least 1; got {num_nodes}")
        edges = np.asarray(edges) if len(edges) else np.zeros((0, 2), np.int32)
        if edges.ndim != 2 or edges.shape[1] != 2 or not np.issubdtype(edges.dtype, np.integer):
            raise ValueError(f"edges must be integers [E, 2]; got {edges.dtype} {edges.shape}")
        for e in np.flatnonzero(((edges < 0) | (edges >= num_nodes)).any(axis=1)):
            raise ValueError(f"edge {e}, {edges[e, 0]} -> {edges[e, 1]}: nodes are numbered from 0 to {num_nodes - 1}")
        tail, head = np.ascontiguousarray(edges.T, np.int32)
        rank = _topological_rank(num_nodes, tail, head)
        into = np.bincount(head, minlength=num_nodes)
        counts = into[tail]
        first = np.cumsum(into) - into
        line_to = np.repeat(np.arange(len(tail), dtype=np.int32), counts)
        line_from = np.argsort(head, kind="stable").astype(np.int32)[np.repeat(first[tail], counts) + _ranges(counts)]
        forward = _levels_and_multitree(tail, head, rank, line_from, line_to)
        backward = _levels_and_multitree(head, tail, num_nodes - 1 - rank, line_to, line_from)
        return cls(num_nodes, rank, tail, head, line_from, line_to, *forward, *backward)

    def reverse(self) -> Self:
        """The graph with the direction of every edge reversed; edges and line edges keep their numbers."""
        return dataclasses.replace(self, rank=self.num_nodes - 1 - self.rank, **_reversed_fields(self))

    num_edges = property(lambda self: len(self.tail))
    depth = property(lambda self: int(self.level.max(initial=0)))  # the number of edges on the longest path

    @functools.cached_property
    def packed(self) -> "PackedDags":
        """This graph alone, as the operator takes it; nodes, edges and line edges keep their numbers."""
        return pack([self], self.num_nodes, self.num_edges)[0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PackedDags:
    """One or more DAGs side by side, padded: a pytree of arrays whose shapes do not depend on the single graphs.

    Nodes and edges are in equal blocks, which may hold several graphs; no edge leaves its block. N, E and L include
    padding, whose gates the operator sets to zero. The schedules hold line edges in rows, each of one level, padded
    with L: by the level of line_to and by the height of line_from.
    """

    tail: np.ndarray  # int32 [E]
    head: np.ndarray
    edge_mask: np.ndarray  # bool [E]: False for padding
    line_from: np.ndarray  # int32 [L]
    line_to: np.ndarray
    line_mask: np.ndarray  # bool [L]: False for padding
    multitree: np.ndarray  # bool [L]
    reverse_multitree: np.ndarray
    schedule: np.ndarray  # int32 [steps, width]
    reverse_schedule: np.ndarray
    blocks: int = dataclasses.field(metadata={"static": True})
    block_nodes: int = dataclasses.field(metadata={"static": True})
    block_edges: int = dataclasses.field(metadata={"static": True})
    depth: int = dataclasses.field(metadata={"static": True})  # at least the number of edges on the longest path

    num_nodes = property(lambda self: self.blocks * self.block_nodes)
    num_edges = property(lambda self: self.blocks * self.block_edges)
    num_line_edges = property(lambda self: self.line_from.shape[-1])

    def reverse(self) -> Self:
        """The graphs with the direction of every edge reversed; edges and line edges keep their numbers."""
        return dataclasses.replace(self, **_reversed_fields(self))

    def pad(self, blocks: int, line_edges: int, steps: int, depth: int) -> Self:
        """Padded to these sizes, so that batches of many sizes share one compiled program; positions stay. Raises
        ValueError where a size is smaller than now."""
        lines = self.num_line_edges
        most = max(len(self.schedule), len(self.reverse_schedule))
        if blocks < self.blocks or line_edges < lines or steps < most or depth < self.depth:
            raise ValueError(f"cannot pad to {blocks} blocks, {line_edges} line edges, {steps} steps, depth {depth}")
        first = _first_nodes(self.blocks, blocks, self.block_nodes, self.block_edges)
        padded: dict[str, Any] = {name: np.append(getattr(self, name), first) for name in ("tail", "head")}
        padded["edge_mask"] = np.pad(self.edge_mask, (0, len(first)))
        for name in ("line_from", "line_to", "line_mask", "multitree", "reverse_multitree"):
            padded[name] = np.pad(getattr(self, name), (0, line_edges - lines))
        for name in ("schedule", "reverse_schedule"):
            rows = np.where(getattr(self, name) == lines, line_edges, getattr(self, name))
            padded[name] = np.pad(rows, ((0, steps - len(rows)), (0, 0)), constant_values=line_edges).astype(np.int32)
        return dataclasses.replace(self, **padded, blocks=blocks, depth=depth)


def pack(
    dags: Sequence[Dag], block_nodes: int, block_edges: int, *, width: int | None = None
) -> tuple[PackedDags, np.ndarray]:
    """Places graphs into equal blocks by first fit, largest first; a graph's nodes, edges and line edges stay in order.

    width: line edges that a step of the level scan handles; None: by the mean number of line edges on a level. Returns
    also the first node and the first edge of each graph, int32 [2, graphs]; line edges follow one another. Raises
    ValueError where there is no graph, or one is larger than a block.
    """
    if not dags:
        raise ValueError("there are no graphs to pack")
    if width is not None and width < 1:
        raise ValueError(f"width={width}: must be at least 1")
    nodes, edges, lines = np.array([(dag.num_nodes, dag.num_edges, len(dag.line_to)) for dag in dags]).T
    if nodes.max() > block_nodes or edges.max() > block_edges:
        largest = f"a graph of {nodes.max()} nodes or {edges.max()} edges"
        raise ValueError(f"{largest} does not fit a block of {block_nodes} nodes and {block_edges} edges")
    placement = first_node, first_edge = _first_fit(nodes, edges, block_nodes, block_edges)
    blocks = int(first_node.max()) // block_nodes + 1
    depth = max(dag.depth for dag in dags)
    if width is None:
        mean = -(-int(lines.sum()) // max(depth - 1, 1))
        width = min(MAX_STEP_WIDTH, 1 << max(mean - 1, 0).bit_length())
    real = np.repeat(first_edge, edges) + _ranges(edges)
    arrays: dict[str, Any] = {name: np.concatenate([getattr(dag, name) for dag in dags]) for name in PACKED}
    for name in ("line_from", "line_to"):
        arrays[name] += np.repeat(first_edge, lines)
    for name in ("tail", "head"):
        placed = _first_nodes(0, blocks, block_nodes, block_edges)
        placed[real] = arrays[name] + np.repeat(first_node, edges)
        arrays[name] = placed
    arrays["edge_mask"] = np.isin(np.arange(blocks * block_edges), real)
    arrays["line_mask"] = np.ones(lines.sum(), bool)
    arrays["schedule"] = _schedule([dag.level[dag.line_to] for dag in dags], width)
    arrays["reverse_schedule"] = _schedule([dag.height[dag.line_from] for dag in dags], width)
    sizes = dict(blocks=blocks, block_nodes=block_nodes, block_edges=block_edges, depth=depth)
    return PackedDags(**arrays, **sizes), placement


def _first_nodes(start: int, stop: int, block_nodes: int, block_edges: int) -> np.ndarray:
    """For each edge of the blocks from start to stop, the first node of its block: where padding begins and ends."""
    return np.repeat(np.arange(start, stop, dtype=np.int32) * block_nodes, block_edges)


def _ranges(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... counts[0] - 1, 0, 1, ... counts[1] - 1, and so on."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _first_fit(nodes, edges, block_nodes: int, block_edges: int) -> np.ndarray:
    used: list[tuple[int, int]] = []  # nodes and edges of each block
    placement = np.zeros((2, len(nodes)), np.int32)
    for g in np.argsort(-nodes, kind="stable").tolist():
        n = int(nodes[g])
        e = int(edges[g])
        fits = (block for block, (a, b) in enumerate(used) if a + n <= block_nodes and b + e <= block_edges)
        block = next(fits, len(used))
        a, b = used[block] if block < len(used) else (0, 0)
        placement[:, g] = block * block_nodes + a, block * block_edges + b
        used[block : block + 1] = [(a + n, b + e)]
    return placement


def _schedule(levels: list[np.ndarray], width: int) -> np.ndarray:
    """Line edges in rows of `width`, no row over two levels; see `PackedDags`."""
    counts = np.bincount(level := np.concatenate(levels))
    rows = -(-counts // width)
    schedule = np.full(int(rows.sum()) * width, len(level), np.int32)
    first = (np.cumsum(rows) - rows) * width
    schedule[np.repeat(first, counts) + _ranges(counts)] = np.argsort(level, kind="stable")
    return schedule.reshape(-1, width)


def _topological_rank(num_nodes: int, tail: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Each node's place in the topological order that takes the lowest free number first."""
    before: list[list[int]] = [[] for _ in range(num_nodes)]
    for start, end in zip(tail.tolist(), head.tolist(), strict=True):
        before[end].append(start)
    sorter = graphlib.TopologicalSorter(dict(enumerate(before)))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"the edges form a cycle: {' -> '.join(map(str, error.args[1]))}") from None
    free: list[int] = []
    rank = np.empty(num_nodes, np.int32)
    for place in range(num_nodes):
        for node in sorter.get_ready():
            heapq.heappush(free, node)
        rank[free[0]] = place
        sorter.done(heapq.heappop(free))
    return rank


def _levels_and_multitree(tail, head, rank, line_from, line_to) -> tuple[np.ndarray, np.ndarray]:
    """Each edge's level, and the line edges to keep so that at most one path joins any two edges (Section 3.2, D-mode):
    in topological order, predecessors earliest first, unless the predecessor or one of its own already leads there."""
    place = np.empty(len(tail), np.int32)
    place[np.lexsort((rank[head], rank[tail]))] = np.arange(len(tail))
    level = np.ones(len(tail), np.int32)
    keep = np.zeros(len(line_to), bool)
    ancestors = [0] * len(tail)  # of each edge, as bits of one integer
    for line in np.lexsort((place[line_from], place[line_to])).tolist():
        parent = line_from[line]
        child = line_to[line]
        level[child] = max(level[child], level[parent] + 1)
        reaching = ancestors[parent] | (1 << int(parent))
        if not ancestors[child] & reaching:
            ancestors[child] |= reaching
            keep[line] = True
    return level, keep
