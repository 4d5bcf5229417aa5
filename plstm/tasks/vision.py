"""Image classification: what arrow pointing and ImageNet share."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from PIL import Image
from pydantic import Field, FiniteFloat, PositiveFloat

from data.augment.views import evaluation_crop
from data.imagenet.batches import MAX_CORRUPT, ImageSplit, default_workers
from data.imagenet.source import folder_source
from data.loading import unpack
from plstm.drawing import new_figure, save, style
from plstm.errors import require
from plstm.models.vision import VisionModel, flow_patterns, gate_statistics
from plstm.tasks.base import RunConfig, Task, classification_metrics
from plstm.training.steps import Batch, Metrics, Split

IMAGE_MEAN, IMAGE_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
SAMPLES = 6  # images a split
RIGHT, WRONG = "#00735C", "#C04A00"


def as_pixels(images: Any) -> Any:
    """Packed bits uint8 [batch, bytes] -> uint8 [batch, height, width, 1]; unpacked images pass."""
    return unpack(images, math.isqrt(8 * images.shape[1]))[..., None] if images.ndim == 2 else images


def normalise(images: Any) -> jax.Array:
    """uint8 [batch, bytes] (packed) or [batch, height, width, 1 or 3] -> float32 [batch, height, width, 3]."""
    images = jnp.asarray(as_pixels(images))
    return (images.astype(jnp.float32) / 255 - jnp.array(IMAGE_MEAN)) / jnp.array(IMAGE_DEVIATION)


@dataclass(frozen=True)
class Preprocessing:
    size: Annotated[int, Field(ge=1, le=4096)]  # pixels a side
    crop_ratio: Annotated[float, Field(ge=0.1, le=1)] = 1.0  # of `size` to the resized picture's shorter side
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat] = IMAGE_MEAN  # of each channel, pixels in [0, 1]
    deviation: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = IMAGE_DEVIATION

    def __call__(self, image: Image.Image) -> np.ndarray:
        """A picture of any size -> its centre, float32 [size, size, 3]."""
        pixels = evaluation_crop(image, self.size, self.crop_ratio)
        return ((pixels.astype(np.float32) / 255 - self.mean) / self.deviation).astype(np.float32)


class VisionTask(Task):
    """Batches are {"image": as `normalise` takes it, "label": int32 [batch]}."""

    inputs = "images"
    classes: ClassVar[int]

    @classmethod
    def check(cls, config: RunConfig) -> None:
        data, model = config.data, config.model
        images, batch_size = cls(config).train_examples, config.optim.batch_size
        follow = "model.classes and model.image_size follow data.classes and data.size; change those instead"
        too_few = f"more than the {images:,} training images of data.train_images={data.train_images}"
        require(
            config,
            ("data.classes", data.classes == cls.classes, f"{data.name} has {cls.classes:,} classes"),
            ("model.classes", model.classes == data.classes, follow),
            ("model.image_size", model.image_size == data.size, follow),
            ("model.channels", model.channels == 3, "the images have 3"),
            ("optim.batch_size", batch_size <= images, too_few),
        )

    @property
    def train_examples(self) -> int:
        return self.config.data.train_images - getattr(self.config.data, "held_out", 0)

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing(self.config.data.size, getattr(self.config.data, "crop_ratio", 1.0))

    def folder(self, path: str, max_corrupt: float | None = None) -> Split:
        """The images of path/<class>/, see `folder_source`; `max_corrupt` as the run's data have it, unless given."""
        how, data, source = self.preprocessing, self.config.data, folder_source(path, self.class_names)
        most = getattr(data, "max_corrupt", MAX_CORRUPT) if max_corrupt is None else max_corrupt
        workers = self.workers(how.size**2 * 3 * self.config.optim.batch_size)
        return ImageSplit(source, how.size, how.crop_ratio, workers=workers, max_corrupt=most)

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

    def draw(
        self, model: nnx.Module, predict: Callable, splits: Mapping[str, Split], folder: Path, name: str
    ) -> list[Path]:
        """Samples with predictions (Figure 5) and, for pLSTM, what a node passes on (Figure 1)."""
        weights, samples = nnx.state(model), {}
        for split, source in splits.items():
            batch = source.first(min(self.config.optim.batch_size, len(source)))
            samples[split] = as_pixels(batch["image"]), batch, predict(weights, batch)
        written = draw_samples(samples, self.class_names, folder / f"{name}-samples")
        if not isinstance(model, VisionModel):
            return written
        image = normalise(next(iter(samples.values()))[0][:1])[0]
        return written + draw_gating(model, image, folder / f"{name}-gating")


# ---------------------------------------------------------------------- pictures
def draw_samples(
    samples: Mapping[str, tuple[np.ndarray, Batch, jax.Array]], class_names: Sequence[str], path: Path
) -> list[Path]:
    """Draws the first images of each split with predicted class and probability, as Figure 5; returns the .png.

    samples: by split its first images, uint8 [n, S, S, 1 or 3], their batch and the logits [n, classes].
    """
    with style():
        figure = new_figure(1.6 * SAMPLES, 2.0 * len(samples))
        for line, (name, (pixels, batch, logits)) in enumerate(samples.items(), 1):
            axis = figure.add_subplot(len(samples), 1, line)  # an axis for each image takes twice as long
            probabilities = np.asarray(jax.nn.softmax(logits))
            for n in range(min(SAMPLES, int(batch["mask"].sum()))):
                left, right, predicted = n + 0.02, n + 0.98, int(np.argmax(probabilities[n]))
                axis.imshow(np.asarray(pixels[n]), cmap="gray", vmin=0, vmax=255, extent=(left, right, 0, 0.96))
                axis.plot([left, right, right, left, left], [0, 0, 0.96, 0.96, 0], color="0.6", lw=0.6)
                mark, colour = ("✓", RIGHT) if predicted == batch["label"][n] else ("✗", WRONG)
                title = f"{mark} {class_names[predicted]} {probabilities[n, predicted]:.2f}"
                axis.text(n + 0.5, 0.99, title, color=colour, fontsize=9, ha="center", va="bottom")
                axis.text(n + 0.5, -0.04, f"{name} {n}", fontsize=8, color="0.3", ha="center", va="top")
            axis.set(xlim=(0, SAMPLES), ylim=(-0.16, 1.12), aspect="equal")
            axis.axis("off")
        return save(figure, path)[:1]


def draw_gating(model: nnx.Module, image: jax.Array, path: Path) -> list[Path]:
    """Draws what a node in the middle of a normalised image passes on in the first layer of each mode, as Figure 1.

    Draws nothing for a model without gates. Returns the .png.
    """
    row, column = image.shape[0] // model.patch_size // 2, image.shape[1] // model.patch_size // 2
    shown = {}
    for n, (mode, pattern) in enumerate(find_flow(model, image, (row, column), len(model.groups.blocks))):
        if mode != "attention":
            shown.setdefault(mode, (n, pattern[0]))
    if not shown:
        return []
    with style():
        figure = new_figure(3.3 * len(shown), 3.0)
        for place, (mode, (n, pattern)) in enumerate(shown.items(), 1):
            axis = figure.add_subplot(1, len(shown), place, xticks=[], yticks=[])
            axis.spines[:].set(visible=True, color="0.6", linewidth=0.6)
            draw_scale(draw_pattern(axis, pattern, (row, column), float(np.abs(pattern).max())), axis)
            axis.set_title(f"{mode}-mode, layer {n + 1}, head 1")
        return save(figure, path)[:1]


def find_flow(
    model: nnx.Module, image: jax.Array, source: tuple[int, int], layers: int
) -> list[tuple[str, np.ndarray]]:
    """`flow_patterns`, compiled."""
    modes = []  # strings, which no compiled function returns

    def patterns(weights: nnx.State, image: jax.Array) -> list[jax.Array]:
        found = flow_patterns(nnx.merge(graphdef, weights), image, source, layers)
        modes.extend(mode for mode, _ in found)
        return [pattern for _, pattern in found]

    graphdef, weights = nnx.split(model)
    found = jax.jit(patterns)(weights, image)
    return list(zip(modes, map(np.asarray, found), strict=True))


def draw_pattern(axis: Any, pattern: np.ndarray, source: tuple[int, int], largest: float) -> Any:
    """Draws a pattern [Y, X] and its source; red is positive, blue negative. Colours are linear up to a hundredth of
    `largest` and logarithmic from there up to it. Returns the picture, for `draw_scale`."""
    from matplotlib.colors import SymLogNorm

    largest = largest or 1.0
    norm = SymLogNorm(linthresh=largest / 100, vmin=-largest, vmax=largest)
    picture = axis.imshow(pattern, cmap="RdBu_r", norm=norm)
    axis.plot(source[1], source[0], "o", ms=9, mfc="white", mec="black", mew=1.5)
    return picture


def draw_scale(picture: Any, axes: Any) -> None:
    """Draws the colours of a picture and their values to the right of the axes that share them."""
    largest = picture.norm.vmax
    ticks = [-largest, -largest / 10, -largest / 100, 0, largest / 100, largest / 10, largest]
    bar = picture.figure.colorbar(picture, ax=axes, shrink=0.85, ticks=ticks, format=lambda x, _: f"{x:.1g}")
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
