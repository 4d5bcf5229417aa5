"""Batches for training, from a split held on the device or streamed by grain; both give the same examples in one order.

The order is a function of the seed and the step alone: epoch e visits the images in the order of
`jax.random.permutation(fold_in(key, e))`, and drops the remainder that fills no batch. So a resumed run needs no
iterator state, and the number of reading processes changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.packed import PackedSplit, pack
from data.reading import read


@partial(jax.jit, static_argnames=("images", "batch_size"))
def epoch_order(key: jax.Array, epoch: int, images: int, batch_size: int) -> jax.Array:
    """The image numbers of one epoch, int32 [steps an epoch, batch size]."""
    order = jax.random.permutation(jax.random.fold_in(key, epoch), images)
    steps = images // batch_size
    return order[: steps * batch_size].reshape(steps, batch_size)


class DeviceBatches:
    """A whole packed split on the device, shuffled there by index."""

    def __init__(self, split: PackedSplit, batch_size: int, key: jax.Array, put=jnp.asarray, layout=None):
        """`put` places an array on the device, or a copy on each; `layout` is the sharding of the batches."""
        self._bits, self._labels = put(np.asarray(split.bits)), put(split.labels.astype(np.int32))
        self._batch_size, self._key = batch_size, key
        self._gather = jax.jit(_gather, out_shardings=layout)

    def from_step(self, step: int) -> Iterator[dict[str, jax.Array]]:
        """Endless batches {"image": packed bits, "label": int32 [batch]}; `step` 0 is the first of the training."""
        images = len(self._labels)
        epoch, position = divmod(step, images // self._batch_size)
        while True:
            order = epoch_order(self._key, epoch, images, self._batch_size)
            for n in range(position, len(order)):
                yield self._gather(self._bits, self._labels, order, n)
            epoch, position = epoch + 1, 0


class StreamedBatches:
    """Batches read by grain from a random-access source as training goes, for sets that do not fit on the device."""

    def __init__(
        self,
        source: Sequence[dict[str, Any]],
        batch_size: int,
        key: jax.Array,
        workers: int = 0,
        put=jnp.asarray,
        process_index: int = 0,
        process_count: int = 1,
    ):
        """Nothing is read yet.

        Args:
          source: `source[i]` has "image" uint8 [S, S, 1] of 0 and 255, and "label".
          batch_size: over all processes, which must divide it; this one reads its rows only, the process_index-th part.
          key: of the order. workers: processes that read (0: this one).
          put: places an array of this process's rows on the device or devices.
        """
        self._source, self._batch_size, self._key, self._workers, self._put = source, batch_size, key, workers, put
        self._process = process_index, process_count

    def from_step(self, step: int) -> Iterator[dict[str, jax.Array]]:
        """As `DeviceBatches.from_step`."""
        import grain

        ordered = _OrderedSource(self._source, self._batch_size, self._key, *self._process)
        rows = ordered.rows
        dataset = grain.MapDataset.source(ordered)[step * rows :].batch(rows)
        for batch in read(dataset, self._workers, threads=os.cpu_count() or 1):
            yield {name: self._put(value) for name, value in batch.items()}


class _OrderedSource:
    """The examples in the order of training, as far as anyone trains: item n is the n-th that this process draws.

    Many threads read at once, and not all of them in one epoch, so it has no state of its own.
    """

    EPOCHS = 100_000

    def __init__(self, source, batch_size: int, key: jax.Array, process_index: int, process_count: int):
        self._source, self._batch_size = source, batch_size
        self.rows = batch_size // process_count
        self._first = process_index * self.rows
        self._key_data = tuple(jax.random.key_data(key).tolist())

    def __len__(self) -> int:
        return self.EPOCHS * (len(self._source) // self._batch_size) * self.rows

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        images = len(self._source)
        step, row = divmod(int(index), self.rows)
        epoch, step = divmod(step, images // self._batch_size)
        position = step * self._batch_size + self._first + row
        order = _order_on_host(self._key_data, epoch, images, self._batch_size)
        example = self._source[int(order[position])]
        return {"image": pack(example["image"][..., 0]), "label": np.int32(example["label"])}


@lru_cache(maxsize=4)
def _order_on_host(key_data: tuple[int, ...], epoch: int, images: int, batch_size: int) -> np.ndarray:
    key = jax.random.wrap_key_data(jnp.array(key_data, jnp.uint32))
    return np.asarray(epoch_order(key, epoch, images, batch_size)).reshape(-1)


def _gather(bits, labels, order, n):
    return {"image": bits[order[n]], "label": labels[order[n]]}
