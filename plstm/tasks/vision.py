"""Image classification: what arrow pointing and ImageNet share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from PIL import Image

from data.augment.views import evaluation_crop
from data.imagenet.batches import MAX_CORRUPT, ImageSplit
from data.imagenet.folders import folder_source
from data.loading import unpack
from plstm.errors import UserError
from plstm.models.inspection import gate_statistics
from plstm.models.vision import VisionModel
from plstm.tasks.base import RunConfig, Task, classification_metrics
from plstm.tasks.pictures import draw_gating, draw_samples
from plstm.training.evaluation import Split
from plstm.training.steps import Batch, Metrics

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
    """From a picture to the model's input.

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

    inputs = "images"
    names: ClassVar[tuple[str, ...]]  # choices of `data.name`
    classes: ClassVar[int]

    @classmethod
    def check(cls, config: RunConfig) -> None:
        data, model = config.data, config.model
        if data.name not in cls.names:
            raise UserError(f"data.name={data.name}: choose one of {', '.join(cls.names)}")
        if data.classes != cls.classes:
            raise UserError(f"data.classes={data.classes}: {data.name} has {cls.classes:,} classes")
        if (model.classes, model.image_size) != (data.classes, data.size):
            raise UserError(
                "model.classes and model.image_size follow data.classes and data.size; change those instead"
            )
        if model.channels != 3:
            raise UserError(f"model.channels={model.channels}: the images have 3")
        if config.optim.batch_size > (images := cls(config).train_examples):
            what = f"more than the {images:,} training images of data.train_images={data.train_images}"
            raise UserError(f"optim.batch_size={config.optim.batch_size}: {what}")

    @property
    def train_examples(self) -> int:
        """Training images, without those held out."""
        return self.config.data.train_images - getattr(self.config.data, "held_out", 0)

    @property
    def preprocessing(self) -> Preprocessing:
        """That of the evaluation."""
        return Preprocessing(self.config.data.size, getattr(self.config.data, "crop_ratio", 1.0))

    def folder(self, path: str, max_corrupt: float | None = None) -> Split:
        """The images of path/<class>/ to evaluate on, class folders named as the task's classes or by their numbers.

        max_corrupt: share of them that may be undecodable; None: that of the run's data, else 0.001. Raises UserError
        where there are none, or a folder has another name.
        """
        how, data, source = self.preprocessing, self.config.data, folder_source(path, self.class_names)
        if max_corrupt is None:
            max_corrupt = getattr(data, "max_corrupt", MAX_CORRUPT)
        return ImageSplit(source, how.size, how.crop_ratio, workers=data.workers, max_corrupt=max_corrupt)

    def logits(self, model: VisionModel, batch: Batch) -> jax.Array:
        return model(normalise(batch["image"]))

    def loss(self, model: VisionModel, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Mean cross entropy (nats); `key` is for stochastic depth."""
        logits = model(normalise(batch["image"]), key=key)
        targets = optax.smooth_labels(
            jax.nn.one_hot(batch["label"], logits.shape[-1]), self.config.optim.label_smoothing
        )
        losses = optax.softmax_cross_entropy(logits, targets)
        return losses.mean(), classification_metrics(logits, batch["label"], losses=losses)

    def statistics(self, model: VisionModel, batch: Batch) -> dict[str, jax.Array]:
        """The gates' means in each layer; none for ViT."""
        return gate_statistics(model, normalise(batch["image"]))

    def draw(
        self, model: VisionModel, predict: Callable, splits: Mapping[str, Split], folder: Path, name: str
    ) -> list[Path]:
        """Samples with predictions (Figure 5) and, for pLSTM, what a node passes on (Figure 1)."""
        batches = {split: source.first(self.config.optim.batch_size) for split, source in splits.items()}
        params = nnx.state(model, nnx.Param)
        pixels = {split: as_pixels(batch["image"]) for split, batch in batches.items()}
        written = draw_samples(params, predict, batches, pixels, self.class_names, folder / f"{name}-samples")
        image = normalise(next(iter(batches.values()))["image"][:1])[0]
        return written + draw_gating(model, image, folder / f"{name}-gating")
