"""Counting and state tracking, the tasks of `data.tokens`: train at one length, test there and at longer ones.

A batch is a dictionary of NumPy arrays: tokens, label int8 [rows, T], label -1 where a token has none. Training takes
all labels, or the last of each row; accuracy is that of the last labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from annotated_types import Interval
from flax import nnx
from numpy.random import RandomState

from data.tokens import TASKS as TOKEN_TASKS
from plstm.config import Config
from plstm.errors import require
from plstm.limits import Natural, OneOf
from plstm.tasks.base import MachineData, mean_loss
from plstm.tasks.streams import StreamTask, by_length, sums
from plstm.training.steps import Batch, Metrics

FACTORS = (1, 4, 16)  # lengths of `test`, over that of training
LONGEST = 2**15


@dataclass
class TokenData(MachineData):
    name: Annotated[str, OneOf(*TOKEN_TASKS)] = "parity"  # see data.tokens
    length: int = 128  # of training rows; `test` has it 1, 4 and 16 times
    supervision: Annotated[str, OneOf("all", "last")] = "all"  # the labels of each row that training learns from
    eval_rows: Annotated[int, Interval(ge=1, le=2**20)] = 512  # of each length
    eval_seed: Natural = 1001  # of all rows to evaluate on, the same for all runs


class TokenTask(StreamTask):
    """`accuracy` is that at the last label of each row, `accuracy_all` at all labels; "rescaled" is 0 at chance."""

    data_schema = TokenData
    inputs = "tokens"
    splits = ("val", "test")
    batch_rows = 16  # of an evaluation, up to 16 times as long as those of the training

    @classmethod
    def check(cls, config: Config) -> None:
        data = config.data
        shortest = TOKEN_TASKS[data.name].shortest
        longest = LONGEST // FACTORS[-1]
        fits = f"must be from {shortest}, the shortest row of {data.name}, to {longest}"
        require(config, ("data.length", shortest <= data.length <= longest, fits))

    def __init__(self, config: Config):
        super().__init__(config)
        self.task = TOKEN_TASKS[config.data.name]

    # ------------------------------------------------------------------ data
    @property
    def sizes(self) -> Mapping[str, int]:
        return {"vocabulary": self.task.vocabulary, "classes": self.task.classes}

    def describe_data(self) -> str:
        lengths = ", ".join(map(str, self.lengths("test")))
        return f"{self.task.name}: rows of {self.config.data.length} tokens train; of {lengths} test"

    def lengths(self, split: str) -> Sequence[int]:
        length = self.config.data.length
        return [factor * length for factor in FACTORS] if split == "test" else [length]

    def draw_batch(self, step: int) -> Batch:
        rng = self.train_rng(step)
        return self._batch(rng, self.config.data.length, self.config.optim.batch_size)

    def draw_at(self, split: str, length: int) -> Batch:
        rng = self.eval_rng(split, length)
        return self._batch(rng, length, self.config.data.eval_rows)

    def _batch(self, rng: RandomState, length: int, rows: int) -> Batch:
        tokens = self.task.draw(rng, length, rows)
        return {"tokens": tokens, "label": self.task.answer(tokens)}

    # ------------------------------------------------------------------ model
    def logits(self, model: nnx.Module, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """float32 [rows, T, classes]."""
        return model(batch["tokens"].astype(jnp.int32), key=key)

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        metrics = token_metrics(self.logits(model, batch, key), batch, self.config.data.supervision)
        return mean_loss(metrics), metrics

    def metrics(self, model: nnx.Module, batch: Batch) -> Metrics:
        found = token_metrics(self.logits(model, batch), batch, self.config.data.supervision)
        hits, count = found["accuracy"]
        chance = self.task.chance
        found["rescaled"] = (hits - chance * count) / (1 - chance), count
        by = {name: by_length(found[name], batch, len(FACTORS)) for name in ("accuracy", "accuracy_all", "rescaled")}
        return found | {f"{name}@": pair for name, pair in by.items()}


def token_metrics(logits: jax.Array, batch: Batch, supervision: str) -> Metrics:
    """Loss (nats) at the labels that training takes, accuracy at the last labels and at all; of [rows, T, classes]."""
    labels = batch["label"].astype(jnp.int32)
    known = (labels >= 0) & batch.get("mask", jnp.ones(len(labels), bool))[:, None]
    last = known & (jnp.cumsum(known[:, ::-1], axis=1)[:, ::-1] == 1)
    taken = known if supervision == "all" else last
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    hits = logits.argmax(-1) == labels
    return sums({"loss": (losses, taken), "accuracy": (hits, last), "accuracy_all": (hits, known)})
