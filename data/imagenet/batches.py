"""Batches of photographs for training and evaluation: decoded, cropped and augmented by grain's reading processes.

Order and randomness are functions of (seed, epoch, image, view) alone: so a checkpoint needs no iterator state, a
resumed run continues with the batch it would have had, and the number of reading processes changes nothing.

A view is written once, into the batch in shared memory that this process hands to the device. Grain keeps up to four
batches of each reading process: shared memory must hold (4 workers + 3) batches, and those of an evaluation as well; a
batch of 2,048 views of 192 x 192 takes 0.23 GB.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from PIL import Image

from data.augment import augment, evaluation_crop, view_rng
from data.augment.recipes import AugmentConfig
from data.decoding import CorruptImage, decode
from data.loading import MAX_EPOCHS, epoch_order, read
from plstm.errors import ReadError, UserError

GREY = 128
MAX_CORRUPT = 0.001
TRIES = 100  # images in a row, before the whole set is given up
SHARED = "/dev/shm"


@dataclass(eq=False, repr=False)
class _Batches:
    """Batch n at [n], picklable and without a state of its own; the arrays and the threads that fill them."""

    source: Sequence[dict[str, Any]]
    batch_size: int  # over all processes
    size: int
    workers: int
    rows: range  # of a batch that are this process's

    def shared_bytes(self, start: int = 0) -> int:
        """What the batches from `start` on, made ahead, take of shared memory at most."""
        batches = min(4 * self.workers + 3, len(self) - start) if self.workers else 0
        return batches * len(self.rows) * self.size**2 * 3

    def _make(self, jobs: Iterable[int], fill: Callable[[int, np.ndarray, np.ndarray, dict], None]) -> dict[str, Any]:
        """A batch; `fill(job, images, labels, corrupt)` writes some of its rows, and why files cannot be decoded."""
        shape = (len(self.rows), self.size, self.size, 3)
        if self.workers:  # grain passes such an array on without a copy
            from grain.multiprocessing import SharedMemoryArray

            images = SharedMemoryArray(shape, np.uint8)
        else:
            images = np.empty(shape, np.uint8)
        labels, corrupt = np.empty(len(self.rows), np.int32), {}
        # In a reading process a second thread reads files while the first computes.
        with ThreadPoolExecutor(2 if self.workers else os.cpu_count()) as threads:
            list(threads.map(lambda job: fill(job, images, labels, corrupt), jobs))
        return {"image": images, "label": labels, "corrupt": sorted(corrupt.items())}

    def _decode(self, index: int, corrupt: dict[str, str]) -> tuple[Image.Image | None, int]:
        """The picture and label of an image; (None, -1) where it cannot be decoded, which `corrupt` then says."""
        example = self.source[index]
        try:
            return decode(example["image"]), example["label"]
        except CorruptImage as error:
            corrupt[example["file_name"]] = str(error)
            return None, -1


@dataclass(eq=False, repr=False)
class _TrainingBatches(_Batches):
    config: AugmentConfig
    seed: int

    def __post_init__(self):
        self.steps = len(self.source) // self.batch_size

    def __len__(self) -> int:
        return MAX_EPOCHS * self.steps

    def __getitem__(self, step: int) -> dict[str, Any]:
        epoch, position = divmod(int(step), self.steps)
        order, repeats = epoch_order(self.seed, epoch, len(self.source)), self.config.repeats
        first, last = (position * self.batch_size + row for row in (self.rows.start, self.rows.stop))

        def fill(place: int, images: np.ndarray, labels: np.ndarray, corrupt: dict[str, str]) -> None:
            index = int(order[place])
            for other in range(index, index + TRIES):
                picture, label = self._decode(other % len(self.source), corrupt)
                if picture is not None:
                    break
            else:
                name = self.source[index]["file_name"]
                raise ReadError(f"{name} and the {TRIES - 1} images after it cannot be decoded ({corrupt[name]})")
            for number in range(max(place * repeats, first), min((place + 1) * repeats, last)):
                rng = view_rng(self.seed, epoch, index, number % repeats)
                images[number - first] = augment(picture, self.size, self.config, rng)
                labels[number - first] = label

        return self._make(range(first // repeats, (last - 1) // repeats + 1), fill)


@dataclass(eq=False, repr=False)
class _EvaluationBatches(_Batches):
    crop_ratio: float

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch_size)

    def __getitem__(self, number: int) -> dict[str, Any]:
        first = int(number) * self.batch_size + self.rows.start
        mask = first + np.arange(len(self.rows)) < len(self.source)

        def fill(row: int, images: np.ndarray, labels: np.ndarray, corrupt: dict[str, str]) -> None:
            picture, labels[row] = self._decode(first + row, corrupt) if mask[row] else (None, 0)
            images[row] = GREY if picture is None else evaluation_crop(picture, self.size, self.crop_ratio)

        return self._make(range(len(self.rows)), fill) | {"mask": mask}


@dataclass(eq=False, repr=False)
class _Reader:
    """Reads batches and reports undecodable images, each once; ends the run when they are too many."""

    source: Sequence[dict[str, Any]]  # picklable; source[i] is {"image": a file's bytes, "label", "file_name"}
    size: int  # pixels a side
    _: KW_ONLY
    workers: int = 0  # processes that read, spawned (so programs need a main guard); 0: threads of this one
    process_index: int = 0  # which part of each batch to read
    process_count: int = 1
    max_corrupt: float = MAX_CORRUPT  # share of the images that may be undecodable; more of them raise ReadError

    def __post_init__(self):
        self._corrupt = set()

    def _shape(self, batch_size: int, workers: int) -> tuple:
        """The fields of `_Batches`."""
        rows, rest = divmod(batch_size, self.process_count)
        if rest:
            raise UserError(f"optim.batch_size={batch_size}: must be a multiple of the {self.process_count} processes")
        start = self.process_index * rows
        return self.source, batch_size, self.size, workers, range(start, start + rows)

    def _read(self, batches: _Batches, start: int = 0, beside: int = 0) -> Iterator[dict[str, Any]]:
        """batches[start], batches[start + 1], ..., made ahead in processes, or in a thread of this one."""
        import grain

        if batches.workers:
            _check_shared_memory(batches.shared_bytes(start) + beside)
        for batch in read(grain.MapDataset.source(batches)[start:], batches.workers, threads=1):
            self._report(batch.pop("corrupt"))
            yield {name: np.asarray(value) for name, value in batch.items()}  # NumPy's instead of grain's own class
            del batch

    def _report(self, corrupt: list[tuple[str, str]]) -> None:
        for name, why in corrupt:
            if name not in self._corrupt:
                self._corrupt.add(name)
                warnings.warn(f"{name}: cannot be decoded ({why}); {self.instead}", stacklevel=4)
        if len(self._corrupt) > self.max_corrupt * len(self.source):
            raise ReadError(
                f"{len(self._corrupt)} of {len(self.source):,} images cannot be decoded, the last {corrupt[-1][0]}: "
                f"more than data.max_corrupt={self.max_corrupt:g} of them; prepare the data again, or allow more"
            )


@dataclass(eq=False, repr=False)
class ImageBatches(_Reader):
    """Endless batches of augmented views, each image decoded once for its views in a batch.

    Epoch e visits the images in the order of `data.loading.epoch_order(seed, e, images)`, each `config.repeats` times
    in a row, and ends after floor(images / batch size) batches: with r repeats it visits the first r-th of that order.
    Where the batch size is no multiple of r, some images have views in two batches. The source's next image takes an
    undecodable one's place with its own label, so that batches are full.
    """

    batch_size: int  # views over all processes; this one reads its rows only
    config: AugmentConfig
    seed: int  # of order and augmentation, 0 or more
    _: KW_ONLY
    put: Callable[[np.ndarray], Any] = np.asarray  # places an array on the device or devices; it may keep the array
    beside: int = 0  # bytes of shared memory that evaluations will want while this reads on
    instead = "the next image takes its place"

    def __post_init__(self):
        if self.batch_size > len(self.source):
            raise UserError(f"optim.batch_size={self.batch_size}: more than the {len(self.source)} training images")
        super().__post_init__()
        self._batches = _TrainingBatches(*self._shape(self.batch_size, self.workers), self.config, self.seed)

    def from_step(self, step: int) -> Iterator[dict[str, Any]]:
        """Endless {"image": uint8 [rows, size, size, 3], "label": int32 [rows]}; `step` 0 is the first of the training.

        Raises ReadError for too many corrupt images, and UserError where shared memory is too small.
        """
        for batch in self._read(self._batches, step, self.beside):
            yield {name: self.put(value) for name, value in batch.items()}
            del batch


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
        an error, with the loss of a guess: leaving it out would flatter the model.
        """
        return self._read(self._plan(batch_size, self.workers))

    def first(self, batch_size: int) -> dict[str, np.ndarray]:
        """The first of `batches`, read in this process: starting others would take longer."""
        return {name: value for name, value in self._plan(batch_size, 0)[0].items() if name != "corrupt"}

    def shared_bytes(self, batch_size: int) -> int:
        """Shared memory that the reading of `batches` takes at most."""
        return self._plan(batch_size, self.workers).shared_bytes()

    def _plan(self, batch_size: int, workers: int) -> _EvaluationBatches:
        workers = min(workers, -(-len(self) // batch_size))
        return _EvaluationBatches(*self._shape(batch_size, workers), self.crop_ratio)


def _check_shared_memory(needed: int) -> None:
    """Raises UserError where batches do not fit: processes that write past the end of shared memory die unheard."""
    if os.path.isdir(SHARED) and needed > (free := shutil.disk_usage(SHARED).free):
        raise UserError(
            f"{SHARED}: {free / 2**30:.1f} GiB free, but the batches of data.workers need {needed / 2**30:.1f}; "
            "take fewer, or give the container more (docker run --shm-size)"
        )
