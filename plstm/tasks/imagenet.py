"""ImageNet-1k (Appendices G.3 and G.4): photographs of 1,000 classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import optax

from data.imagenet.batches import ImageBatches, ImageSplit
from data.imagenet.folders import MosaicSource
from data.imagenet.source import load_source, synsets
from plstm.errors import UserError
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
        data, optim = config.data, config.optim
        if config.augment is None:
            raise UserError("augment: ImageNet needs a recipe; choose one with augment=deit3, or augment=none")
        for key, is_good, words in (
            ("train_images", data.train_images >= 1, "at least 1"),
            ("held_out", 0 <= data.held_out <= data.train_images // 10, "0 to a tenth of data.train_images"),
            ("eval_images", data.eval_images is None or data.eval_images >= 1, "at least 1, or null"),
            ("crop_ratio", 0.1 <= data.crop_ratio <= 1, "from 0.1 to 1"),
            ("max_corrupt", 0 <= data.max_corrupt <= 1, "in [0, 1]"),
        ):
            if not is_good:
                raise UserError(f"data.{key}={getattr(data, key)}: must be {words}")
        super().check(config)
        if "val" in {*config.loop.eval_splits, *config.loop.final_splits} and not data.held_out:
            raise UserError("data.held_out=0: leaves no split val; hold some out, or evaluate on test alone")
        if config.augment.repeats > optim.batch_size:
            raise UserError(f"augment.repeats={config.augment.repeats}: more than optim.batch_size={optim.batch_size}")
        if optim.loss == "binary_cross_entropy" and optim.label_smoothing:
            raise UserError(
                f"optim.label_smoothing={optim.label_smoothing}: binary_cross_entropy takes a class with any label "
                "as present, and smoothing gives one to all; set it to 0"
            )

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
            raise UserError(
                f"data.train_images={data.train_images}: the prepared data have {len(source) + data.held_out} training "
                "images; give this number, or another data.root"
            )
        splits = {*config.loop.eval_splits, *config.loop.final_splits}
        return ImageBatches(
            source,
            data.size,
            config.optim.batch_size,
            config.augment,
            config.seed,
            put=layout.place_rows,
            beside=max(self.split(name).shared_bytes(config.optim.batch_size) for name in splits),
            **self._reading,
        )

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
