"""What the training loop asks of a task; it knows nothing else of data, models and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax
from flax import nnx

if TYPE_CHECKING:
    from plstm.experiments.config import Config

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
        """Every example exactly once, in order: at least "label" int32 [batch] and "mask" bool [batch], False at the
        padding that fills the last batch."""


class Task:
    """A run's data, model and loss, for one config."""

    data_schema: ClassVar[type]  # the dataclasses of the config's `data` and `model`
    model_schema: ClassVar[type]
    splits: ClassVar[tuple[str, ...]]  # names
    losses: ClassVar[tuple[str, ...]] = ("cross_entropy",)  # what `optim.loss` can be
    augments: ClassVar[bool] = False  # whether training examples are augmented, as `augment` says

    def __init__(self, config: Config):
        self.config = config

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError naming the key where the task's part of a config does not fit together."""
        raise NotImplementedError

    @property
    def train_examples(self) -> int:
        """Examples of one epoch."""
        raise NotImplementedError

    def describe_data(self) -> str:
        """The banner's line on the data."""
        raise NotImplementedError

    def flops(self) -> int | None:
        """Operations of one example's forward pass, None where nobody counts them."""
        return None

    def build_model(self, key: jax.Array | int) -> nnx.Module:
        """The model, its parameters drawn from `key`."""
        raise NotImplementedError

    def split(self, name: str) -> Split:
        """A whole split to evaluate on."""
        raise NotImplementedError

    def batches(self, key: jax.Array, put: Callable[[Any], Any]) -> Batches:
        """The training examples, in the order that `key` gives; `put` places arrays on the devices."""
        raise NotImplementedError

    def logits(self, model: nnx.Module, batch: Batch) -> jax.Array:
        """A deterministic pass: float32 [batch, classes]. Traced."""
        raise NotImplementedError

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A training pass: mean loss and accuracy of a batch, float32 scalars. Traced."""
        raise NotImplementedError

    def statistics(self, model: nnx.Module, batch: Batch) -> dict[str, jax.Array]:
        """Scalars to log at each evaluation that look inside the model. Traced."""
        return {}

    def draw(
        self, model: nnx.Module, predict: Callable, splits: Mapping[str, Split], folder: Path, name: str
    ) -> list[Path]:
        """Writes pictures of a trained model into `folder`; returns the .png files."""
        return []
