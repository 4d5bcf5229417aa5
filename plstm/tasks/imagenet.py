"""ImageNet-1k (Appendices G.3 and G.4): photographs of 1,000 classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import optax

from data.imagenet.batches import ImageBatches, ImageSplit
from data.imagenet.source import MosaicSource, load_source, synsets
from plstm.errors import UserError, require
from plstm.models.vision import VisionModel
from plstm.tasks.base import RunConfig, classification_metrics
from plstm.tasks.vision import VisionTask, normalise
from plstm.training.losses import LOSSES
from plstm.training.meshes import Layout
from plstm.training.mixing import mix, random_erasing
from plstm.training.steps import Batch, Metrics


@dataclass
class ImageNetData:
    """Which photographs, and how they become batches."""

    name: str = "imagenet2012"  # as `make data-imagenet` prepares it; or "mosaics", drawn as they are read
    classes: int = 1000  # always
    size: int = 224  # pixels a side of the model's input
    train_images: int = 1_281_167  # in the prepared data, those held out included
    held_out: int = 10_000  # training images kept for the split `val`; 0: train on all, as the paper did, without `val`
    eval_images: int | None = None  # evaluate on the first so many of a split; null: on all
    crop_ratio: float = 1.0  # evaluation: the centre crop's side over the resized image's shorter side
    root: str | None = None  # folder of all data sets; null: $PLSTM_DATA or ~/.cache/plstm/data
    workers: int = 0  # reading processes; 0: threads of this process
    max_corrupt: float = 0.001  # share of images that may be undecodable before the run ends with an error


class ImageNetTask(VisionTask):
    """`val` is held out of the training images; `test` is the official validation set, as in papers."""

    data_schema = ImageNetData
    names = ("imagenet2012", "mosaics")
    classes = 1000
    splits = ("train", "val", "test")
    losses = tuple(LOSSES)
    augments = True

    @classmethod
    def check(cls, config: RunConfig) -> None:
        data, optim, augment = config.data, config.optim, config.augment
        if augment is None:
            raise UserError("augment: ImageNet needs a recipe; choose one with augment=deit3, or augment=none")
        has_val = data.held_out or "val" not in {*config.loop.eval_splits, *config.loop.final_splits}
        smooths_binary = optim.loss == "binary_cross_entropy" and optim.label_smoothing
        why = "binary_cross_entropy takes classes with any label as present, and smoothing labels all; set it to 0"
        tenth, limit = data.train_images // 10, data.eval_images
        require(
            config,
            ("data.train_images", data.train_images >= 1, "must be at least 1"),
            ("data.held_out", 0 <= data.held_out <= tenth, "must be 0 to a tenth of data.train_images"),
            ("data.held_out", has_val, "leaves no split val; hold some out, or evaluate on test alone"),
            ("data.eval_images", limit is None or limit >= 1, "must be at least 1, or null"),
            ("data.crop_ratio", 0.1 <= data.crop_ratio <= 1, "must be from 0.1 to 1"),
            ("data.max_corrupt", 0 <= data.max_corrupt <= 1, "must be in [0, 1]"),
            ("augment.repeats", augment.repeats <= optim.batch_size, f"more than optim.batch_size={optim.batch_size}"),
            ("optim.label_smoothing", not smooths_binary, why),
        )
        super().check(config)

    @cached_property
    def class_names(self) -> Sequence[str]:
        """WordNet ids, such as n01440764."""
        return synsets()

    def describe_data(self) -> str:
        data, augment = self.config.data, self.config.augment
        views = f", {augment.repeats} views of an image in a batch" if augment.repeats > 1 else ""
        return f"{data.name}: {self.train_examples:,} images, {data.size} pixels a side{views}"

    def split(self, name: str) -> ImageSplit:
        """A whole split; errors: see `load_source`."""
        return ImageSplit(self._source(name), self.config.data.size, self.config.data.crop_ratio, **self._reading)

    def batches(self, layout: Layout) -> ImageBatches:
        """Augmented views; order and augmentation follow the run's seed."""
        config, data = self.config, self.config.data
        source = self._source("train")
        if len(source) != self.train_examples:
            have = f"the prepared data have {len(source) + data.held_out} training images"
            raise UserError(f"data.train_images={data.train_images}: {have}; give this number, or another data.root")
        batch_size, splits = config.optim.batch_size, {*config.loop.eval_splits, *config.loop.final_splits}
        beside = max(self.split(name).shared_bytes(batch_size) for name in splits)
        reading = self._reading | {"put": layout.place_rows, "beside": beside}
        return ImageBatches(source, data.size, batch_size, config.augment, config.seed, **reading)

    @property
    def _reading(self) -> dict[str, Any]:
        data, process = self.config.data, {"process_index": jax.process_index(), "process_count": jax.process_count()}
        return process | {"workers": data.workers, "max_corrupt": data.max_corrupt}

    def loss(self, model: VisionModel, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Mean loss of erased and mixed images; the accuracy is against the labels before mixing."""
        erasing_key, mixing_key, drop_key = jax.random.split(key, 3)
        augment, optim = self.config.augment, self.config.optim
        images = random_erasing(normalise(batch["image"]), erasing_key, augment.random_erasing)
        labels = jax.nn.one_hot(batch["label"], self.config.data.classes)
        targets = optax.smooth_labels(labels, optim.label_smoothing)
        images, targets = mix(images, targets, mixing_key, augment.mixup, augment.cutmix)
        logits = model(images, key=drop_key)
        losses = LOSSES[optim.loss](logits, targets)
        return losses.mean(), classification_metrics(logits, batch["label"], losses=losses)

    def _source(self, split: str) -> Sequence[dict[str, Any]]:
        data = self.config.data
        most = None if split == "train" else data.eval_images
        if data.name != "mosaics":
            return load_source(split, data.root, data.held_out, most)
        counts = {"train": self.train_examples, "val": data.held_out, "test": most or data.train_images}
        return MosaicSource(split, min(counts[split], most or counts[split]))
