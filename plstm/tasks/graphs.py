"""Graph classification on sets of TUDataset, one fold of a cross-validation a run (Section 4.2 and Table 1).

Batches have few shapes: nodes and edges of many graphs are packed side by side (see `plstm.ops.dag`).
A batch is a dictionary of arrays for `graphs` graphs, the last of them padding where there are fewer:

    features float32 [N, F], degree int32 [N], graph int32 [N] (padding: number `graphs`)
    label int32 [graphs], mask bool [graphs], nodes int32 [graphs] (how many each graph has)
    dags     a tuple of `PackedDags`, the small graphs, then the large ones; their nodes one after another are the N

Each undirected edge points from the lower to the higher node number.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from flax import nnx

from data.graphs.tudataset import SIZES, Fold, GraphSet, Sizes, load_tudataset, make_folds
from data.loading import epoch_order
from plstm.config import Config
from plstm.errors import UserError, require
from plstm.limits import MAX_SIZE, Matches, Natural
from plstm.models.graph import ReadoutModel
from plstm.ops.dag import Dag, PackedDags, pack
from plstm.tasks.base import MachineData, Task, classification_metrics, mean_loss
from plstm.tasks.streams import StreamBatches
from plstm.training.meshes import Layout
from plstm.training.steps import Batch, Metrics, Split

SMALL = 128  # nodes of the largest graph that goes into blocks; larger ones share a block of their own
BLOCK = 64  # nodes of a block, or as many as the largest of the small graphs has
WIDTH = 64  # line edges a step of the level scan
# Sizes of batches, over that of a full one of average graphs: each is one compiled program.
LADDER = (0.4, 0.7, 1.0, 1.1, 1.25, 1.6, 2.0, 3.0, 5.0, 8.0)


class GraphBatches:
    """A graph set ready for batches of `batch_size` graphs: DAGs built once, and the sizes to pad to."""

    def __init__(self, graphs: GraphSet, batch_size: int):
        self.graphs = graphs
        self.batch_size = batch_size
        self.dags = [Dag.from_edges(*graphs.graph(g)) for g in range(len(graphs))]
        self.nodes = np.diff(graphs.node_start).astype(np.int32)
        self.edges = np.diff(graphs.edge_start).astype(np.int32)
        ends = graphs.edges + np.repeat(graphs.node_start[:-1], self.edges)[:, None]
        self.degree = np.bincount(ends.ravel(), minlength=len(graphs.features)).astype(np.int32)
        self.lines = np.array([len(dag.line_from) for dag in self.dags])
        self.depth = max(dag.depth for dag in self.dags)
        is_small = self.nodes <= SMALL
        self._parts = [_Part(self, takes) for takes in (is_small, ~is_small) if takes.any()]

    def batch(self, numbers: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """The batch of the graphs `numbers`, at most `batch_size` of them, in this order."""
        graphs = self.graphs
        indices = np.asarray(numbers)
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
            node = np.full(dag.num_nodes, -1)
            graph = np.full(dag.num_nodes, self.batch_size, np.int32)
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


class _Part:
    """The graphs of a set that are packed alike: `takes` bool [graphs]."""

    def __init__(self, owner: GraphBatches, takes: np.ndarray):
        self.takes = takes
        self._owner = owner
        nodes, edges, lines = (getattr(owner, name)[takes] for name in ("nodes", "edges", "lines"))
        share = takes.mean()
        size = owner.batch_size
        self._shared_block = nodes.max() > SMALL
        self._block_nodes, self._block_edges, self._lines = (_typical(n, share, size) for n in (nodes, edges, lines))
        if not self._shared_block:
            self._block_nodes = max(BLOCK, _multiple(nodes.max(), 16))
            even = self._block_nodes * edges.sum() / nodes.sum()
            self._block_edges = _multiple(max(1.1 * even, edges.max()), 8)
        self._blocks = math.ceil(share * size * nodes.mean() / self._block_nodes)

    def pack(self, indices: np.ndarray) -> tuple[PackedDags, np.ndarray]:
        """The padded DAGs of these graphs and each one's first node."""
        owner = self._owner
        lines = self._owner.lines[indices].sum()
        block_nodes = self._block_nodes
        block_edges = self._block_edges
        scale = 0.0
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
    mean = share * values.mean()
    second = share * np.square(values.astype(float)).mean()
    return max(math.ceil(batch_size * mean + 2 * math.sqrt(batch_size * max(second - mean**2, 0))), 1)


def _step(scale: float) -> float:
    return next((step for step in LADDER if scale <= step), math.ceil(scale))


def _multiple(size: float, of: int) -> int:
    return of * math.ceil(size / of)


@dataclass
class GraphData(MachineData):
    # PTC_FM, PROTEINS, NCI1, or any other set of TUDataset; becomes part of paths and of an address.
    name: Annotated[str, Matches("[A-Za-z0-9_-]{1,64}", "of at most 64 letters, digits, _ and -")] = "MUTAG"
    # Stratified; each is the test set of one run, and 1 / (folds - 1) of the rest validates.
    folds: Annotated[int, Ge(3)] = 10
    fold: Natural = 0  # which of them tests, from 0
    fold_seed: Natural = 42  # of the split into folds
    download: bool = True  # fetch a missing set; otherwise missing data is an error
    verify: bool = True  # compare the set with the one that the results here come from, where it is a known one


@functools.lru_cache(maxsize=2)
def load_batches(name: str, root: str | None, download: bool, verify: bool, batch_size: int) -> GraphBatches:
    """A set with its DAGs, read once for all folds of this process. Errors: see `load_tudataset`."""
    return GraphBatches(load_tudataset(name, root, download=download, verify=verify), batch_size)


class GraphSplit(Split):
    """Some graphs of a set to evaluate on; their batches are made once."""

    def __init__(self, source: GraphBatches, indices: np.ndarray):
        self._source = source
        self._indices = indices
        self._made: dict[tuple[int, int], Batch] = {}

    def __len__(self) -> int:
        return len(self._indices)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """See `plstm.training.steps.Split`; at most the training's `batch_size` graphs a batch."""
        size = min(batch_size, self._source.batch_size)
        for start in range(0, len(self), size):
            if (size, start) not in self._made:
                self._made[size, start] = self._source.batch(self._indices[start : start + size])
            yield self._made[size, start]


class GraphTask(Task):
    """Batches are those of `GraphBatches`, padding included."""

    data_schema = GraphData
    unused_keys = ("workers",)
    inputs = "graphs"
    splits = ("train", "val", "test")
    unit = "graphs"

    @classmethod
    def check(cls, config: Config) -> None:
        data = config.data
        written = {name.replace("_", ""): name for name in SIZES}.get(re.sub("[_-]", "", data.name.upper()), data.name)
        require(
            config,
            ("data.name", data.name == written, f"did you mean {written}?"),
            ("data.fold", data.fold < data.folds, f"must be from 0 to data.folds - 1, {data.folds - 1}"),
            ("optim.batch_size", config.optim.batch_size <= MAX_SIZE, f"must be at most {MAX_SIZE:,}"),
            ("mesh.fsdp", config.mesh.fsdp == 1, "graphs train on one device; leave it at 1"),
            ("init_from", config.init_from is None, "graph models start anew; leave it out"),
        )

    @classmethod
    def name_parts(cls, config: Config) -> tuple[str, ...]:
        return config.data.name, f"f{config.data.fold}"

    def shared_config(self) -> Config:
        config = super().shared_config()
        return replace(config, data=replace(config.data, fold=0))

    @functools.cached_property
    def source(self) -> GraphBatches:
        data = self.config.data
        if (count := jax.device_count()) > 1:
            on_gpu = f": CUDA_VISIBLE_DEVICES=0, or for a table make table-graphs ARGS='--processes {count}'"
            shown = on_gpu if jax.default_backend() == "gpu" else ""
            raise UserError(f"task graphs: trains on one device, not {count}; show it one{shown}")
        return load_batches(data.name, data.root, data.download, data.verify, self.config.optim.batch_size)

    @functools.cached_property
    def fold(self) -> Fold:
        data = self.config.data
        return make_folds(self.source.graphs.labels, data.folds, data.fold_seed)[data.fold]

    @property
    def train_examples(self) -> int:
        return len(self.fold.train)

    @property
    def steps_per_epoch(self) -> int:
        """All graphs, so the last batch may not be full."""
        return math.ceil(self.train_examples / self.config.optim.batch_size)

    @functools.cached_property
    def _known(self) -> Sizes:
        """Known of the paper's sets without reading them, unless another form of them is taken."""
        known = SIZES.get(self.config.data.name) if self.config.data.verify else None
        return known or self.source.graphs.sizes

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"features": self._known.features, "classes": len(self._known.classes)}

    @property
    def class_names(self) -> Sequence[str]:
        return self._known.classes

    def describe_data(self) -> str:
        data = self.config.data
        fold = self.fold
        parts = f"{len(fold.train):,} graphs train, {len(fold.val):,} validate, {len(fold.test):,} test"
        return f"{data.name}, fold {data.fold} of 0 to {data.folds - 1}: {parts}"

    def split(self, name: str) -> GraphSplit:
        return GraphSplit(self.source, getattr(self.fold, name))

    def batches(self, layout: Layout) -> StreamBatches:
        return StreamBatches(self.draw_batch, layout.place_rows)

    def draw_batch(self, step: int) -> Batch:
        """The training graphs of a step: all once an epoch, in the order of `data.loading.epoch_order`."""
        epoch, position = divmod(step, self.steps_per_epoch)
        size = self.source.batch_size
        order = epoch_order(self.config.seed, epoch, self.train_examples)[position * size : (position + 1) * size]
        return self.source.batch(self.fold.train[order])

    def keeps_curve(self, split: str, metric: str) -> bool:
        """Only the training loss and the other splits' accuracy, as there are many small runs."""
        return metric == ("loss" if split == "train" else "accuracy")

    def logits(self, model: nnx.Module, batch: Batch) -> jax.Array:
        return model(batch)  # batch norms take their running statistics

    def metrics(self, model: nnx.Module, batch: Batch) -> Metrics:
        """Also the share of units above zero where the readout has a ReLU: at 0 all graphs get the same logits."""
        if not isinstance(model, ReadoutModel):
            return super().metrics(model, batch)
        units = model.units(batch)
        mask = batch["mask"]
        metrics = classification_metrics(model.readout.out(units), batch["label"], mask)
        active = jnp.sum(jnp.mean(units > 0, axis=-1) * mask)
        return metrics | {"active_units": (active, metrics["loss"][1])}

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        metrics = classification_metrics(model(batch, key=key), batch["label"], batch["mask"])
        return mean_loss(metrics), metrics
