"""A view: one augmented version of an image. Drawing it is apart from making it, so that a draw can be shown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image

from data.augment import recipes
from data.augment.crops import Box, random_resized_box, resized_crop, rgb
from data.augment.operations import apply_operation
from data.augment.recipes import AugmentConfig, Step


class View(NamedTuple):
    """What was drawn: crop this box, flip or not, then apply the steps in order."""

    box: Box
    flip: bool
    steps: tuple[Step, ...]

    def describe(self, image: Image.Image) -> str:
        """The crop's share of the image's area and its size, then every step with its argument, in words."""
        left, upper, right, lower = self.box
        width, height = right - left, lower - upper
        words = [f"crop {width * height / (image.width * image.height):.0%}, {width} x {height}"]
        words += ["flip"] * self.flip
        words += [name if argument is None else f"{name} {round(argument, 3)}" for name, argument in self.steps]
        return "; ".join(words)


def view_rng(seed: int, epoch: int, index: int, view: int) -> np.random.Generator:
    """The random numbers of one view: of the run's seed, the epoch, the image's index and the view's; all 0 or more.

    The four numbers are the key and upper counter of a counter-based generator, so the streams never meet, and who
    asks, in which process and order, changes nothing.
    """
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, view, index, 0]))


def draw_view(width: int, height: int, config: AugmentConfig, rng: np.random.Generator) -> View:
    """Draws crop, flip, auto-augment and color jitter, in this order, for an image of this size in pixels."""
    box = random_resized_box(width, height, rng)
    flip = rng.random() < config.flip
    steps: list[Step] = []
    if config.auto_augment == recipes.THREE_AUGMENT:
        steps.append(recipes.three_augment(rng))
    elif config.auto_augment is not None:
        steps += recipes.parse_rand_augment(config.auto_augment).draw(rng)
    if config.color_jitter:
        steps += recipes.color_jitter(config.color_jitter, rng)
    return View(box, flip, tuple(steps))


def make_view(image: Image.Image, size: int, view: View) -> np.ndarray:
    """The view of an image; uint8 [size, size, 3], not to be written to."""
    result = resized_crop(rgb(image), view.box, size)
    if view.flip:
        result = result.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for name, argument in view.steps:
        result = apply_operation(result, name, argument)
    return np.asarray(rgb(result))


def augment(image: Image.Image, size: int, config: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
    """One augmented view of an image, uint8 [size, size, 3], as `config` says, up to what happens on the device."""
    return make_view(image, size, draw_view(*image.size, config, rng))
