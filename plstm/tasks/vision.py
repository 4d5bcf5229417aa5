"""Image classification: what arrow pointing and photographs share."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from data.imagenet.batches import MAX_CORRUPT, ImageSplit, default_workers
from data.imagenet.folders import folder_source
from data.loading import unpack
from plstm.config import Config
from plstm.errors import require
from plstm.models.vision import VisionModel, gate_statistics
from plstm.preprocessing import IMAGE_DEVIATION, IMAGE_MEAN, Preprocessing
from plstm.tasks.base import Task, classification_metrics
from plstm.training.steps import Batch, Metrics, Split


def as_pixels(images: Any) -> Any:
    """Packed bits uint8 [batch, bytes] -> uint8 [batch, height, width, 1]; unpacked images pass."""
    return unpack(images, math.isqrt(8 * images.shape[1]))[..., None] if images.ndim == 2 else images


def normalise(images: Any) -> jax.Array:
    """uint8 [batch, bytes] (packed) or [batch, height, width, 1 or 3] -> float32 [batch, height, width, 3]."""
    images = jnp.asarray(as_pixels(images))
    return (images.astype(jnp.float32) / 255 - jnp.array(IMAGE_MEAN)) / jnp.array(IMAGE_DEVIATION)


class VisionTask(Task):
    """Batches are {"image": as `normalise` takes it, "label": int32 [batch]}."""

    inputs = "images"
    smooths = True
    upright: ClassVar[bool] = False  # whether pictures in files are turned as their rotation tag says

    @classmethod
    def check(cls, config: Config) -> None:
        data = config.data
        model = config.model
        task = cls(config)
        images = task.train_examples
        classes = len(task.class_names)
        batch_size = config.optim.batch_size
        follow = "model.classes and model.image_size follow data.classes and data.size; change those instead"
        too_few = f"more than the {images:,} training images of data.train_images={data.train_images}"
        require(
            config,
            ("data.classes", data.classes == classes, f"the data have {classes:,} classes"),
            ("model.classes", model.classes == data.classes, follow),
            ("model.image_size", model.image_size == data.size, follow),
            ("model.channels", model.channels == 3, "the images have 3"),
            ("optim.batch_size", batch_size <= images, too_few),
        )

    @property
    def train_examples(self) -> int:
        return self.config.data.train_images

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing(self.config.data.size, getattr(self.config.data, "crop_ratio", 1.0))

    def folder(self, path: str, max_corrupt: float | None) -> Split:
        """The images of path/<class>/, see `folder_source`; `max_corrupt` as the run's data have it, unless given."""
        how = self.preprocessing
        data = self.config.data
        source = folder_source(path, self.class_names)
        most = getattr(data, "max_corrupt", MAX_CORRUPT) if max_corrupt is None else max_corrupt
        workers = self.workers(how.size**2 * 3 * self.config.optim.batch_size)
        return ImageSplit(source, how.size, how.crop_ratio, workers=workers, max_corrupt=most, upright=self.upright)

    def workers(self, batch_bytes: int) -> int:
        """Reading processes of this process, as `data.workers` says."""
        given = self.config.data.workers
        return default_workers(batch_bytes) if given is None else given

    def logits(self, model: nnx.Module, batch: Batch) -> jax.Array:
        return model(normalise(batch["image"]))

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Mean cross entropy (nats); `key` is for stochastic depth and dropout."""
        logits = model(normalise(batch["image"]), key=key)
        labels = jax.nn.one_hot(batch["label"], logits.shape[-1])
        losses = optax.softmax_cross_entropy(logits, optax.smooth_labels(labels, self.config.optim.label_smoothing))
        return losses.mean(), classification_metrics(logits, batch["label"], losses=losses)

    def statistics(self, model: nnx.Module, batch: Batch) -> dict[str, jax.Array]:
        return gate_statistics(model, normalise(batch["image"])) if isinstance(model, VisionModel) else {}
