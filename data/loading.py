"""Batches for training: of a packed split, shuffled on the device, and `read`, by which grain's processes make others.

The order is a function of the seed and the epoch alone, see `epoch_order`, and the remainder that fills no batch is
dropped. So a resumed run needs no iterator state, and the number of reading processes changes nothing.
"""

import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing import resource_tracker
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from plstm.errors import ReadError, first_line
from plstm.files import STOPS

ENDLESS = 2**40  # steps
SECONDS_TO_SAVE = 60


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, examples: int) -> np.ndarray:
    """The order in which an epoch visits its examples: a permutation, int64 [examples], read-only."""
    order = np.random.RandomState((seed, epoch)).permutation(examples)  # the same in every release of NumPy
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class PackedSplit:
    """A whole split of square black-and-white images, in order, at one bit a pixel."""

    bits: np.ndarray  # uint8 [images, ceil(size * size / 8)]: rows of pixels, highest bit first; 1 is white (255)
    labels: np.ndarray  # uint8 [images]
    size: int  # pixels a side
    process_index: int = 0  # which part of each batch to give
    process_count: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """This process's rows of every image once, in order: "image" packed bits, "label" int32, "mask" bool.
        `batch_size` is over all processes, which must divide it; the last batch is padded with 0."""
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
        return next(self.batches(batch_size))


def packed_bytes(size: int) -> int:
    return -(-size * size // 8)


def pack(images: np.ndarray) -> np.ndarray:
    """uint8 [..., size, size] of 0 and 255 -> uint8 [..., ceil(size * size / 8)]."""
    return np.packbits(images.reshape(*images.shape[:-2], -1) == 255, axis=-1)


def unpack(bits: Any, size: int) -> Any:
    """uint8 [..., ceil(size * size / 8)] -> uint8 [..., size, size] of 0 and 255; NumPy or JAX, as it is given."""
    xp = np if isinstance(bits, np.ndarray) else jnp
    pixels = xp.unpackbits(bits, axis=-1, count=size * size)
    return pixels.reshape(*bits.shape[:-1], size, size) * xp.uint8(255)


class DeviceBatches:
    """A packed split on the device, or by `put` a copy on each, shuffled there into batches sharded as `layout`."""

    def __init__(
        self,
        split: PackedSplit,
        batch_size: int,
        seed: int,
        put: Callable[[Any], Any] = jnp.asarray,
        layout: Sharding | None = None,
    ):
        self._bits = put(np.asarray(split.bits))
        self._labels = put(split.labels.astype(np.int32))
        self._batch_size = batch_size
        self._seed = seed
        self._put = put

        def gather(bits, labels, order, n):
            return {"image": bits[order[n]], "label": labels[order[n]]}

        self._gather = jax.jit(gather, out_shardings=layout)

    def from_step(self, step: int) -> Iterator[dict[str, jax.Array]]:
        """Endless batches {"image": packed bits, "label": int32 [batch]}; `step` 0 is the first of the training."""
        images = len(self._labels)
        steps = len(self._labels) // self._batch_size
        for epoch in itertools.count(step // steps):
            order = epoch_order(self._seed, epoch, images)[: steps * self._batch_size]
            order = self._put(order.astype(np.int32).reshape(steps, self._batch_size))
            for n in range(max(step - epoch * steps, 0), steps):
                yield self._gather(self._bits, self._labels, order, n)


def read(make: Callable[[int], Any], start: int, stop: int, workers: int) -> Iterator[Any]:
    """make(start), ..., make(stop - 1), made ahead in `workers` processes or, without them, a thread of this one.
    Raises ReadError where a process ends before the time; what is raised in one is raised here."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # grain's workers ask for flags, which programs of Hydra never parse
        flags.FLAGS.mark_as_parsed()
    ahead = 0 if workers else 1
    options = grain.ReadOptions(num_threads=ahead, prefetch_buffer_size=ahead)
    elements = grain.MapDataset.range(start, stop).map(make).to_iter_dataset(options)
    if workers:
        elements = elements.mp_prefetch(grain.MultiprocessingOptions(workers), worker_init_fn=_start_worker)
    iterator = iter(elements)
    try:
        element = _first(iterator) if workers else next(iterator, None)
        while element is not None:
            yield element
            del element
            element = next(iterator, None)
    except RuntimeError as error:
        if "terminated unexpectedly" not in str(error):  # as grain says of a process
            raise
        why = f"a reading process ended ({first_line(error)})"
        raise ReadError(f"{why}; where memory ran out, take fewer data.workers") from error
    finally:
        iterator.close()
        if workers:
            del iterator
            gc.collect()  # grain's threads leave their last batches in reference cycles


def _first(iterator: Iterator[Any]) -> Any:
    """The first element. The reading processes, which start here, inherit that signals are blocked: these would end
    them as they import, Ctrl-C by a traceback. In a thread, so that this one still takes signals."""
    _start_tracker()  # which unblocks signals in the thread that starts it
    found: Future = Future()

    def take() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            found.set_result(next(iterator, None))
        except BaseException as error:  # raised by `result`
            found.set_exception(error)

    threading.Thread(target=take, daemon=True).start()
    return found.result()


@cache
def _start_tracker() -> None:
    """Starts Python's tracker of shared memory and semaphores, without its warning where it removes what a process
    left that was stopped at once."""
    sys.warnoptions.append("ignore:resource_tracker")
    resource_tracker.ensure_running()
    sys.warnoptions.pop()


def _start_worker(worker: int, workers: int) -> None:
    jax.config.update("jax_platforms", "cpu")  # leave the accelerators alone
    # Ctrl-C and Slurm signal all processes of a job, but the training wants its batches until it has saved.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.alarm(SECONDS_TO_SAVE))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def end_with_parent() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
