"""Batches of photographs for training and evaluation: decoded, cropped and augmented by grain's reading processes.

Order and randomness are functions of (seed, epoch, image, view) alone: so a checkpoint needs no iterator state, a
resumed run continues with the batch it would have had, and the number of reading processes changes nothing.

Each view is written once, into shared memory, which must hold (4 workers + 3) batches, for grain keeps up to four of
each reading process, and those of an evaluation as well. A batch of 2,048 views of 192 x 192 takes 0.23 GB.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from data.augment.recipes import AugmentConfig
from data.augment.views import augment, view_rng
from data.decoding import CorruptImage, decode
from data.loading import ENDLESS, epoch_order, read
from plstm.errors import ReadError
from plstm.files import core_count
from plstm.preprocessing import evaluation_crop

GREY = 128
MAX_CORRUPT = 0.001
TRIES = 100  # images in a row, before the whole set is given up
SHARED = "/dev/shm"


def default_workers(batch_bytes: int) -> int:
    """One reading process a core of this process, as far as its batches take half of the free shared memory."""
    cores = core_count()
    if not os.path.isdir(SHARED):
        return cores
    return max(min(cores, (shutil.disk_usage(SHARED).free // 2 // batch_bytes - 3) // 4), 1)


@dataclass(eq=False, repr=False)
class _Reader:
    """Reads batches and reports undecodable images, each once; ends the run when they are too many."""

    source: Sequence[dict[str, Any]]  # picklable; source[i] is {"image": a file's bytes, "label", "file_name"}
    size: int  # pixels a side
    _: KW_ONLY
    workers: int = 0  # processes that read, spawned (so programs need a main guard); 0: threads of this one
    process_index: int = 0  # which part of each batch to read
    process_count: int = 1  # must divide the batch size
    max_corrupt: float = MAX_CORRUPT  # share of the images that may be undecodable; more of them raise ReadError
    upright: bool = False  # turn pictures as their rotation tag says

    def __post_init__(self):
        self._corrupt = set()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"put": None}  # reading processes have no devices

    def _read(self, make: Callable[[int], dict], start: int, stop: int, workers: int, shared: int) -> Iterator[dict]:
        """make(start), ..., made ahead in processes, or in a thread of this one; `shared`: bytes that it takes."""
        if workers and os.path.isdir(SHARED) and shared > (free := shutil.disk_usage(SHARED).free):
            what = f"{free / 2**30:.1f} GiB free, but the batches of data.workers need {shared / 2**30:.1f}"
            # A process that writes past the end of shared memory dies without a message.
            raise ReadError(f"{SHARED}: {what}; take fewer, or give the container more (docker run --shm-size)")
        for batch in read(make, start, stop, workers):
            for name, why in batch.pop("corrupt"):
                if name not in self._corrupt:
                    self._corrupt.add(name)
                    warnings.warn(f"{name}: cannot be decoded ({why}); {self.instead}", stacklevel=3)
            if len(self._corrupt) > self.max_corrupt * len(self.source):
                what = f"{len(self._corrupt)} of {len(self.source):,} images cannot be decoded, the last {name}"
                limit = f"more than data.max_corrupt={self.max_corrupt:g} of them"
                raise ReadError(f"{what}: {limit}; repair or remove them, or allow more")
            yield {name: np.asarray(value) for name, value in batch.items()}  # NumPy's instead of grain's own class
            del batch

    def _rows(self, batch_size: int) -> range:
        """Of a batch, those of this process."""
        rows = batch_size // self.process_count
        return range(self.process_index * rows, (self.process_index + 1) * rows)

    def _make(self, rows: int, workers: int, jobs: Iterable[int], fill: Callable[..., None]) -> dict[str, Any]:
        """A batch; `fill(job, images, labels, corrupt)` writes some of its rows, and why files cannot be decoded."""
        make = np.empty
        if workers:
            from grain.multiprocessing import SharedMemoryArray as make  # which grain passes on without a copy

        images = make((rows, self.size, self.size, 3), np.uint8)
        labels = np.empty(rows, np.int32)
        corrupt = {}
        # In a reading process a second thread reads files while the first computes.
        with ThreadPoolExecutor(2 if workers else core_count()) as threads:
            list(threads.map(lambda job: fill(job, images, labels, corrupt), jobs))
        return {"image": images, "label": labels, "corrupt": sorted(corrupt.items())}

    def _decode(self, index: int, corrupt: dict[str, str]) -> tuple[Image.Image | None, int]:
        """The picture and label of an image; (None, -1) where it cannot be decoded, which `corrupt` then says."""
        example = self.source[index]
        try:
            return decode(example["image"], self.upright), example["label"]
        except CorruptImage as error:
            corrupt[example["file_name"]] = str(error)
            return None, -1


@dataclass(eq=False, repr=False)
class ImageBatches(_Reader):
    """Endless batches of augmented views, each image decoded once for its views in a batch.

    An epoch visits the images in `epoch_order`, each `config.repeats` times in a row, and ends after floor(images /
    batch size) batches: with r repeats it visits the first r-th of that order. Where the batch size is no multiple of
    r, some images have views in two batches. The source's next image takes an undecodable one's place.
    """

    batch_size: int  # views over all processes, at most the images; this one reads its rows only
    config: AugmentConfig
    seed: int  # of order and augmentation, 0 or more
    _: KW_ONLY
    put: Callable[[np.ndarray], Any] = np.asarray  # places an array on the device or devices; it may keep the array
    beside: int = 0  # bytes of shared memory that evaluations will want while this reads on
    instead = "the next image takes its place"

    def from_step(self, step: int) -> Iterator[dict[str, Any]]:
        """Endless {"image": uint8 [rows, size, size, 3], "label": int32 [rows]}; `step` 0 is the first of the training.
        Raises ReadError for too many corrupt images, and UserError where shared memory is too small."""
        shared = (4 * self.workers + 3) * len(self._rows(self.batch_size)) * self.size**2 * 3 + self.beside
        for batch in self._read(self._batch, step, ENDLESS, self.workers, shared):
            yield {name: self.put(value) for name, value in batch.items()}
            del batch

    def _batch(self, step: int) -> dict[str, Any]:
        epoch, position = divmod(int(step), len(self.source) // self.batch_size)
        order = epoch_order(self.seed, epoch, len(self.source))
        repeats = self.config.repeats
        rows = self._rows(self.batch_size)
        first, last = (position * self.batch_size + row for row in (rows.start, rows.stop))

        def fill(place: int, images: np.ndarray, labels: np.ndarray, corrupt: dict[str, str]) -> None:
            index = int(order[place])
            tried = (self._decode(other % len(self.source), corrupt) for other in range(index, index + TRIES))
            picture, label = next((found for found in tried if found[0] is not None), (None, -1))
            if picture is None:
                name = self.source[index]["file_name"]
                raise ReadError(f"{name} and the {TRIES - 1} images after it cannot be decoded ({corrupt[name]})")
            for number in range(max(place * repeats, first), min((place + 1) * repeats, last)):
                rng = view_rng(self.seed, epoch, index, number % repeats)
                images[number - first] = augment(picture, self.size, self.config, rng)
                labels[number - first] = label

        return self._make(len(rows), self.workers, range(first // repeats, (last - 1) // repeats + 1), fill)


@dataclass(eq=False, repr=False)
class ImageSplit(_Reader):
    """A split to evaluate on: every image once, resized and cropped at its centre."""

    crop_ratio: float  # of the crop's side to the resized image's shorter side
    instead = "it counts as wrong"

    def __len__(self) -> int:
        return len(self.source)

    def batches(self, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """{"image": uint8 [rows, size, size, 3], "label": int32 [rows], "mask": bool [rows]}, equally many a process.
        The last batch is padded; the mask is False there. A corrupt image is grey and labelled -1, so that it counts as
        an error, with the loss of a guess: leaving it out would flatter the model."""
        count = -(-len(self) // batch_size)
        make = partial(self._batch, batch_size, workers := min(self.workers, count))
        return self._read(make, 0, count, workers, self.shared_bytes(batch_size))

    def first(self, batch_size: int) -> dict[str, np.ndarray]:
        """The first of `batches`, read in this process: starting others would take longer."""
        return {name: value for name, value in self._batch(batch_size, 0, 0).items() if name != "corrupt"}

    def shared_bytes(self, batch_size: int) -> int:
        """Shared memory that the reading of `batches` takes at most."""
        batches = min(4 * self.workers + 3, -(-len(self) // batch_size))
        return batches * len(self._rows(batch_size)) * self.size**2 * 3 if self.workers else 0

    def _batch(self, batch_size: int, workers: int, number: int) -> dict[str, Any]:
        rows = self._rows(batch_size)
        first = int(number) * batch_size + rows.start
        mask = first + np.arange(len(rows)) < len(self)

        def fill(row: int, images: np.ndarray, labels: np.ndarray, corrupt: dict[str, str]) -> None:
            picture, labels[row] = self._decode(first + row, corrupt) if mask[row] else (None, 0)
            images[row] = GREY if picture is None else evaluation_crop(picture, self.size, self.crop_ratio)

        return self._make(len(rows), workers, range(len(rows)), fill) | {"mask": mask}
