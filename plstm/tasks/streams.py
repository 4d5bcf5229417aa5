"""Tasks whose rows are drawn, not read: a schedule in steps, and evaluation at several lengths.

    class MyTask(StreamTask):
        def draw_batch(self, step): ...                     # a training batch, from config.seed and the step alone
        def lengths(self, split): ...                       # e.g. (32, 128, 512)
        def draw_at(self, split, length): ...               # all evaluation rows of a length

The schedule is in steps: an "epoch" is STEPS_PER_EPOCH of them, so `optim.epochs: 5` means 5,000 steps.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import RandomState

from plstm.config import Config
from plstm.tasks.base import Task
from plstm.training.meshes import Layout
from plstm.training.steps import Batch, Metrics, Split

STEPS_PER_EPOCH = 1000


@dataclass
class StreamBatches:
    """Training batches `draw(step)`; nothing else needs to be known to resume."""

    draw: Callable[[int], Batch]
    place: Callable[[Batch], Batch]

    def from_step(self, step: int) -> Iterator[Batch]:
        for number in itertools.count(step):
            yield self.place(own_rows(self.draw(number)))


@dataclass
class LengthSplit(Split):
    """Rows of several lengths to evaluate on; see `plstm.training.steps.Split`.

    draw(length): all `rows` rows, arrays [rows, ...], with a shape for each length, or padded to a few. A batch has
    rows of one length, "mask" and "group", int32 [batch], the place of that length in `lengths`; see `row_batches`.
    """

    draw: Callable[[int], Batch]
    lengths: Sequence[int]
    rows: int  # of each length
    batch_rows: int  # at most so many of them in a batch

    def __len__(self) -> int:
        return len(self.lengths) * self.rows

    def batches(self, batch_size: int) -> Iterator[Batch]:
        for group, length in enumerate(self.lengths):
            rows = self.draw(length) | {"group": np.full(self.rows, group, np.int32)}
            yield from row_batches(rows, min(batch_size, self.batch_rows))


def row_batches(rows: Batch, most: int) -> Iterator[Batch]:
    """This process's rows of batches of at most `most` rows, all padded with zeros to one size, a multiple of the
    devices, and with "mask"."""
    size = -(-most // jax.device_count()) * jax.device_count()
    total = len(next(iter(rows.values())))
    for start in range(0, total, most):
        count = min(most, total - start)
        batch = {name: _pad(value[start : start + count], size) for name, value in rows.items()}
        yield own_rows(batch | {"mask": np.arange(size) < count})


def _pad(array: np.ndarray, rows: int) -> np.ndarray:
    """With zeros along axis 0."""
    return np.pad(array, ((0, rows - len(array)), *((0, 0),) * (array.ndim - 1)))


def own_rows(batch: Batch) -> Batch:
    """This process's rows of a batch that all processes draw alike."""
    processes = jax.process_count()
    return jax.tree.map(lambda x: np.split(x, processes)[jax.process_index()], batch) if processes > 1 else batch


def sums(pairs: Mapping[str, tuple[jax.Array, jax.Array]]) -> Metrics:
    """Of (values, whether they count) the metrics (sum, count)."""
    return {
        name: ((values * counts).sum(dtype=jnp.float32), counts.sum(dtype=jnp.float32))
        for name, (values, counts) in pairs.items()
    }


def by_length(metric: tuple[jax.Array, jax.Array], batch: Batch, groups: int) -> tuple[jax.Array, jax.Array]:
    """A batch's metric (sum, count) as vectors [groups], 0 but at its own length; `evaluate` reports each length."""
    here = (jnp.arange(groups) == batch["group"][0]).astype(jnp.float32)
    return here * metric[0], here * metric[1]


def by_group(total: jax.Array, count: jax.Array, batch: Batch, groups: int) -> tuple[jax.Array, jax.Array]:
    """A metric's sums and counts by row, [rows] each, added up by group: vectors [groups], which `evaluate` reports."""
    of_group = (batch["group"] == jnp.arange(groups)[:, None]).astype(jnp.float32)
    return (of_group * total).sum(1), (of_group * count).sum(1)


def layer_kinds(config: Config) -> str:
    """The kinds of a model's blocks, gated MLPs left out, joined to a name such as gdn_attention."""
    return "_".join(dict.fromkeys(block for block in config.model.blocks if block != "gated_mlp"))


class StreamTask(Task):
    """Subclasses fill in `draw_batch`, and either `split` or `lengths` and `draw_at`; they perhaps set `batch_rows`.
    Their data have a `name` and, unless `split` is theirs, `eval_rows`, of each length, and `eval_seed`."""

    unused_keys: ClassVar[tuple[str, ...]] = ("root", "workers")
    unit = "sequences"
    batch_rows: int = 64  # of an evaluation batch

    @classmethod
    def name_parts(cls, config: Config) -> tuple[str, ...]:
        return (config.data.name,)

    def train_rng(self, step: int) -> RandomState:
        return RandomState((self.config.seed, step))

    def eval_rng(self, split: str, length: int) -> RandomState:
        """A split's place in `splits` is part of its seed, so their order is part of the data."""
        return RandomState((self.config.data.eval_seed, self.splits.index(split), length))

    def draw_batch(self, step: int) -> Batch:
        """The training batch of a step: NumPy arrays [optim.batch_size, ...]."""
        raise NotImplementedError

    def lengths(self, split: str) -> Sequence[int]:
        raise NotImplementedError

    def draw_at(self, split: str, length: int) -> Batch:
        """See `LengthSplit.draw`."""
        raise NotImplementedError

    @property
    def train_examples(self) -> int:
        return STEPS_PER_EPOCH * self.config.optim.batch_size

    def split(self, name: str) -> Split:
        rows = self.config.data.eval_rows
        return LengthSplit(lambda length: self.draw_at(name, length), self.lengths(name), rows, self.batch_rows)

    def batches(self, layout: Layout) -> StreamBatches:
        return StreamBatches(self.draw_batch, layout.place_rows)
