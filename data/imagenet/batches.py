"""Batches of photographs for training and evaluation: decoded, cropped and augmented by grain's reading processes.

Order and randomness are functions of (seed, epoch, image, view) alone: so a checkpoint needs no iterator state, a
resumed run continues with the batch it would have had, and the number of reading processes changes nothing.

A view is written once, into the batch in shared memory that this process hands to the device, so that decoding and
augmentation bound the speed. Each reading process makes whole batches, and grain keeps up to four of each one's: shared
memory must hold (4 workers + 3) batches, and while a training evaluates, those of the evaluation as well; a batch of
2,048 views of 192 x 192 takes 0.23 GB.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from data.augment import augment, evaluation_crop, view_rng
from data.augment.recipes import AugmentConfig
from data.decoding import CorruptImage, decode
from data.loading import MAX_EPOCHS, epoch_order
from data.reading import read
from plstm.errors import ReadError, UserError

GREY = 128
MAX_CORRUPT = 0.001
TRIES = 100  # images in a row, before the whole set is given up


class ImageBatches:
    """Endless batches of augmented views, each image decoded once for its views in a batch.

    Epoch e visits the images in the order of `data.loading.epoch_order(seed, e, images)`, each `config.repeats` times
    in a row, and ends after floor(images / batch size) batches: with r repeats it visits the first r-th of that order.
    Where the batch size is no multiple of r, some images have views in two batches.

    source: picklable; `source[i]` is {"image": a file's bytes, "label": int, "file_name": str}. batch_size: views over
    all processes; this one reads its rows only, the process_index-th part. size: pixels a side. config: the
    augmentation. seed: of order and augmentation, 0 or more. workers: processes that read, spawned (so programs need a
    main guard); 0: threads of this one. put: places an array on the device or devices; it may keep the array, but must
    not write to it. max_corrupt: share of the source's images that may be undecodable; more of them raise ReadError.
    Each is reported once, and the source's next image takes its place with its own label, so that batches are full.
    beside: bytes of shared memory that evaluations will want while this reads on.
    """

    def __init__(
        self,
        source: Sequence[dict[str, Any]],
        batch_size: int,
        size: int,
        config: AugmentConfig,
        seed: int,
        workers: int = 0,
        put: Callable[[np.ndarray], Any] = np.asarray,
        process_index: int = 0,
        process_count: int = 1,
        max_corrupt: float = MAX_CORRUPT,
        beside: int = 0,
    ):
        if batch_size > len(source):
            raise UserError(f"optim.batch_size={batch_size}: more than the {len(source)} training images")
        rows = _rows(batch_size, process_index, process_count)
        self._batches = _TrainingBatches(source, batch_size, size, workers, rows, config=config, seed=seed)
        self._workers, self._put, self._beside = workers, put, beside
        self._corrupt = _CorruptImages(len(source), max_corrupt, "the next image takes its place")

    @property
    def steps_per_epoch(self) -> int:
        """floor(images / batch size), repeats counted as images."""
        return self._batches.steps

    def from_step(self, step: int) -> Iterator[dict[str, Any]]:
        """Endless {"image": uint8 [rows, size, size, 3], "label": int32 [rows]}; `step` 0 is the first of the training.

        Rows are this process's part of the batch. Raises ReadError for too many corrupt images, and UserError where
        shared memory is too small.
        """
        for batch in _read(self._batches, step, self._workers, self._beside):
            self._corrupt.report(batch["corrupt"])
            yield {name: self._put(batch[name]) for name in ("image", "label")}


class ImageSplit:
    """A split to evaluate on: every image once, resized and cropped at its centre.

    Arguments as for `ImageBatches`; crop_ratio: of the crop's side to the resized image's shorter side.
    """

    def __init__(
        self,
        source: Sequence[dict[str, Any]],
        size: int,
        crop_ratio: float,
        workers: int = 0,
        process_index: int = 0,
        process_count: int = 1,
        max_corrupt: float = MAX_CORRUPT,
    ):
        self.size = size
        self._source, self._crop_ratio, self._workers = source, crop_ratio, workers
        self._process = process_index, process_count
        self._corrupt = _CorruptImages(len(source), max_corrupt, "it counts as wrong")

    def __len__(self) -> int:
        """Images over all processes."""
        return len(self._source)

    def batches(self, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """{"image": uint8 [rows, size, size, 3], "label": int32 [rows], "mask": bool [rows]}, equally many a process.

        `batch_size` is over all processes, and rows are this one's part. The last batch is padded; the mask is False
        there. A corrupt image is grey and labelled -1, so that it counts as an error, with the loss of a guess: leaving
        it out would flatter the model.
        """
        batches, workers = self._plan(batch_size, self._workers)
        for batch in _read(batches, 0, workers):
            self._corrupt.report(batch.pop("corrupt"))
            yield batch

    def first(self, batch_size: int) -> dict[str, np.ndarray]:
        """The first of `batches`, read in this process: starting others would take longer."""
        return {name: value for name, value in self._plan(batch_size, 0)[0][0].items() if name != "corrupt"}

    def shared_bytes(self, batch_size: int) -> int:
        """Shared memory that the reading of `batches` takes at most."""
        batches, workers = self._plan(batch_size, self._workers)
        return _shared_bytes(batches, workers) if workers else 0

    def _plan(self, batch_size: int, workers: int) -> tuple[_EvaluationBatches, int]:
        rows = _rows(batch_size, *self._process)
        shape = self._source, batch_size, self.size, workers, rows
        batches = _EvaluationBatches(*shape, crop_ratio=self._crop_ratio)
        return batches, min(workers, len(batches))


def _rows(batch_size: int, process_index: int, process_count: int) -> range:
    """This process's rows of a batch."""
    if batch_size % process_count:
        raise UserError(f"optim.batch_size={batch_size}: must be a multiple of the {process_count} processes")
    rows = batch_size // process_count
    return range(process_index * rows, (process_index + 1) * rows)


Corrupt = list[tuple[str, str]]  # the names of undecodable files, and why


class _Batches:
    """Batch n at [n], picklable and without a state of its own; the arrays and the threads that fill them."""

    def __init__(self, source: Sequence[dict[str, Any]], batch_size: int, size: int, workers: int, rows: range):
        self.source, self.batch_size, self.size, self.rows = source, batch_size, size, rows
        self.nbytes, self._in_workers = len(rows) * size**2 * 3, workers > 0

    def _make(self, jobs: Iterable[int], fill: Callable[[int, np.ndarray, np.ndarray], Corrupt]) -> dict[str, Any]:
        """A batch; `fill(job, images, labels)` writes some of its rows and returns what was corrupt."""
        shape = (len(self.rows), self.size, self.size, 3)
        if self._in_workers:  # grain passes such an array on without a copy
            from grain.multiprocessing import SharedMemoryArray

            images = SharedMemoryArray(shape, np.uint8)
        else:
            images = np.empty(shape, np.uint8)
        labels = np.empty(len(self.rows), np.int32)
        # In a reading process a second thread reads files while the first computes.
        with ThreadPoolExecutor(2 if self._in_workers else os.cpu_count()) as threads:
            corrupt = list(threads.map(lambda job: fill(job, images, labels), jobs))
        return {"image": images, "label": labels, "corrupt": sum(corrupt, [])}


class _TrainingBatches(_Batches):
    def __init__(self, *shape: Any, config: AugmentConfig, seed: int):
        super().__init__(*shape)
        self._config, self._seed, self.steps = config, seed, len(self.source) // self.batch_size

    def __len__(self) -> int:
        return MAX_EPOCHS * self.steps

    def __getitem__(self, step: int) -> dict[str, Any]:
        epoch, position = divmod(int(step), self.steps)
        order, repeats = epoch_order(self._seed, epoch, len(self.source)), self._config.repeats
        first, last = (position * self.batch_size + row for row in (self.rows.start, self.rows.stop))

        def fill(place: int, images: np.ndarray, labels: np.ndarray) -> Corrupt:
            index = int(order[place])
            picture, label, corrupt = self._decode(index)
            for number in range(max(place * repeats, first), min((place + 1) * repeats, last)):
                rng = view_rng(self._seed, epoch, index, number % repeats)
                images[number - first] = augment(picture, self.size, self._config, rng)
                labels[number - first] = label
            return corrupt

        return self._make(range(first // repeats, (last - 1) // repeats + 1), fill)

    def _decode(self, index: int) -> tuple[Image.Image, int, Corrupt]:
        """Picture and label of an image, or of the next one that can be decoded; and those that cannot."""
        corrupt = []
        for place in range(index, index + TRIES):
            example = self.source[place % len(self.source)]
            try:
                return decode(example["image"]), example["label"], corrupt
            except CorruptImage as error:
                corrupt.append((example["file_name"], str(error)))
        raise ReadError(f"{corrupt[0][0]} and the {TRIES - 1} images after it cannot be decoded ({corrupt[0][1]})")


class _EvaluationBatches(_Batches):
    def __init__(self, *shape: Any, crop_ratio: float):
        super().__init__(*shape)
        self._crop_ratio = crop_ratio

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch_size)

    def __getitem__(self, number: int) -> dict[str, Any]:
        first = int(number) * self.batch_size + self.rows.start
        mask = first + np.arange(len(self.rows)) < len(self.source)

        def fill(row: int, images: np.ndarray, labels: np.ndarray) -> Corrupt:
            images[row], labels[row] = GREY, 0
            if mask[row]:
                example, labels[row] = self.source[first + row], -1
                try:
                    images[row] = evaluation_crop(decode(example["image"]), self.size, self._crop_ratio)
                except CorruptImage as error:
                    return [(example["file_name"], str(error))]
                labels[row] = example["label"]
            return []

        return self._make(range(len(self.rows)), fill) | {"mask": mask}


class _CorruptImages:
    """Reports undecodable images, and ends the run when they are too many; one a split, in the main process."""

    def __init__(self, images: int, max_share: float, instead: str):
        self._images, self._max_share, self._instead = images, max_share, instead
        self._names: set[str] = set()

    def report(self, corrupt: Corrupt) -> None:
        """Warns once of each (name, why); raises ReadError where there are too many in all."""
        for name, why in corrupt:
            if name not in self._names:
                self._names.add(name)
                warnings.warn(f"{name}: cannot be decoded ({why}); {self._instead}", stacklevel=3)
        if len(self._names) > self._max_share * self._images:
            raise ReadError(
                f"{len(self._names)} of {self._images:,} images cannot be decoded, the last {corrupt[-1][0]}: "
                f"more than data.max_corrupt={self._max_share:g} of them; prepare the data again, or allow more"
            )


def _read(batches: _Batches, start: int, workers: int, beside: int = 0) -> Iterator[dict[str, Any]]:
    """batches[start], batches[start + 1], ..., made ahead in `workers` processes, or in a thread of this one.

    beside: bytes of shared memory that others will want while these are read.
    """
    import grain

    if workers:
        _check_shared_memory(_shared_bytes(batches, workers, start) + beside)
    for batch in read(grain.MapDataset.source(batches)[start:], workers, threads=1):
        # as NumPy arrays instead of grain's own class
        yield {name: np.asarray(value) if name != "corrupt" else value for name, value in batch.items()}
        del batch


def _shared_bytes(batches: _Batches, workers: int, start: int = 0) -> int:
    """What the batches that processes make ahead take at most: grain keeps four of each."""
    return min(4 * workers + 3, len(batches) - start) * batches.nbytes


def _check_shared_memory(needed: int, folder: str = "/dev/shm") -> None:
    """Raises UserError where batches do not fit: processes that write past the end of shared memory die unheard."""
    if not os.path.isdir(folder):
        return
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if needed > free:
        raise UserError(
            f"{folder}: {free / 2**30:.1f} GiB free, but the batches of data.workers need {needed / 2**30:.1f}; "
            "take fewer, or give the container more (docker run --shm-size)"
        )
