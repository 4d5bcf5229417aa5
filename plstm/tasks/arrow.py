"""Arrow pointing (Section 4.1): does the arrow point at the circle?"""

from dataclasses import dataclass, fields, replace
from typing import Annotated

import jax
from omegaconf import MISSING

from data.arrow_pointing.builder import load_packed
from data.arrow_pointing.geometry import DISTRIBUTIONS, LABELS, ArrowVariant
from data.loading import DeviceBatches, PackedSplit
from plstm.config import Config
from plstm.limits import Count, Natural, OneOf, Positive
from plstm.models import Mamba2DConfig, SS2DConfig, ViLConfig, VisionConfig
from plstm.tasks.base import MachineData
from plstm.tasks.vision import VisionTask
from plstm.training.meshes import Layout

# In a part of a batch, on CPUs.
AT_ONCE = 600  # patches of pLSTM and ViT: with 48 channels twice and half as many are slower
PIXELS = 16 * 48**2  # of ViL, 2DMamba and Mamba2D: half as many are up to 1.2 times slower


@dataclass
class ArrowData(MachineData):
    name: Annotated[str, OneOf("arrow_pointing")] = "arrow_pointing"  # the only one
    classes: int = 2  # always
    size: Count = 192  # pixels a side; the extrapolation splits have twice that
    object_scale: Positive = 1.0  # 1 is the paper's
    thinnest: Count = 2  # pixels: least width of an arrow's lines; its least length is 6 times that
    # Distribution of the geometries; balanced: parts of the geometry hardly tell the label.
    distribution: Annotated[str, OneOf(*DISTRIBUTIONS)] = "paper"
    train_images: Count = 100_000  # of one epoch
    eval_images: Count | None = None  # of each evaluation split; null: the paper's counts
    train_seed: Natural = MISSING  # of the training images; the run's seed unless set
    generate: bool = True  # make missing images; otherwise missing data is an error


class ArrowTask(VisionTask):
    """Two classes, black-and-white images; `val_ext` and `test_ext` have twice the training size."""

    data_schema = ArrowData
    unused_keys = ("workers",)
    splits = ("train", "val", "val_ext", "test", "test_ext")
    class_names = LABELS

    @classmethod
    def check(cls, config: Config) -> None:
        super().check(config)
        _ = cls(config).variant  # refuses what cannot be drawn
        if isinstance(config.model, VisionConfig):
            replace(config.model, image_size=2 * config.data.size).check()  # refuses what the large images do not fit

    def shared_config(self) -> Config:
        config = super().shared_config()
        return replace(config, data=replace(config.data, train_seed=0))

    def describe_data(self) -> str:
        data = self.config.data
        return f"{data.name}: {data.train_images:,} images, {data.size} pixels a side"

    def split(self, name: str) -> PackedSplit:
        split = load_packed(self.variant, name, self.config.data.root, self.config.data.generate)
        return replace(split, process_index=jax.process_index(), process_count=jax.process_count())

    def batches(self, layout: Layout) -> DeviceBatches:
        config = self.config
        return DeviceBatches(
            self.split("train"), config.optim.batch_size, config.seed, layout.place_copies, layout.rows
        )

    def microbatches(self) -> int:
        """As few as have at most AT_ONCE patches or PIXELS each, or one image; 1 for other families, which may have
        batch norms."""
        model = self.config.model
        batch_size = self.config.optim.batch_size
        if not isinstance(model, VisionConfig | ViLConfig | SS2DConfig | Mamba2DConfig):
            return 1
        pixels = AT_ONCE * model.patch_size**2 if isinstance(model, VisionConfig) else PIXELS
        most = max(pixels // model.image_size**2, 1)  # images
        divisors = (parts for parts in range(1, batch_size + 1) if batch_size % parts == 0)
        return next(parts for parts in divisors if batch_size <= most * parts)

    @property
    def variant(self) -> ArrowVariant:
        """The images of the run's config. Raises UserError where they cannot be drawn."""
        data = self.config.data
        shared = {field.name: getattr(data, field.name) for field in fields(ArrowVariant)}
        return ArrowVariant(**shared)
