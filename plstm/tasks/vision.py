"""Classifying images: what arrow pointing and ImageNet share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from PIL import Image

from data.augment import evaluation_crop
from data.loading import unpack
from plstm.models.flops import forward_flops
from plstm.models.inspection import gate_statistics
from plstm.models.vision import VisionConfig, VisionModel, build_model
from plstm.tasks.base import Batch, Split, Task

IMAGE_MEAN, IMAGE_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


def as_pixels(images: Any) -> Any:
    """Packed bits uint8 [batch, bytes] -> uint8 [batch, height, width, 1]; unpacked images pass."""
    return unpack(images, math.isqrt(8 * images.shape[1]))[..., None] if images.ndim == 2 else images


def normalise(images: Any) -> jax.Array:
    """uint8 [batch, bytes] (packed) or [batch, height, width, 1 or 3] -> float32 [batch, height, width, 3]."""
    images = jnp.asarray(as_pixels(images))
    return (images.astype(jnp.float32) / 255 - jnp.array(IMAGE_MEAN)) / jnp.array(IMAGE_DEVIATION)


@dataclass(frozen=True)
class Preprocessing:
    """From a picture to what a model takes.

    size: pixels a side. crop_ratio: of that to the resized picture's shorter side. mean, deviation: of each channel,
    pixels in [0, 1].
    """

    size: int
    crop_ratio: float = 1.0
    mean: tuple[float, ...] = IMAGE_MEAN
    deviation: tuple[float, ...] = IMAGE_DEVIATION

    def __call__(self, image: Image.Image) -> np.ndarray:
        """A picture of any size -> its centre, float32 [size, size, 3]."""
        pixels = evaluation_crop(image, self.size, self.crop_ratio)
        return ((pixels.astype(np.float32) / 255 - self.mean) / self.deviation).astype(np.float32)


class VisionTask(Task):
    """Batches are {"image": as `normalise` takes it, "label": int32 [batch]}."""

    model_schema = VisionConfig

    @property
    def preprocessing(self) -> Preprocessing:
        """That of the evaluation."""
        data = self.config.data
        return Preprocessing(data.size, getattr(data, "crop_ratio", 1.0))

    def folder(self, path: str, max_corrupt: float | None = None) -> Split:
        """The images of path/<class>/ to evaluate on, class folders named as the task's classes or by their numbers.

        max_corrupt: share of them that may be undecodable; none: that of the run's data, else 0.001. Raises UserError
        where there are none, or a folder has another name.
        """
        from data.imagenet.batches import MAX_CORRUPT, ImageSplit
        from data.imagenet.folders import folder_source

        how, data, source = self.preprocessing, self.config.data, folder_source(path, self.class_names)
        if max_corrupt is None:
            max_corrupt = getattr(data, "max_corrupt", MAX_CORRUPT)
        return ImageSplit(source, how.size, how.crop_ratio, data.workers, max_corrupt=max_corrupt)

    def flops(self) -> int:
        """As `plstm.models.flops.forward_flops` counts, at the training size."""
        return forward_flops(self.config.model)

    def build_model(self, key: jax.Array | int) -> VisionModel:
        """pLSTM-Vis or ViT."""
        return build_model(self.config.model, key)

    def logits(self, model: VisionModel, batch: Batch) -> jax.Array:
        """float32 [batch, classes]."""
        return model(normalise(batch["image"]))

    def loss(self, model: VisionModel, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean cross entropy (nats) and accuracy; `key` is for stochastic depth."""
        logits = model(normalise(batch["image"]), key=key)
        labels = jax.nn.one_hot(batch["label"], logits.shape[-1])
        targets = optax.smooth_labels(labels, self.config.optim.label_smoothing)
        hits = (logits.argmax(-1) == batch["label"]).astype(jnp.float32)
        return optax.softmax_cross_entropy(logits, targets).mean(), hits.mean()

    def statistics(self, model: VisionModel, batch: Batch) -> dict[str, jax.Array]:
        """The gates' means in each layer; none for ViT."""
        return gate_statistics(model, normalise(batch["image"]))

    def draw(
        self, model: VisionModel, predict: Callable, splits: Mapping[str, Split], folder: Path, name: str
    ) -> list[Path]:
        """Samples with predictions (Figure 5) and, for pLSTM, what a node passes on (Figure 1)."""
        from plstm.tasks.pictures import draw_gating, draw_samples

        batch_size = self.config.optim.batch_size
        batches = {name: split.first(batch_size) for name, split in splits.items()}
        params = nnx.state(model, nnx.Param)
        written = draw_samples(params, predict, batches, self.class_names, folder / f"{name}-samples")
        return written + draw_gating(model, next(iter(batches.values())), folder / f"{name}-gating")
