"""What a task gives the training loop: batches, a loss, metrics. The loop knows nothing else of data and models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from plstm.config import Config, LoopConfig
from plstm.errors import UserError
from plstm.limits import Root, Workers
from plstm.models import build_model
from plstm.training.flops import CPU_RATE, forward_flops
from plstm.training.meshes import Layout
from plstm.training.plan import Plan
from plstm.training.steps import Batch, Batches, Metrics, Split


@dataclass
class MachineData:
    """The keys of `data` that configs/local/default.yaml may set; every task takes them, see `Task.unused_keys`."""

    root: Root | None = None  # folder of all data sets; null: $PLSTM_DATA or ~/.cache/plstm/data
    workers: Workers | None = None  # reading processes; null: one a core; 0: threads of this process


class Task:
    """A run's data, loss and metrics, for one config. Subclasses set the class variables and fill in the methods."""

    data_schema: ClassVar[type]  # the dataclass of the config's `data`
    unused_keys: ClassVar[tuple[str, ...]] = ()  # of `MachineData`, those without effect
    inputs: ClassVar[str]  # what a batch holds; model families with the same `inputs` can learn the task
    splits: ClassVar[tuple[str, ...]]  # names
    unit: ClassVar[str] = "images"  # plural name of an example
    primary_metric: ClassVar[str] = "accuracy"  # names the best checkpoint; higher is better
    losses: ClassVar[tuple[str, ...]] = ("cross_entropy",)  # choices of `optim.loss`
    augments: ClassVar[bool] = False  # whether `augment` applies
    smooths: ClassVar[bool] = False  # whether `optim.label_smoothing` does

    def __init__(self, config: Config):
        self.config = config

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError naming the key where data, model and optimizer do not fit together."""

    @classmethod
    def infer_data(cls, data: Any) -> Mapping[str, Any]:
        """Values of those keys of a config's `data` that follow from the data; data: a Hydra node or `data_schema`."""
        return {}

    @classmethod
    def name_parts(cls, config: Config) -> tuple[str, ...]:
        """What tells the runs of an experiment apart besides the seed; part of a run's name."""
        return ()

    def check_data(self) -> None:
        """Raises UserError where the data are no longer those of the config."""
        data = self.config.data
        for key, value in self.infer_data(data).items():
            if (known := getattr(data, key)) != value:
                source = f"data.path={data.path}" if data.path else f"data.name={data.name}"
                remedy = f"take the data that the run was trained on, or leave out data.{key} if you have set it"
                raise UserError(f"data.{key}={known}: {source} has {value}; {remedy}")

    def shared_config(self) -> Config:
        """The config with defaults for the keys in which runs may differ and still share compiled programs."""
        return replace(self.config, seed=0, experiment="custom", variant=None, loop=LoopConfig())

    def plan(self) -> Plan:
        """The run's steps. Raises UserError where the batch is larger than the data, or the steps too many to count."""
        return Plan.of(self.config, self.train_examples, self.steps_per_epoch, self.unit)

    # ------------------------------------------------------------------ data
    @property
    def train_examples(self) -> int:
        """Of one epoch."""
        raise NotImplementedError

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sizes of the model that only the data know; see `plstm.models.Family`."""
        return {}

    @property
    def class_names(self) -> Sequence[str]:
        """The meaning of the logits, in order; empty where they are no classes."""
        return ()

    @property
    def preprocessing(self) -> Any:
        """From a picture to the model's input; None for a model that takes no pictures."""
        return None

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch; all are full, and the remaining examples are dropped."""
        return self.train_examples // self.config.optim.batch_size

    def describe_data(self) -> str:
        """The banner's line on the data."""
        raise NotImplementedError

    def split(self, name: str) -> Split:
        """A whole split to evaluate on."""
        raise NotImplementedError

    def folder(self, path: str, max_corrupt: float | None) -> Split:
        """The pictures in the class folders of a folder, to evaluate on."""
        raise UserError(f"data.folder={path}: this task classifies no pictures; leave it out")

    def batches(self, layout: Layout) -> Batches:
        """What to train on, placed as `layout` says."""
        raise NotImplementedError

    # ------------------------------------------------------------------ model
    def build_model(self, key: jax.Array | int) -> nnx.Module:
        """The model of the config, its parameters drawn from `key`."""
        return build_model(self.config.model, key, self.sizes)

    def flops(self) -> int | None:
        """Operations of one example's forward pass; None if not implemented for the model."""
        return forward_flops(self.config.model)

    def cpu_hours(self) -> float:
        """What the training takes on one CPU core, by its operations; 0 where nobody counted them."""
        flops = self.flops()
        if flops is None:
            return 0.0
        plan = self.plan()
        return 3 * flops * plan.steps * plan.examples_per_step / CPU_RATE / 3600

    def logits(self, model: nnx.Module, batch: Batch) -> jax.Array:
        """A deterministic pass: float32 [batch, ...]. Traced."""
        raise NotImplementedError

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """A training pass: the scalar to minimise, and metrics with "loss" among them. Traced."""
        raise NotImplementedError

    def microbatches(self) -> int:
        """In how many parts a CPU takes a batch's gradient; 1 unless the loss is a mean over independent examples."""
        return 1

    def metrics(self, model: nnx.Module, batch: Batch) -> Metrics:
        """A deterministic pass: metrics of the examples where batch["mask"] is True. Traced."""
        return classification_metrics(self.logits(model, batch), batch["label"], batch["mask"])

    def statistics(self, model: nnx.Module, batch: Batch) -> dict[str, jax.Array]:
        """Scalars from inside the model, to log at each evaluation. Traced."""
        return {}

    # ------------------------------------------------------------------ results
    def keeps_curve(self, split: str, metric: str) -> bool:
        """Whether the curve of a metric enters the run's record."""
        return metric in ("loss", self.primary_metric)


def mean_loss(metrics: Metrics) -> jax.Array:
    """The scalar to minimise."""
    total, count = metrics["loss"]
    return total / count


def classification_metrics(
    logits: jax.Array, labels: jax.Array, mask: jax.Array | None = None, losses: jax.Array | None = None
) -> Metrics:
    """Loss (nats) and accuracy of logits [batch, classes] over the examples where `mask` is True, by default all.

    losses [batch]: the cross entropy unless given. A label of -1 (an undecodable image) counts as an error, with the
    loss of a uniform guess.
    """
    mask = jnp.ones(labels.shape, bool) if mask is None else mask
    if losses is None:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        losses = jnp.where(labels < 0, math.log(logits.shape[-1]), losses)
    hits = (logits.argmax(-1) == labels) & mask
    count = mask.sum(dtype=jnp.float32)
    return {"loss": (jnp.sum(losses * mask), count), "accuracy": (hits.sum(dtype=jnp.float32), count)}
