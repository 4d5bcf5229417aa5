"""Photographs, which reading processes decode and augment: what ImageNet and pictures of one's own share."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from data.augment.mixing import mix, random_erasing
from data.augment.recipes import AugmentConfig
from data.imagenet.batches import ImageBatches, ImageSplit
from plstm.config import Config
from plstm.errors import UserError, require
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


class PhotoTask(VisionTask):
    """Augmented views to train on, centre crops to evaluate on. Subclasses say where the photographs lie. The loss of
    an evaluation is the plain cross entropy, whatever `optim.loss` is."""

    losses = tuple(LOSSES)
    augments = True

    @classmethod
    def check(cls, config: Config) -> None:
        optim = config.optim
        augment = config.augment
        if augment is None:
            raise UserError("augment: photographs need a recipe; choose one with augment=deit3, or augment=none")
        smooths_binary = optim.loss == "binary_cross_entropy" and optim.label_smoothing
        why = "binary_cross_entropy takes classes with any label as present, and smoothing labels all; set it to 0"
        require(
            config,
            ("augment.repeats", augment.repeats <= optim.batch_size, f"more than optim.batch_size={optim.batch_size}"),
            ("optim.label_smoothing", not smooths_binary, why),
        )
        super().check(config)

    def source(self, split: str) -> Sequence[dict[str, Any]]:
        """The images of a split: item i is {"image": a file's bytes, "label": int, "file_name": str}; picklable."""
        raise NotImplementedError

    @property
    def recipe(self) -> AugmentConfig:
        assert self.config.augment is not None, "see `check`"
        return self.config.augment

    def describe_data(self) -> str:
        repeats = self.recipe.repeats
        views = f", {repeats} views of an image in a batch" if repeats > 1 else ""
        return f"{self.train_examples:,} images, {self.config.data.size} pixels a side{views}"

    def split(self, name: str) -> ImageSplit:
        if name not in self._splits:
            data = self.config.data
            self._splits[name] = ImageSplit(self.source(name), data.size, data.crop_ratio, **self._reading)
        return self._splits[name]

    @functools.cached_property
    def _splits(self) -> dict[str, ImageSplit]:
        """Those that were opened."""
        return {}

    def batches(self, layout: Layout) -> ImageBatches:
        """Augmented views; order and augmentation follow the run's seed."""
        config = self.config
        batch_size = config.optim.batch_size
        splits = {*config.loop.eval_splits, *config.loop.final_splits}
        beside = max(self.split(name).shared_bytes(batch_size) for name in splits)
        reading = self._reading | {"put": layout.place_rows, "beside": beside}
        return ImageBatches(self.source("train"), config.data.size, batch_size, self.recipe, config.seed, **reading)

    @property
    def _reading(self) -> dict[str, Any]:
        data = self.config.data
        process = {"process_index": jax.process_index(), "process_count": jax.process_count()}
        workers = self.workers(data.size**2 * 3 * self.config.optim.batch_size // jax.process_count())
        return process | {"workers": workers, "max_corrupt": data.max_corrupt, "upright": self.upright}

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
