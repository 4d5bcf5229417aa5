"""Batches for training, from a packed split held on the device or streamed by grain; both give the same ones.

The order is a function of the seed and the epoch alone, see `epoch_order`, and the remainder that fills no batch is
dropped. So a resumed run needs no iterator state, and the number of reading processes changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.reading import read

MAX_EPOCHS = 100_000  # effectively infinite


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, examples: int) -> np.ndarray:
    """The order in which an epoch visits its examples: a permutation, int64 [examples], read-only.

    It is the same in every release of NumPy, which keeps RandomState's numbers.
    """
    order = np.random.RandomState((seed, epoch)).permutation(examples)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class PackedSplit:
    """A whole split of square black-and-white images, in order, at one bit a pixel.

    bits: uint8 [images, ceil(size * size / 8)], row-major pixels, most significant bit first; bit 1 is white (255).
    labels: uint8 [images]. size: pixels a side. process_index, process_count: which part of each batch to give.
    """

    bits: np.ndarray
    labels: np.ndarray
    size: int
    process_index: int = 0
    process_count: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Every image once, in order: "image" packed bits, "label" int32, "mask" bool; the last batch padded with 0.

        `batch_size` is over all processes, which must divide it; the arrays are this process's rows of it.
        """
        rows = batch_size // self.process_count
        for start in range(self.process_index * rows, len(self) + self.process_index * rows, batch_size):
            labels = self.labels[start : start + rows]
            padding = rows - len(labels)
            yield {
                "image": np.pad(self.bits[start : start + rows], ((0, padding), (0, 0))),
                "label": np.pad(labels, (0, padding)).astype(np.int32),
                "mask": np.arange(rows) < rows - padding,
            }

    def first(self, batch_size: int) -> dict[str, np.ndarray]:
        """The first of `batches`."""
        return next(self.batches(batch_size))


def packed_bytes(size: int) -> int:
    """How many bytes an image of `size` x `size` pixels takes."""
    return -(-size * size // 8)


def pack(images: np.ndarray) -> np.ndarray:
    """uint8 [..., size, size] of 0 and 255 -> uint8 [..., ceil(size * size / 8)]."""
    return np.packbits(images.reshape(*images.shape[:-2], -1) == 255, axis=-1)


def unpack(bits: Any, size: int) -> Any:
    """uint8 [..., ceil(size * size / 8)] -> uint8 [..., size, size] of 0 and 255.

    NumPy arrays stay NumPy; JAX arrays stay JAX, also inside jax.jit (with `size` static).
    """
    xp = np if isinstance(bits, np.ndarray) else jnp
    pixels = xp.unpackbits(bits, axis=-1, count=size * size)
    return pixels.reshape(*bits.shape[:-1], size, size) * xp.uint8(255)


class DeviceBatches:
    """A whole packed split on the device, shuffled there by index."""

    def __init__(self, split: PackedSplit, batch_size: int, seed: int, put=jnp.asarray, layout=None):
        """`put` places an array on the device, or a copy on each; `layout` is the sharding of the batches."""
        self._bits, self._labels = put(np.asarray(split.bits)), put(split.labels.astype(np.int32))
        self._batch_size, self._seed, self._put = batch_size, seed, put
        self._gather = jax.jit(_gather, out_shardings=layout)

    def from_step(self, step: int) -> Iterator[dict[str, jax.Array]]:
        """Endless batches {"image": packed bits, "label": int32 [batch]}; `step` 0 is the first of the training."""
        images, steps = len(self._labels), len(self._labels) // self._batch_size
        epoch, position = divmod(step, steps)
        while True:
            order = epoch_order(self._seed, epoch, images)[: steps * self._batch_size]
            order = self._put(order.astype(np.int32).reshape(steps, self._batch_size))
            for n in range(position, steps):
                yield self._gather(self._bits, self._labels, order, n)
            epoch, position = epoch + 1, 0


def _gather(bits, labels, order, n):
    return {"image": bits[order[n]], "label": labels[order[n]]}


class StreamedBatches:
    """Batches read by grain from a random-access source as training goes, for sets that do not fit on the device.

    source: `source[i]` has "image" uint8 [S, S, 1] of 0 and 255, and "label". batch_size: over all processes, which
    must divide it; this one reads its rows only, the process_index-th part. seed: of the order. workers: processes that
    read (0: threads of this one). put: places an array of this process's rows on the device or devices.
    """

    def __init__(
        self,
        source: Sequence[dict[str, Any]],
        batch_size: int,
        seed: int,
        workers: int = 0,
        put=jnp.asarray,
        process_index: int = 0,
        process_count: int = 1,
    ):
        self._ordered = _OrderedSource(source, batch_size, seed, process_index, process_count)
        self._workers, self._put = workers, put

    def from_step(self, step: int) -> Iterator[dict[str, jax.Array]]:
        """As `DeviceBatches.from_step`."""
        import grain

        rows = self._ordered.rows
        dataset = grain.MapDataset.source(self._ordered)[step * rows :].batch(rows)
        for batch in read(dataset, self._workers, threads=os.cpu_count() or 1):
            yield {name: self._put(value) for name, value in batch.items()}


class _OrderedSource:
    """The examples in the order of training: item n is the n-th that this process draws.

    Many threads read at once, and not all of them in one epoch, so it has no state of its own.
    """

    def __init__(self, source, batch_size: int, seed: int, process_index: int, process_count: int):
        self._source, self._batch_size, self._seed = source, batch_size, seed
        self._steps, self.rows = len(source) // batch_size, batch_size // process_count
        self._first = process_index * self.rows

    def __len__(self) -> int:
        return MAX_EPOCHS * self._steps * self.rows

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        step, row = divmod(int(index), self.rows)
        epoch, step = divmod(step, self._steps)
        position = step * self._batch_size + self._first + row
        example = self._source[int(epoch_order(self._seed, epoch, len(self._source))[position])]
        return {"image": pack(example["image"][..., 0]), "label": np.int32(example["label"])}
