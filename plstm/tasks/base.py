"""What the training loop asks of a task; it knows nothing else of data, models and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax
from flax import nnx

from plstm.errors import UserError

if TYPE_CHECKING:
    from plstm.config import Config
    from plstm.tasks.vision import Preprocessing
    from plstm.training.meshes import Layout

Batch = dict[str, jax.Array]


class Batches(Protocol):
    """Training examples in an order that depends on the seed and the step alone."""

    def from_step(self, step: int) -> Iterator[Batch]:
        """Endless batches, placed on the devices; `step` 0 is the first of the training."""


class Split(Protocol):
    """One split to evaluate on."""

    def __len__(self) -> int:
        """Its examples."""

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Every example exactly once, in order: at least "label" int32 [rows] and "mask" bool [rows], False at the
        padding that fills the last batch.

        `batch_size` is over all processes, and rows are this one's part of it: all of them in a run of one process.
        """

    def first(self, batch_size: int) -> Batch:
        """The first of `batches` alone."""


class Task:
    """A run's data, model and loss, for one config."""

    data_schema: ClassVar[type]  # the dataclasses of the config's `data` and `model`
    model_schema: ClassVar[type]
    splits: ClassVar[tuple[str, ...]]  # names
    noun: ClassVar[str] = "images"  # what an example is called, many of them
    draws: ClassVar[bool] = True  # whether the loss may draw from its `key`
    class_names: Sequence[str] = ()  # what the logits stand for, in order; none where they stand for no classes
    preprocessing: Preprocessing | None = None  # from a picture to the model's input; none where it takes no pictures
    losses: ClassVar[tuple[str, ...]] = ("cross_entropy",)  # what `optim.loss` can be
    augments: ClassVar[bool] = False  # whether training examples are augmented, as `augment` says

    def __init__(self, config: Config):
        self.config = config

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError naming the key where the task's part of a config does not fit together."""
        raise NotImplementedError

    @classmethod
    def program(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """The part of a run's identity that runs must share to share what is compiled; all of it, unless a task knows
        better.
        """
        return plain

    @property
    def train_examples(self) -> int:
        """Examples of one epoch."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch; all are full, and the examples left over are left out."""
        return self.train_examples // self.config.optim.batch_size

    def describe_data(self) -> str:
        """The banner's line on the data."""
        raise NotImplementedError

    def flops(self) -> int | None:
        """Operations of one example's forward pass, None where nobody counts them."""
        return None

    def fit(self, class_names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Takes from trained weights, the shapes of tensors by name, what a model's sizes follow from otherwise only
        with the data at hand.
        """

    def build_model(self, key: jax.Array | int) -> nnx.Module:
        """The model, its parameters drawn from `key`."""
        raise NotImplementedError

    def split(self, name: str) -> Split:
        """A whole split to evaluate on."""
        raise NotImplementedError

    def folder(self, path: str, max_corrupt: float | None = None) -> Split:
        """The pictures in the class folders of a folder, to evaluate on, of which a share may be undecodable."""
        raise UserError(f"data.folder={path}: task {self.config.task} classifies no pictures; leave it out")

    def batches(self, key: jax.Array, layout: Layout) -> Batches:
        """The training examples, in the order that `key` gives.

        `layout` places them on the devices: `place_rows` what this process read as its part of a batch,
        `place_copies` a data set that every process has whole.
        """
        raise NotImplementedError

    def logits(self, model: nnx.Module, batch: Batch) -> jax.Array:
        """A deterministic pass: float32 [batch, classes]. Traced."""
        raise NotImplementedError

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A training pass: mean loss and accuracy of a batch, float32 scalars. Traced."""
        raise NotImplementedError

    def keeps_curve(self, split: str, metric: str) -> bool:
        """Whether the curve of a metric enters the results."""
        return metric in ("loss", "accuracy")

    def statistics(self, model: nnx.Module, batch: Batch) -> dict[str, jax.Array]:
        """Scalars to log at each evaluation that look inside the model. Traced."""
        return {}

    def draw(
        self, model: nnx.Module, predict: Callable, splits: Mapping[str, Split], folder: Path, name: str
    ) -> list[Path]:
        """Writes pictures of a trained model into `folder`; returns the .png files."""
        return []
