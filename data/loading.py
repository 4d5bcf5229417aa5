"""Batches for training, from a split held on the device or streamed by grain; both give the same examples in one order.

The order is a function of the seed and the step alone: epoch e visits the images in the order of
`jax.random.permutation(fold_in(key, e))`, and drops the remainder that fills no batch. So a resumed run needs no
iterator state, and the number of reading processes changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.packed import PackedSplit, pack


@partial(jax.jit, static_argnames=("images", "batch_size"))
def epoch_order(key: jax.Array, epoch: int, images: int, batch_size: int) -> jax.Array:
    """The image numbers of one epoch, int32 [steps an epoch, batch size]."""
    order = jax.random.permutation(jax.random.fold_in(key, epoch), images)
    steps = images // batch_size
    return order[: steps * batch_size].reshape(steps, batch_size)


class DeviceBatches:
    """A whole packed split on the device, shuffled there by index."""

    def __init__(self, split: PackedSplit, batch_size: int, key: jax.Array, put=jnp.asarray):
        """`put` places an array on the device or devices."""
        self._bits, self._labels = put(np.asarray(split.bits)), put(split.labels.astype(np.int32))
        self._batch_size, self._key = batch_size, key

    def from_step(self, step: int) -> Iterator[dict[str, jax.Array]]:
        """Endless batches {"image": packed bits, "label": int32 [batch]}; `step` 0 is the first of the training."""
        images = len(self._labels)
        epoch, position = divmod(step, images // self._batch_size)
        while True:
            order = epoch_order(self._key, epoch, images, self._batch_size)
            for n in range(position, len(order)):
                yield _gather(self._bits, self._labels, order, n)
            epoch, position = epoch + 1, 0


class StreamedBatches:
    """Batches read by grain from a random-access source as training goes, for sets that do not fit on the device."""

    def __init__(
        self, source: Sequence[dict[str, Any]], batch_size: int, key: jax.Array, workers: int = 0, put=jnp.asarray
    ):
        """`source[i]` has "image" uint8 [S, S, 1] of 0 and 255, and "label"; `workers` processes read (0: this one)."""
        self._source, self._batch_size, self._key, self._workers, self._put = source, batch_size, key, workers, put

    def from_step(self, step: int) -> Iterator[dict[str, jax.Array]]:
        """As `DeviceBatches.from_step`."""
        import grain

        ordered = _OrderedSource(self._source, self._batch_size, np.asarray(jax.random.key_data(self._key)))
        dataset = grain.MapDataset.source(ordered)[step * self._batch_size :].batch(self._batch_size).to_iter_dataset()
        if self._workers:
            dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=self._workers))
        for batch in dataset:
            yield {name: self._put(value) for name, value in batch.items()}


class _OrderedSource:
    """The examples in the order of training, as far as anyone trains: item n is the n-th example drawn."""

    EPOCHS = 100_000

    def __init__(self, source, batch_size: int, key_data: np.ndarray):
        self._source, self._batch_size, self._key_data = source, batch_size, key_data
        self._epoch, self._order = None, None

    def __len__(self) -> int:
        return self.EPOCHS * (len(self._source) // self._batch_size) * self._batch_size

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        images = len(self._source)
        epoch, position = divmod(int(index), images // self._batch_size * self._batch_size)
        if epoch != self._epoch:
            key = jax.random.wrap_key_data(jnp.asarray(self._key_data))
            self._order = np.asarray(epoch_order(key, epoch, images, self._batch_size)).reshape(-1)
            self._epoch = epoch
        example = self._source[int(self._order[position])]
        return {"image": pack(example["image"][..., 0]), "label": np.int32(example["label"])}


@jax.jit
def _gather(bits, labels, order, n):
    return {"image": bits[order[n]], "label": labels[order[n]]}
