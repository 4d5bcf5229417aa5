"""Graph classification on sets of TUDataset, one fold of a cross-validation a run (Section 4.3 and Table 1)."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from data.graphs.tudataset import SIZES, Fold, Sizes, load_tudataset, make_folds
from data.loading import epoch_order
from plstm.errors import UserError
from plstm.models.graph import GraphConfig, build_graph_model
from plstm.tasks.base import Batch, Task
from plstm.tasks.graph_batches import GraphBatches

if TYPE_CHECKING:
    from plstm.config import Config
    from plstm.training.meshes import Layout

# Where runs that compile the same programs may differ; see `Task.program`.
ALIKE = ("seed", "experiment", "loop")


@dataclass
class GraphData:
    """Which graphs, and which of them train, validate and test."""

    name: str = "MUTAG"  # PTC_FM, PROTEINS, NCI1, or any other set of TUDataset
    folds: int = 10  # stratified; each is the test set of one run, and 1 / (folds - 1) of the rest validates
    fold: int = 0  # of them, from 0
    fold_seed: int = 42  # of the split alone
    root: str | None = None  # where data sets live; none: $PLSTM_DATA or ~/.cache/plstm/data
    download: bool = True  # fetch a missing set; otherwise missing data is an error
    verify: bool = True  # compare the set with the one that the results here come from, where that is known


@functools.lru_cache(maxsize=2)
def prepare(name: str, root: str | None, download: bool, verify: bool, batch_size: int) -> GraphBatches:
    """A set, read and made ready once for all runs of this process. Errors: see `load_tudataset`."""
    return GraphBatches(load_tudataset(name, root, download=download, verify=verify), batch_size)


class GraphSplit:
    """Some graphs of a set to evaluate on; their batches are made once."""

    def __init__(self, source: GraphBatches, indices: np.ndarray):
        self._source, self._indices = source, indices
        self._made: dict[int, list[Batch]] = {}

    def __len__(self) -> int:
        return len(self._indices)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """See `plstm.tasks.base.Split`; rows are those of the training's batches, at most `batch_size` graphs."""
        size = min(batch_size, self._source.batch_size)
        made = self._made.setdefault(size, [])
        for n, start in enumerate(range(0, len(self), size)):
            if n == len(made):
                made.append(self._source.batch(self._indices[start : start + size]))
            yield made[n]

    def first(self, batch_size: int) -> Batch:
        """The first of `batches`."""
        return next(self.batches(batch_size))


class GraphTrainBatches:
    """All training graphs once an epoch in an order drawn from seed and epoch; the last batch may not be full."""

    def __init__(self, source: GraphBatches, indices: np.ndarray, seed: int, place):
        self._source, self._indices, self._seed, self._place = source, indices, seed, place

    def from_step(self, step: int) -> Iterator[Batch]:
        """See `plstm.tasks.base.Batches`."""
        epoch, position = divmod(step, math.ceil(len(self._indices) / self._source.batch_size))
        while True:
            order = self._indices[epoch_order(self._seed, epoch, len(self._indices))]
            for batch in self._source.batches(order[position * self._source.batch_size :]):
                yield self._place(batch)
            epoch, position = epoch + 1, 0


class GraphTask(Task):
    """Batches are those of `plstm.tasks.graph_batches`, padding included."""

    data_schema = GraphData
    model_schema = GraphConfig
    splits = ("train", "val", "test")
    noun = "graphs"
    draws = False

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError naming the key where values do not fit together."""
        data = config.data
        if not re.fullmatch(r"[A-Za-z0-9_-]+", data.name):  # it becomes part of paths and of an address
            raise UserError(f"data.name={data.name}: a set of TUDataset is named by letters, digits, _ and -")
        if data.folds < 3:
            raise UserError(f"data.folds={data.folds}: must be at least 3, to train, to validate and to test")
        if not 0 <= data.fold < data.folds:
            raise UserError(f"data.fold={data.fold}: must be from 0 to data.folds - 1, {data.folds - 1}")
        if config.mesh.fsdp != 1:
            raise UserError(f"mesh.fsdp={config.mesh.fsdp}: graphs train on one device; leave it at 1")
        if config.init_from is not None:
            raise UserError(f"init_from={config.init_from}: graph models start anew; leave it out")
        if config.optim.label_smoothing:
            raise UserError(f"optim.label_smoothing={config.optim.label_smoothing}: graphs have none; leave it at 0")

    @classmethod
    def program(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Folds and seeds share what is compiled."""
        kept = {key: value for key, value in plain.items() if key not in ALIKE}
        return kept | {"data": {key: value for key, value in plain["data"].items() if key != "fold"}}

    @functools.cached_property
    def source(self) -> GraphBatches:
        """The whole set."""
        data = self.config.data
        if jax.device_count() > 1:
            raise UserError(f"task graphs: trains on one device, not {jax.device_count()}; show it one")
        return prepare(data.name, data.root, data.download, data.verify, self.config.optim.batch_size)

    @functools.cached_property
    def fold(self) -> Fold:
        """The graph numbers of this run's fold."""
        data = self.config.data
        return make_folds(self.source.graphs.labels, data.folds, data.fold_seed)[data.fold]

    @property
    def train_examples(self) -> int:
        """Graphs that train in this fold."""
        return len(self.fold.train)

    @property
    def steps_per_epoch(self) -> int:
        """All graphs, so the last batch may not be full."""
        return math.ceil(self.train_examples / self.config.optim.batch_size)

    @property
    def sizes(self) -> Sizes:
        """Known of the paper's sets without reading them, unless another form of them is taken."""
        known = SIZES.get(self.config.data.name) if self.config.data.verify else None
        return known or self.source.graphs.sizes

    @functools.cached_property
    def features(self) -> int:
        """The numbers of a node."""
        return self.sizes.features

    @functools.cached_property
    def class_names(self) -> tuple[str, ...]:
        """The set's labels, in order."""
        return self.sizes.classes

    def fit(self, class_names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """See `plstm.tasks.base.Task.fit`."""
        self.class_names = tuple(class_names)
        if kernel := shapes.get("encoder.kernel"):
            self.features = kernel[0]

    def describe_data(self) -> str:
        """Name, fold and numbers."""
        data, fold = self.config.data, self.fold
        parts = f"{len(fold.train):,} graphs train, {len(fold.val):,} validate, {len(fold.test):,} test"
        return f"{data.name}, fold {data.fold} of 0 to {data.folds - 1}: {parts}"

    def build_model(self, key: jax.Array | int) -> nnx.Module:
        """pLSTM or one of the graph neural networks."""
        return build_graph_model(self.config.model, self.features, len(self.class_names), key)

    def split(self, name: str) -> GraphSplit:
        """The graphs of one part of the fold."""
        return GraphSplit(self.source, getattr(self.fold, name))

    def batches(self, key: jax.Array, layout: Layout) -> GraphTrainBatches:
        """See `GraphTrainBatches`."""
        return GraphTrainBatches(self.source, self.fold.train, self.config.seed, layout.place_rows)

    def keeps_curve(self, split: str, metric: str) -> bool:
        """Three curves of each of many small runs."""
        return metric == ("loss" if split == "train" else "accuracy")

    def logits(self, model: nnx.Module, batch: Batch) -> jax.Array:
        """float32 [graphs, classes]; batch norms take their running statistics."""
        return model(batch)

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean cross entropy (nats) and accuracy of the real graphs; nothing is drawn."""
        logits, mask = model(batch, train=True), batch["mask"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        hits = logits.argmax(-1) == batch["label"]
        return jnp.sum(losses * mask) / jnp.sum(mask), jnp.sum(hits & mask) / jnp.sum(mask)
