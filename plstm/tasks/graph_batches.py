"""Batches of graphs in few shapes: nodes and edges of many graphs packed side by side (see `plstm.ops.dag`).

A batch is a dictionary of arrays for `graphs` graphs, the last of them padding where there are fewer:

    features float32 [N, F], degree int32 [N], graph int32 [N] (padding: number `graphs`)
    label int32 [graphs], mask bool [graphs], nodes int32 [graphs] (how many each graph has)
    dags     a tuple of `PackedDags`, the small graphs, then the large ones; their nodes one after another are the N

Each undirected edge points from the lower to the higher node number.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data.graphs.tudataset import GraphSet
from plstm.ops.dag import Dag, PackedDags, pack

SMALL = 128  # nodes of the largest graph that goes into blocks; larger ones share a block of their own
BLOCK = 64  # nodes of a block, or as many as the largest of the small graphs has
WIDTH = 64  # line edges a step of the level scan
# Sizes of batches, over that of a full one of average graphs: each is one compiled program.
LADDER = (0.4, 0.7, 1.0, 1.1, 1.25, 1.6, 2.0, 3.0, 5.0, 8.0)


class GraphBatches:
    """A graph set made ready: DAGs built once, and the sizes that its batches are padded to.

    batch_size: graphs a batch.
    """

    def __init__(self, graphs: GraphSet, batch_size: int):
        self.graphs, self.batch_size = graphs, batch_size
        self.dags = [Dag.from_edges(*graphs.graph(g)) for g in range(len(graphs))]
        self.nodes = np.diff(graphs.node_start).astype(np.int32)
        self.edges = np.diff(graphs.edge_start).astype(np.int32)
        ends = graphs.edges + np.repeat(graphs.node_start[:-1], self.edges)[:, None]
        self.degree = np.bincount(ends.ravel(), minlength=len(graphs.features)).astype(np.int32)
        self.lines = np.array([len(dag.line_from) for dag in self.dags])
        self.depth = max(dag.depth for dag in self.dags)
        is_small = self.nodes <= SMALL
        self._parts = [_Part(self, takes) for takes in (is_small, ~is_small) if takes.any()]

    def batch(self, indices: Sequence[int]) -> dict[str, Any]:
        """The batch of the graphs `indices`, at most `batch_size` of them, in this order."""
        graphs, indices = self.graphs, np.asarray(indices)
        missing = self.batch_size - len(indices)
        parts = []
        for part in self._parts:
            position = np.flatnonzero(part.takes[indices])
            if not len(position):
                continue
            chosen = indices[position]
            dag, first = part.pack(chosen)
            count = self.nodes[chosen]
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            node, graph = np.full(dag.num_nodes, -1), np.full(dag.num_nodes, self.batch_size, np.int32)
            node[np.repeat(first, count) + within] = np.repeat(graphs.node_start[chosen], count) + within
            graph[np.repeat(first, count) + within] = np.repeat(position, count)
            parts.append((dag, node, graph))
        dags, nodes, owners = zip(*parts, strict=True)
        node = np.concatenate(nodes)
        return {
            "features": np.where(node[:, None] < 0, np.float32(0), graphs.features[node]),
            "degree": np.where(node < 0, np.int32(0), self.degree[node]),
            "graph": np.concatenate(owners),
            "label": np.pad(graphs.labels[indices], (0, missing)),
            "mask": np.arange(self.batch_size) < len(indices),
            "nodes": np.pad(self.nodes[indices], (0, missing)),
            "dags": dags,
        }

    def batches(self, indices: Sequence[int]) -> Iterator[dict[str, Any]]:
        """All graphs of `indices`, in order."""
        for start in range(0, len(indices), self.batch_size):
            yield self.batch(indices[start : start + self.batch_size])


class _Part:
    """The graphs of a set that are packed alike: `takes` bool [graphs]."""

    def __init__(self, owner: GraphBatches, takes: np.ndarray):
        self.takes, self._owner = takes, owner
        nodes, edges, lines = (getattr(owner, name)[takes] for name in ("nodes", "edges", "lines"))
        share, size = takes.mean(), owner.batch_size
        self._shared_block = nodes.max() > SMALL
        self._block_nodes, self._block_edges, self._lines = (_typical(n, share, size) for n in (nodes, edges, lines))
        if not self._shared_block:
            self._block_nodes = max(BLOCK, _multiple(nodes.max(), 16))
            even = self._block_nodes * edges.sum() / max(nodes.sum(), 1)
            self._block_edges = _multiple(max(1.1 * even, edges.max()), 8)
        self._blocks = math.ceil(share * size * nodes.mean() / self._block_nodes)

    def pack(self, indices: np.ndarray) -> tuple[PackedDags, np.ndarray]:
        """The padded DAGs of these graphs and each one's first node."""
        owner, lines = self._owner, self._owner.lines[indices].sum()
        block_nodes, block_edges, scale = self._block_nodes, self._block_edges, 0.0
        if self._shared_block:
            scale = max(owner.nodes[indices].sum() / block_nodes, owner.edges[indices].sum() / block_edges)
            scale = _step(max(scale, lines / self._lines))
            block_nodes, block_edges = (_multiple(scale * size, 8) for size in (block_nodes, block_edges))
        packed, (first_node, _) = pack([owner.dags[g] for g in indices], block_nodes, block_edges, width=WIDTH)
        scale = scale or _step(max(packed.blocks / self._blocks, lines / self._lines))
        blocks = 1 if self._shared_block else math.ceil(scale * self._blocks)
        line_edges = math.ceil(scale * self._lines)
        steps = -(-line_edges // WIDTH) + owner.depth  # no batch needs more: each level wastes less than a step
        return packed.pad(blocks, line_edges, steps, owner.depth), first_node


def _typical(values: np.ndarray, share: float, batch_size: int) -> int:
    """The sum over a batch that few batches exceed: two deviations above the mean."""
    mean, second = share * values.mean(), share * np.square(values.astype(float)).mean()
    return max(math.ceil(batch_size * mean + 2 * math.sqrt(batch_size * max(second - mean**2, 0))), 1)


def _step(scale: float) -> float:
    return next((step for step in LADDER if scale <= step), math.ceil(scale))


def _multiple(size: float, of: int) -> int:
    return of * math.ceil(size / of)
