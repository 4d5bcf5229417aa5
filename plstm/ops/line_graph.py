"""Directed acyclic graphs and what pLSTM needs of them: line graph, levels, multitree (arXiv 2506.11997, Section 3.2).

A line edge (e', e) joins an edge e' to an edge e that starts where e' ends; it is where a transition acts. Everything
here is NumPy on the host, done once a graph; `PackedDags` is the form that operators take into jitted programs.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

WIDEST_CHUNK = 64  # line edges that one step of a level scan handles


@dataclasses.dataclass(frozen=True, eq=False)
class Dag:
    """A directed acyclic graph; build one with `Dag.from_edges`.

    num_nodes: N. rank: int32 [N], each node's place in a topological order.
    tail, head: int32 [E]; edge e leads from tail[e] to head[e].
    line_from, line_to: int32 [L]; line edge l joins edge line_from[l] to edge line_to[l], sorted by (to, from).
    level, height: int32 [E]; the number of edges on the longest path that ends, and that starts, with an edge.
    multitree, reverse_multitree: bool [L]; the line edges that the D-mode keeps, here and in the reverse graph.
    """

    num_nodes: int
    rank: np.ndarray
    tail: np.ndarray
    head: np.ndarray
    line_from: np.ndarray
    line_to: np.ndarray
    level: np.ndarray
    height: np.ndarray
    multitree: np.ndarray
    reverse_multitree: np.ndarray

    @classmethod
    def from_edges(cls, num_nodes: int, edges) -> Dag:
        """The graph of `edges` [E, 2], pairs (tail, head) of node numbers; gates of edges keep this order.

        Nodes without an order between them are visited lowest number first, which settles what the multitree keeps.
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
        outside = (edges < 0) | (edges >= num_nodes)
        if outside.any():
            e = int(np.flatnonzero(outside.any(axis=1))[0])
            raise ValueError(f"edge {e}, {_arrow(edges[e])}: nodes are numbered from 0 to {num_nodes - 1}")
        tail, head = np.ascontiguousarray(edges.T, np.int32)
        rank = _topological_rank(num_nodes, tail, head)
        line_from, line_to = _line_edges(num_nodes, tail, head)
        backward = num_nodes - 1 - rank
        return cls(
            num_nodes=num_nodes,
            rank=rank,
            tail=tail,
            head=head,
            line_from=line_from,
            line_to=line_to,
            level=_levels(num_nodes, tail, head, rank),
            height=_levels(num_nodes, head, tail, backward),
            multitree=_multitree(tail, head, rank, line_from, line_to),
            reverse_multitree=_multitree(head, tail, backward, line_to, line_from),
        )

    def reverse(self) -> Dag:
        """The graph with every edge turned round; edges and line edges keep their numbers."""
        return dataclasses.replace(
            self,
            rank=self.num_nodes - 1 - self.rank,
            tail=self.head,
            head=self.tail,
            line_from=self.line_to,
            line_to=self.line_from,
            level=self.height,
            height=self.level,
            multitree=self.reverse_multitree,
            reverse_multitree=self.multitree,
        )

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
        """This graph alone, as operators take it; nodes, edges and line edges keep their numbers."""
        return pack([self], self.num_nodes, self.num_edges)[0]


_DATA = ("tail", "head", "edge_mask", "line_from", "line_to", "line_mask", "multitree", "reverse_multitree")
_DATA += ("schedule", "reverse_schedule")
_META = ("blocks", "block_nodes", "block_edges", "depth")


@functools.partial(jax.tree_util.register_dataclass, data_fields=_DATA, meta_fields=_META)
@dataclasses.dataclass(frozen=True, eq=False)
class PackedDags:
    """One or more DAGs side by side, padded: a pytree of arrays whose shapes tell nothing of the graphs in it.

    Nodes and edges stand in `blocks` equal blocks of `block_nodes` and `block_edges`; no edge leaves its block, and a
    block may hold several graphs. Edges between padding have edge_mask False; the operator closes their gates.

    tail, head: int32 [E]. edge_mask: bool [E]. line_from, line_to: int32 [L]. line_mask, multitree, reverse_multitree:
    bool [L]. schedule, reverse_schedule: int32 [steps, width]; each row holds line edges whose `line_to` (reverse:
    whose `line_from`) lie on one level, rows from the first level to the last, L where a row has no more.
    depth: at least the number of edges on the longest path.
    """

    tail: np.ndarray
    head: np.ndarray
    edge_mask: np.ndarray
    line_from: np.ndarray
    line_to: np.ndarray
    line_mask: np.ndarray
    multitree: np.ndarray
    reverse_multitree: np.ndarray
    schedule: np.ndarray
    reverse_schedule: np.ndarray
    blocks: int
    block_nodes: int
    block_edges: int
    depth: int

    @property
    def num_nodes(self) -> int:
        """Rows of nodes, padding included."""
        return self.blocks * self.block_nodes

    @property
    def num_edges(self) -> int:
        """Rows of edges, padding included."""
        return self.blocks * self.block_edges

    @property
    def num_line_edges(self) -> int:
        """Rows of line edges, padding included."""
        return self.line_from.shape[-1]

    def reverse(self) -> PackedDags:
        """As `Dag.reverse`."""
        return dataclasses.replace(
            self,
            tail=self.head,
            head=self.tail,
            line_from=self.line_to,
            line_to=self.line_from,
            multitree=self.reverse_multitree,
            reverse_multitree=self.multitree,
            schedule=self.reverse_schedule,
            reverse_schedule=self.schedule,
        )

    def pad(self, blocks: int, line_edges: int, steps: int, depth: int) -> PackedDags:
        """Padded to these sizes, so that batches of many sizes share one compiled program; positions stay.

        Raises ValueError where a size is under what is there.
        """
        more_lines = line_edges - self.num_line_edges
        sizes = (blocks - self.blocks, more_lines, steps - len(self.schedule), steps - len(self.reverse_schedule))
        if min(*sizes, depth - self.depth) < 0:
            raise ValueError(f"cannot pad to {blocks} blocks, {line_edges} line edges, {steps} steps, depth {depth}")
        first = np.repeat(np.arange(self.blocks, blocks, dtype=np.int32) * self.block_nodes, self.block_edges)
        lines = {name: np.pad(getattr(self, name), (0, more_lines)) for name in ("line_from", "line_to", "line_mask")}
        lines |= {name: np.pad(getattr(self, name), (0, more_lines)) for name in ("multitree", "reverse_multitree")}

        def pad_schedule(schedule):
            schedule = np.where(schedule == self.num_line_edges, line_edges, schedule).astype(np.int32)
            return np.pad(schedule, ((0, steps - len(schedule)), (0, 0)), constant_values=line_edges)

        return dataclasses.replace(
            self,
            tail=np.append(self.tail, first),
            head=np.append(self.head, first),
            edge_mask=np.pad(self.edge_mask, (0, len(first))),
            **lines,
            schedule=pad_schedule(self.schedule),
            reverse_schedule=pad_schedule(self.reverse_schedule),
            blocks=blocks,
            depth=depth,
        )


class Placement(NamedTuple):
    """Where each of G packed graphs lies: its first node, edge and line edge, int32 [G] each."""

    node: np.ndarray
    edge: np.ndarray
    line_edge: np.ndarray


def pack(
    dags: Sequence[Dag], block_nodes: int, block_edges: int, *, width: int | None = None
) -> tuple[PackedDags, Placement]:
    """Places graphs into as few equal blocks as first fit, largest first, finds.

    Args:
        dags: the graphs; a graph's nodes, edges and line edges stay together and in order.
        block_nodes, block_edges: the size of a block.
        width: line edges a step of the level scan handles; none: by the number of line edges on a level.

    Raises ValueError where there is no graph, or one is larger than a block.
    """
    if not dags:
        raise ValueError("there are no graphs to pack")
    nodes, edges = (np.array([getattr(dag, name) for dag in dags]) for name in ("num_nodes", "num_edges"))
    if nodes.max(initial=0) > block_nodes or edges.max(initial=0) > block_edges:
        raise ValueError(
            f"a graph of {nodes.max()} nodes or {edges.max()} edges does not fit a block of {block_nodes} nodes and "
            f"{block_edges} edges"
        )
    blocks, node, edge = _first_fit(nodes, edges, block_nodes, block_edges)
    lines = np.array([len(dag.line_from) for dag in dags])
    line = np.cumsum(lines) - lines
    tail = np.repeat(np.arange(blocks, dtype=np.int32) * block_nodes, block_edges)
    head, edge_mask = tail.copy(), np.zeros(blocks * block_edges, bool)
    at = np.repeat(edge, edges) + np.arange(edges.sum()) - np.repeat(np.cumsum(edges) - edges, edges)
    edge_mask[at] = True
    tail[at] = np.concatenate([dag.tail for dag in dags]) + np.repeat(node, edges)
    head[at] = np.concatenate([dag.head for dag in dags]) + np.repeat(node, edges)
    shift = np.repeat(edge, lines)
    level, height = (np.concatenate([getattr(d, name) for d in dags]) for name in ("level", "height"))
    by_edge = np.zeros((2, blocks * block_edges), np.int32)
    by_edge[:, at] = level, height
    line_from, line_to = (np.concatenate([getattr(d, n) for d in dags]) + shift for n in ("line_from", "line_to"))
    depth = int(level.max(initial=0))
    width = width or _chunk_width(len(line_to), depth)
    packed = PackedDags(
        tail=tail,
        head=head,
        edge_mask=edge_mask,
        line_from=line_from.astype(np.int32),
        line_to=line_to.astype(np.int32),
        line_mask=np.ones(len(line_to), bool),
        multitree=np.concatenate([dag.multitree for dag in dags]),
        reverse_multitree=np.concatenate([dag.reverse_multitree for dag in dags]),
        schedule=_schedule(by_edge[0, line_to], width),
        reverse_schedule=_schedule(by_edge[1, line_from], width),
        blocks=blocks,
        block_nodes=block_nodes,
        block_edges=block_edges,
        depth=depth,
    )
    return packed, Placement(node, edge, line.astype(np.int32))


def _first_fit(nodes, edges, block_nodes, block_edges) -> tuple[int, np.ndarray, np.ndarray]:
    """The number of blocks, and each graph's first node and edge."""
    used: list[list[int]] = []
    starts = np.zeros((2, len(nodes)), np.int32)
    for g in np.argsort(-nodes, kind="stable").tolist():
        n, e = int(nodes[g]), int(edges[g])
        fits = (block for block, (a, b) in enumerate(used) if a + n <= block_nodes and b + e <= block_edges)
        block = next(fits, len(used))
        if block == len(used):
            used.append([0, 0])
        starts[:, g] = block * block_nodes + used[block][0], block * block_edges + used[block][1]
        used[block][0] += n
        used[block][1] += e
    return len(used), starts[0], starts[1]


def _chunk_width(line_edges: int, depth: int) -> int:
    mean = -(-line_edges // max(depth - 1, 1))
    return min(WIDEST_CHUNK, 1 << max(mean - 1, 0).bit_length())


def _schedule(level: np.ndarray, width: int) -> np.ndarray:
    """Line edges in rows of `width`, no row over two levels; see `PackedDags`."""
    order = np.argsort(level, kind="stable")
    counts = np.bincount(level)
    rows = -(-counts // width)
    first_row, first = np.cumsum(rows) - rows, np.cumsum(counts) - counts
    level = level[order]
    schedule = np.full(int(rows.sum()) * width, len(order), np.int32)
    schedule[first_row[level] * width + np.arange(len(order)) - first[level]] = order
    return schedule.reshape(-1, width)


def _topological_rank(num_nodes: int, tail: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Each node's place in the topological order that takes the lowest free number first."""
    children: list[list[int]] = [[] for _ in range(num_nodes)]
    for t, h in zip(tail.tolist(), head.tolist(), strict=True):
        children[t].append(h)
    waiting = np.bincount(head, minlength=num_nodes).tolist()
    free = [node for node in range(num_nodes) if waiting[node] == 0]
    rank, place = np.full(num_nodes, -1, np.int32), 0
    while free:
        node = heapq.heappop(free)
        rank[node], place = place, place + 1
        for child in children[node]:
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(free, child)
    if place < num_nodes:
        raise ValueError(f"the edges form a cycle: {_arrow(_find_cycle(rank, tail, head))}")
    return rank


def _find_cycle(rank: np.ndarray, tail: np.ndarray, head: np.ndarray) -> list[int]:
    """A cycle among the nodes without a rank: each has a parent among them, so walking to parents closes one."""
    parent = {h: t for t, h in zip(tail.tolist(), head.tolist(), strict=True) if rank[t] < 0 and rank[h] < 0}
    node, seen = next(iter(parent)), []
    while node not in seen:
        seen.append(node)
        node = parent[node]
    cycle = [node, *reversed(seen[seen.index(node) :])]
    return cycle


def _arrow(nodes) -> str:
    return " -> ".join(str(int(node)) for node in nodes)


def _line_edges(num_nodes: int, tail: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of an edge into a node and an edge out of it, sorted by the second, then the first."""
    by_head = np.argsort(head, kind="stable")
    into = np.bincount(head, minlength=num_nodes)
    counts = into[tail]
    line_to = np.repeat(np.arange(len(tail)), counts)
    place = np.arange(len(line_to)) - np.repeat(np.cumsum(counts) - counts, counts)
    line_from = by_head[(np.cumsum(into) - into)[tail[line_to]] + place]
    return line_from.astype(np.int32), line_to.astype(np.int32)


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
