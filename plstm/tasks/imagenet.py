"""ImageNet-1k (Appendices G.3 and G.4): photographs of 1,000 classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from annotated_types import Interval
from flax import nnx

from data.augment.mixing import mix, random_erasing
from data.augment.recipes import AugmentConfig
from data.imagenet.batches import ImageBatches, ImageSplit
from data.imagenet.source import MosaicSource, load_source, synsets
from plstm.config import Config
from plstm.errors import UserError, require
from plstm.limits import Count, Natural, OneOf, Root, Share, Workers
from plstm.tasks.base import classification_metrics
from plstm.tasks.vision import VisionTask, normalise
from plstm.training.meshes import Layout
from plstm.training.steps import Batch, Metrics


def binary_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean binary cross entropy over classes; logits and targets [batch, classes] -> float32 [batch].

    A class is present if its target is over 0, so both partners of a mixture count in full (Wightman et al. 2021,
    "ResNet strikes back"). With label smoothing every class would be present: use it with label smoothing 0 only.
    """
    logits = logits.astype(jnp.float32)
    return (jax.nn.softplus(logits) - jnp.where(targets > 0, logits, 0)).mean(axis=-1)


LOSSES = {
    "cross_entropy": lambda logits, targets: optax.softmax_cross_entropy(logits.astype(jnp.float32), targets),
    "binary_cross_entropy": binary_cross_entropy,
}


@dataclass
class ImageNetData:
    # As `make data-imagenet` prepares it; mosaics: pictures that are drawn as they are read.
    name: Annotated[str, OneOf("imagenet2012", "mosaics")] = "imagenet2012"
    classes: int = 1000  # always
    size: Count = 224  # pixels a side of the model's input
    train_images: Count = 1_281_167  # in the prepared data, those held out included
    # Training images kept for the split `val`; 0: train on all, as the paper did, without `val`.
    held_out: Natural = 10_000
    eval_images: Count | None = None  # evaluate on the first so many of a split; null: on all
    # Evaluation: the centre crop's side over the resized image's shorter side.
    crop_ratio: Annotated[float, Interval(ge=0.1, le=1)] = 1.0
    root: Root | None = None  # folder of all data sets; null: $PLSTM_DATA or ~/.cache/plstm/data
    workers: Workers | None = None  # reading processes; null: one a core; 0: threads of this process
    max_corrupt: Share = 0.001  # share of images that may be undecodable before the run ends with an error


class ImageNetTask(VisionTask):
    """`val` is held out of the training images; `test` is the official validation set, as in papers."""

    data_schema = ImageNetData
    classes = 1000
    splits = ("train", "val", "test")
    losses = tuple(LOSSES)
    augments = True

    @classmethod
    def check(cls, config: Config) -> None:
        data = config.data
        optim = config.optim
        augment = config.augment
        if augment is None:
            raise UserError("augment: ImageNet needs a recipe; choose one with augment=deit3, or augment=none")
        has_val = data.held_out or "val" not in {*config.loop.eval_splits, *config.loop.final_splits}
        smooths_binary = optim.loss == "binary_cross_entropy" and optim.label_smoothing
        why = "binary_cross_entropy takes classes with any label as present, and smoothing labels all; set it to 0"
        require(
            config,
            ("data.held_out", data.held_out <= data.train_images // 10, "must be at most a tenth of data.train_images"),
            ("data.held_out", has_val, "leaves no split val; hold some out, or evaluate on test alone"),
            ("augment.repeats", augment.repeats <= optim.batch_size, f"more than optim.batch_size={optim.batch_size}"),
            ("optim.label_smoothing", not smooths_binary, why),
        )
        super().check(config)

    @cached_property
    def class_names(self) -> Sequence[str]:
        """WordNet ids, such as n01440764."""
        return synsets()

    @property
    def recipe(self) -> AugmentConfig:
        assert self.config.augment is not None, "see `check`"
        return self.config.augment

    def describe_data(self) -> str:
        data = self.config.data
        repeats = self.recipe.repeats
        views = f", {repeats} views of an image in a batch" if repeats > 1 else ""
        return f"{data.name}: {self.train_examples:,} images, {data.size} pixels a side{views}"

    def split(self, name: str) -> ImageSplit:
        return ImageSplit(self._source(name), self.config.data.size, self.config.data.crop_ratio, **self._reading)

    def batches(self, layout: Layout) -> ImageBatches:
        """Augmented views; order and augmentation follow the run's seed."""
        config = self.config
        data = self.config.data
        source = self._source("train")
        if len(source) != self.train_examples:
            have = f"the prepared data have {len(load_source('train', data.root, held_out=0))} training images"
            raise UserError(f"data.train_images={data.train_images}: {have}; give this number, or another data.root")
        batch_size = config.optim.batch_size
        splits = {*config.loop.eval_splits, *config.loop.final_splits}
        beside = max(self.split(name).shared_bytes(batch_size) for name in splits)
        reading = self._reading | {"put": layout.place_rows, "beside": beside}
        return ImageBatches(source, data.size, batch_size, self.recipe, config.seed, **reading)

    @property
    def _reading(self) -> dict[str, Any]:
        data = self.config.data
        process = {"process_index": jax.process_index(), "process_count": jax.process_count()}
        workers = self.workers(data.size**2 * 3 * self.config.optim.batch_size // jax.process_count())
        return process | {"workers": workers, "max_corrupt": data.max_corrupt}

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Mean loss of erased and mixed images; the accuracy is against the labels before mixing."""
        erasing_key, mixing_key, drop_key = jax.random.split(key, 3)
        augment = self.recipe
        optim = self.config.optim
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
