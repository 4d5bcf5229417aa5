"""The fifteen formal languages of `data.languages`: train on short rows, test on rows up to twelve times as long.

A batch is a dictionary of NumPy arrays, all rows of one length, padded to one of a few widths, so that few programs are
compiled:

    tokens int8 [rows, N]     a row's T tokens, then blanks, in whose L steps the answer is due
    length, steps int32 [rows]  T and T + L
    label int8 [rows, A]      the answer; only its first L places are real
    counted bool [rows, A]    the places that accuracy counts
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
from annotated_types import Ge, Interval, Le, MinLen
from flax import nnx
from numpy.random import RandomState

from data.languages import LANGUAGES, TERMINATOR, draw
from plstm.config import Config
from plstm.errors import require
from plstm.limits import Count, Natural, OneOf
from plstm.nn.recurrent import Rows
from plstm.tasks.base import MachineData, mean_loss
from plstm.tasks.streams import StreamTask, by_length, sums
from plstm.training.steps import Batch, Metrics

WIDTHS = 4  # evaluation pads rows to a quarter, a half, ... of the longest: so many compiled programs
VAL_LENGTHS = 8


@dataclass
class LanguageData(MachineData):
    name: Annotated[str, OneOf(*LANGUAGES)] = "parity_check"  # see data.languages
    # Training lengths are uniform from 1 to this; `val` has eight of them.
    max_length: Annotated[int, Ge(VAL_LENGTHS)] = 40
    longest: Annotated[int, Le(2048)] = 500  # `test` has the lengths above max_length up to this one,
    every: Count = 1  # every so many-th, and the longest
    # The lengths of `ext`.
    ext_lengths: Annotated[list[Count], MinLen(1)] = field(default_factory=lambda: [41, 64, 100, 200, 300, 400, 500])
    eval_rows: Annotated[int, Interval(ge=1, le=2**20)] = 512  # of each length
    eval_seed: Natural = 1001  # of all rows to evaluate on, the same for all runs


class LanguageTask(StreamTask):
    """Accuracy of a split is the mean over its lengths, each weighing the same, of the mean over batches of 64 rows."""

    data_schema = LanguageData
    inputs = "languages"
    splits = ("val", "ext", "test")

    @classmethod
    def check(cls, config: Config) -> None:
        data = config.data
        size = min(config.optim.batch_size, cls.batch_rows)  # batches of other sizes would weigh the same
        whole = data.eval_rows < size or data.eval_rows % size == 0
        fit = max(data.ext_lengths) <= data.longest
        require(
            config,
            ("data.longest", data.max_length < data.longest, f"must be above data.max_length={data.max_length}"),
            ("data.ext_lengths", fit, f"must be at most data.longest={data.longest}"),
            ("data.ext_lengths", len(data.ext_lengths) == len({*data.ext_lengths}), "has a length twice"),
            ("data.eval_rows", whole, f"must be a multiple of {size}, the rows of a batch, or less"),
        )

    def __init__(self, config: Config):
        super().__init__(config)
        self.language = LANGUAGES[config.data.name]

    # ------------------------------------------------------------------ data
    @property
    def sizes(self) -> Mapping[str, int]:
        return {"vocabulary": self.language.vocabulary, "classes": self.language.classes}

    def describe_data(self) -> str:
        data = self.config.data
        return f"{data.name}: lengths 1 to {data.max_length} train, {data.max_length + 1} to {data.longest} test"

    def lengths(self, split: str) -> Sequence[int]:
        data = self.config.data
        if split == "val":
            return [round(data.max_length * (n + 1) / VAL_LENGTHS) for n in range(VAL_LENGTHS)]
        if split == "ext":
            return data.ext_lengths
        return sorted({*range(data.max_length + 1, data.longest, data.every), data.longest})

    @functools.cached_property
    def groups(self) -> int:
        """The most lengths that a split has."""
        return max(len(self.lengths(split)) for split in self.splits)

    def draw_batch(self, step: int) -> Batch:
        rng = self.train_rng(step)
        data = self.config.data
        length = rng.randint(1, data.max_length + 1)
        half = -(-data.max_length // 2)
        return self._batch(rng, length, self.config.optim.batch_size, half if length <= half else data.max_length)

    def draw_at(self, split: str, length: int) -> Batch:
        data = self.config.data
        rng = self.eval_rng(split, length)
        parts = [-(-data.longest * (n + 1) // WIDTHS) for n in range(WIDTHS)]
        widest = data.max_length if split == "val" else next(part for part in parts if part >= length)
        return self._batch(rng, length, data.eval_rows, widest)

    def _batch(self, rng: RandomState, length: int, rows: int, widest: int) -> Batch:
        """Rows of a length, padded to what rows of the length `widest` need."""
        tokens, label = draw(self.language.name, rng, length, rows)
        own = tokens.shape[1]
        answers = label.shape[1]
        most = self.language.answer_length(widest)
        blank = self.language.vocabulary
        counted = np.ones(label.shape, bool)
        if self.language.terminated:
            ended = np.cumsum(label == TERMINATOR, axis=1)
            counted = (ended == 0) | ((ended == 1) & (label == TERMINATOR))
        return {
            "tokens": np.pad(tokens, ((0, 0), (0, widest + most - own)), constant_values=blank),
            "length": np.full(rows, own, np.int32),
            "steps": np.full(rows, own + answers, np.int32),
            "label": np.pad(label, ((0, 0), (0, most - answers))),
            "counted": np.pad(counted, ((0, 0), (0, most - answers))),
        }

    # ------------------------------------------------------------------ model
    def logits(self, model: nnx.Module, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """float32 [rows, A, classes]."""
        rows = Rows(batch["tokens"].astype(jnp.int32), batch["length"], batch["steps"])
        return model(rows, batch["label"].shape[1], key=key)

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The loss counts all L places of the answer, also those that accuracy leaves out."""
        metrics = answer_metrics(self.logits(model, batch, key), batch)
        return mean_loss(metrics), metrics

    def metrics(self, model: nnx.Module, batch: Batch) -> Metrics:
        """Means over the batch, which count once each, so that no length weighs more than another."""
        found = answer_metrics(self.logits(model, batch), batch)
        found = {name: (total / count, jnp.float32(1)) for name, (total, count) in found.items()}
        return found | {"accuracy@": by_length(found["accuracy"], batch, self.groups)}


def answer_metrics(logits: jax.Array, batch: Batch) -> Metrics:
    """Loss (nats) and accuracy over the places of the answers in logits [rows, A, classes]."""
    due = jnp.arange(logits.shape[1]) < (batch["steps"] - batch["length"])[:, None]
    due &= batch.get("mask", jnp.ones(len(due), bool))[:, None]
    counted = due & batch["counted"]
    labels = batch["label"].astype(jnp.int32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    hits = logits.argmax(-1) == labels
    return sums({"loss": (losses, due), "accuracy": (hits, counted)})
