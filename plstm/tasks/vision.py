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
from data.imagenet.source import folder_source
from data.loading import unpack
from plstm.errors import require
from plstm.models.vision import VisionModel, gate_statistics
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
    """From a picture to the model's input."""

    size: int  # pixels a side
    crop_ratio: float = 1.0  # of `size` to the resized picture's shorter side
    mean: tuple[float, ...] = IMAGE_MEAN  # of each channel, pixels in [0, 1]
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
        images, batch_size = cls(config).train_examples, config.optim.batch_size
        follow = "model.classes and model.image_size follow data.classes and data.size; change those instead"
        too_few = f"more than the {images:,} training images of data.train_images={data.train_images}"
        require(
            config,
            ("data.name", data.name in cls.names, f"choose one of {', '.join(cls.names)}"),
            ("data.classes", data.classes == cls.classes, f"{data.name} has {cls.classes:,} classes"),
            ("model.classes", model.classes == data.classes, follow),
            ("model.image_size", model.image_size == data.size, follow),
            ("model.channels", model.channels == 3, "the images have 3"),
            ("optim.batch_size", batch_size <= images, too_few),
        )

    @property
    def train_examples(self) -> int:
        """Training images, without those held out."""
        return self.config.data.train_images - getattr(self.config.data, "held_out", 0)

    @property
    def preprocessing(self) -> Preprocessing:
        """That of the evaluation."""
        return Preprocessing(self.config.data.size, getattr(self.config.data, "crop_ratio", 1.0))

    def folder(self, path: str, max_corrupt: float | None = None) -> Split:
        """The images of path/<class>/ to evaluate on; see `folder_source`.

        max_corrupt: share of them that may be undecodable; None: that of the run's data, else 0.001.
        """
        how, data, source = self.preprocessing, self.config.data, folder_source(path, self.class_names)
        most = getattr(data, "max_corrupt", MAX_CORRUPT) if max_corrupt is None else max_corrupt
        return ImageSplit(source, how.size, how.crop_ratio, workers=data.workers, max_corrupt=most)

    def logits(self, model: VisionModel, batch: Batch) -> jax.Array:
        return model(normalise(batch["image"]))

    def loss(self, model: VisionModel, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Mean cross entropy (nats); `key` is for stochastic depth."""
        logits = model(normalise(batch["image"]), key=key)
        labels = jax.nn.one_hot(batch["label"], logits.shape[-1])
        losses = optax.softmax_cross_entropy(logits, optax.smooth_labels(labels, self.config.optim.label_smoothing))
        return losses.mean(), classification_metrics(logits, batch["label"], losses=losses)

    def statistics(self, model: VisionModel, batch: Batch) -> dict[str, jax.Array]:
        """The gates' means in each layer; none for ViT."""
        return gate_statistics(model, normalise(batch["image"]))

    def draw(
        self, model: VisionModel, predict: Callable, splits: Mapping[str, Split], folder: Path, name: str
    ) -> list[Path]:
        """Samples with predictions (Figure 5) and, for pLSTM, what a node passes on (Figure 1)."""
        params, samples = nnx.state(model, nnx.Param), {}
        for split, source in splits.items():
            batch = source.first(self.config.optim.batch_size)
            samples[split] = as_pixels(batch["image"]), batch, predict(params, batch)
        written = draw_samples(samples, self.class_names, folder / f"{name}-samples")
        image = normalise(next(iter(samples.values()))[0][:1])[0]
        return written + draw_gating(model, image, folder / f"{name}-gating")
