"""Arrow pointing (Section 4.1): does the arrow point at the circle?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
from omegaconf import MISSING

from data.arrow_pointing.builder import data_source
from data.arrow_pointing.geometry import LABELS
from data.arrow_pointing.packed import load_packed
from data.arrow_pointing.splits import ArrowVariant
from data.loading import DeviceBatches, PackedSplit, StreamedBatches
from plstm.errors import UserError
from plstm.tasks.vision import VisionTask

if TYPE_CHECKING:
    from plstm.config import Config
    from plstm.training.meshes import Layout


@dataclass
class ArrowData:
    """Which images, and how they reach the device."""

    name: str = "arrow_pointing"
    classes: int = 2
    size: int = 192  # pixels a side; the extrapolation splits have twice that
    scale: float = 1.0  # of the objects: 1 is the paper's
    train_images: int = 100_000
    eval_images: int | None = None  # a split; none: the paper's counts
    train_seed: int = MISSING  # of the training images; the run's seed unless set
    root: str | None = None  # where data sets live; none: $PLSTM_DATA or ~/.cache/plstm/data
    generate: bool = True  # make missing images; otherwise missing data is an error
    placement: str = "device"  # "device": the whole split stays there, packed; "stream": read by grain as it goes
    workers: int = 0  # grain's reading processes when streaming; 0: read in this process


class ArrowTask(VisionTask):
    """Two classes, black-and-white images; `val_ext` and `test_ext` have twice the training size."""

    data_schema = ArrowData
    splits = ("train", "val", "val_ext", "test", "test_ext")
    class_names = LABELS

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError naming the key where values do not fit together."""
        data, model = config.data, config.model
        for key, choices in (("name", ("arrow_pointing",)), ("placement", ("device", "stream"))):
            if getattr(data, key) not in choices:
                raise UserError(f"data.{key}={getattr(data, key)}: choose one of {', '.join(choices)}")
        if data.classes != 2:
            raise UserError(f"data.classes={data.classes}: arrow pointing has 2 classes")
        if model.channels != 3:
            raise UserError(f"model.channels={model.channels}: the images have 3")
        if model.classes != data.classes or model.image_size != data.size:
            raise UserError(
                "model.classes and model.image_size follow data.classes and data.size; change those instead"
            )
        if config.optim.batch_size > data.train_images:
            raise UserError(
                f"optim.batch_size={config.optim.batch_size}: more than data.train_images={data.train_images}"
            )

    @property
    def train_examples(self) -> int:
        """Training images."""
        return self.config.data.train_images

    def describe_data(self) -> str:
        """Name, number and size."""
        data = self.config.data
        return f"{data.name}: {data.train_images:,} images, {data.size} pixels a side"

    def split(self, name: str) -> PackedSplit:
        """A whole split, packed, generated first where missing; errors: see `load_packed`."""
        split = load_packed(self._variant(), name, self.config.data.root, self.config.data.generate)
        return replace(split, process_index=jax.process_index(), process_count=jax.process_count())

    def batches(self, key: jax.Array, layout: Layout) -> DeviceBatches | StreamedBatches:
        """From the device or streamed, as `data.placement` says; the same batches."""
        data, batch_size = self.config.data, self.config.optim.batch_size
        if data.placement == "device":
            return DeviceBatches(self.split("train"), batch_size, self.config.seed, layout.place_copies, layout.rows)
        source = data_source(self._variant(), "train", data.root, data.generate)
        process = jax.process_index(), jax.process_count()
        return StreamedBatches(source, batch_size, self.config.seed, data.workers, layout.place_rows, *process)

    def _variant(self):
        data = self.config.data
        return ArrowVariant(data.train_seed, data.size, data.scale, data.train_images, data.eval_images)
