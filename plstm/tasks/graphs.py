"""Graph classification on sets of TUDataset, one fold of a cross-validation a run (Section 4.2 and Table 1)."""

import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from data.graphs.tudataset import SIZES, Fold, Sizes, load_tudataset, make_folds
from data.loading import epoch_order
from plstm.errors import UserError, require
from plstm.models.graph import ReadoutModel
from plstm.tasks.base import RunConfig, Task, classification_metrics
from plstm.tasks.graph_batches import GraphBatches
from plstm.training.meshes import Layout
from plstm.training.steps import Batch, Metrics


@dataclass
class GraphData:
    """Which graphs, and which of them train, validate and test."""

    name: str = "MUTAG"  # PTC_FM, PROTEINS, NCI1, or any other set of TUDataset
    folds: int = 10  # stratified; each is the test set of one run, and 1 / (folds - 1) of the rest validates
    fold: int = 0  # which of them tests, from 0
    fold_seed: int = 42  # of the split into folds
    root: str | None = None  # folder of all data sets; null: $PLSTM_DATA or ~/.cache/plstm/data
    download: bool = True  # fetch a missing set; otherwise missing data is an error
    verify: bool = True  # compare the set with the one that the results here come from, where it is a known one


@functools.lru_cache(maxsize=2)
def load_batches(name: str, root: str | None, download: bool, verify: bool, batch_size: int) -> GraphBatches:
    """A set with its DAGs, read once for all folds of this process. Errors: see `load_tudataset`."""
    return GraphBatches(load_tudataset(name, root, download=download, verify=verify), batch_size)


class GraphSplit:
    """Some graphs of a set to evaluate on; their batches are made once."""

    def __init__(self, source: GraphBatches, indices: np.ndarray):
        self._source, self._indices = source, indices
        self._made: dict[tuple[int, int], Batch] = {}

    def __len__(self) -> int:
        return len(self._indices)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """See `plstm.training.evaluation.Split`; at most the training's `batch_size` graphs a batch."""
        size = min(batch_size, self._source.batch_size)
        for start in range(0, len(self), size):
            if (size, start) not in self._made:
                self._made[size, start] = self._source.batch(self._indices[start : start + size])
            yield self._made[size, start]

    def first(self, batch_size: int) -> Batch:
        return next(self.batches(batch_size))


@dataclass(eq=False, repr=False)
class GraphTrainBatches:
    """All training graphs once an epoch in the order of `data.loading.epoch_order`; the last batch may not be full."""

    source: GraphBatches
    indices: np.ndarray
    seed: int
    place: Callable[[Batch], Batch]

    def from_step(self, step: int) -> Iterator[Batch]:
        size = self.source.batch_size
        epoch, position = divmod(step, math.ceil(len(self.indices) / size))
        while True:
            order = self.indices[epoch_order(self.seed, epoch, len(self.indices))][position * size :]
            yield from map(self.place, self.source.batches(order))
            epoch, position = epoch + 1, 0


class GraphTask(Task):
    """Batches are those of `plstm.tasks.graph_batches`, padding included."""

    data_schema = GraphData
    inputs = "graphs"
    splits = ("train", "val", "test")
    unit = "graphs"
    uncompiled = {**Task.uncompiled, "data.fold": 0}

    @classmethod
    def check(cls, config: RunConfig) -> None:
        data = config.data
        is_name = re.fullmatch(r"[A-Za-z0-9_-]+", data.name) is not None  # it becomes part of paths and of an address
        require(
            config,
            ("data.name", is_name, "a set of TUDataset is named by letters, digits, _ and -"),
            ("data.folds", data.folds >= 3, "must be at least 3, to train, to validate and to test"),
            ("data.fold", 0 <= data.fold < data.folds, f"must be from 0 to data.folds - 1, {data.folds - 1}"),
            ("mesh.fsdp", config.mesh.fsdp == 1, "graphs train on one device; leave it at 1"),
            ("init_from", config.init_from is None, "graph models start anew; leave it out"),
            ("optim.label_smoothing", config.optim.label_smoothing == 0, "graphs have none; leave it at 0"),
        )

    @classmethod
    def name_parts(cls, config: RunConfig) -> tuple[str, ...]:
        return config.data.name, f"f{config.data.fold}"

    @functools.cached_property
    def source(self) -> GraphBatches:
        """The whole set."""
        data = self.config.data
        if jax.device_count() > 1:
            raise UserError(f"task graphs: trains on one device, not {jax.device_count()}; show it one")
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
    def sizes(self) -> dict[str, int]:
        return {"features": self._known.features, "classes": len(self._known.classes)}

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._known.classes

    def describe_data(self) -> str:
        data, fold = self.config.data, self.fold
        parts = f"{len(fold.train):,} graphs train, {len(fold.val):,} validate, {len(fold.test):,} test"
        return f"{data.name}, fold {data.fold} of 0 to {data.folds - 1}: {parts}"

    def split(self, name: str) -> GraphSplit:
        return GraphSplit(self.source, getattr(self.fold, name))

    def batches(self, layout: Layout) -> GraphTrainBatches:
        return GraphTrainBatches(self.source, self.fold.train, self.config.seed, layout.place_rows)

    def keeps_curve(self, split: str, metric: str) -> bool:
        """Three curves of each of many small runs."""
        return metric == ("loss" if split == "train" else "accuracy")

    def logits(self, model: nnx.Module, batch: Batch) -> jax.Array:
        return model(batch)  # batch norms take their running statistics

    def metrics(self, model: nnx.Module, batch: Batch) -> Metrics:
        """Also the share of units above zero where the readout has a ReLU: at 0 all graphs get the same logits."""
        if not isinstance(model, ReadoutModel):
            return super().metrics(model, batch)
        units, mask = model.units(batch), batch["mask"]
        metrics = classification_metrics(model.readout.out(units), batch["label"], mask)
        active = jnp.sum(jnp.mean(units > 0, axis=-1) * mask)
        return metrics | {"active_units": (active, metrics["loss"][1])}

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Mean cross entropy (nats) of the real graphs."""
        metrics = classification_metrics(model(batch, key=key), batch["label"], batch["mask"])
        total, count = metrics["loss"]
        return total / count, metrics
