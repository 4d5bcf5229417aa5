"""Views: augmented versions of an image for training."""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

from data.augment.operations import OPERATIONS
from data.augment.recipes import THREE_AUGMENT, AugmentConfig, Step, parse_rand_augment
from plstm.preprocessing import to_rgb

AREA = (0.08, 1.0)  # of the image
ASPECT = (3 / 4, 4 / 3)  # width over height
TRIES = 10

Box = tuple[int, int, int, int]  # left, upper, right, lower, in pixels; right and lower are outside


class View(NamedTuple):
    """What was drawn: crop this box, flip or not, then apply the steps in order."""

    box: Box
    flip: bool
    steps: tuple[Step, ...]


def view_rng(seed: int, epoch: int, index: int, view: int) -> np.random.Generator:
    """The random numbers of one view: of the run's seed, the epoch, the image's index and the view's; all 0 or more."""
    # A counter-based generator: the streams never meet, and who asks, in which process and order, changes nothing.
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, view, index, 0]))


def draw_view(width: int, height: int, config: AugmentConfig, rng: np.random.Generator) -> View:
    """Draws crop, flip, auto-augment and color jitter, in this order, for an image of this size in pixels.

    3-Augment (Touvron et al. 2022, DeiT III) is one of three operations, equally likely. Color jitter is brightness,
    contrast and saturation in random order, each by a factor U(1 - strength, 1 + strength).
    """
    box = random_resized_box(width, height, rng)
    flip = rng.random() < config.flip
    steps: list[Step] = []
    if config.auto_augment == THREE_AUGMENT:
        choices = (("Solarize", 128), ("Grayscale", None), ("GaussianBlur", rng.uniform(0.1, 2.0)))
        steps.append(choices[rng.integers(3)])
    elif config.auto_augment is not None:
        steps += parse_rand_augment(config.auto_augment).draw(rng)
    if strength := config.color_jitter:
        names = ("Brightness", "Contrast", "Color")
        steps += [(names[n], rng.uniform(1 - strength, 1 + strength)) for n in rng.permutation(3)]
    return View(box, flip, tuple(steps))


def make_view(image: Image.Image, size: int, view: View) -> np.ndarray:
    """The view of an image; uint8 [size, size, 3], not to be written to."""
    # Cropped first: `Image.resize(box=...)` costs the same, but reads pixels outside the box near its border.
    result = to_rgb(image).crop(view.box).resize((size, size), Image.Resampling.BICUBIC)
    if view.flip:
        result = result.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for name, argument in view.steps:
        result = OPERATIONS[name](result, argument)
    return np.asarray(to_rgb(result))


def augment(image: Image.Image, size: int, config: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
    """One augmented view of an image, uint8 [size, size, 3], as `config` says, up to what happens on the device."""
    return make_view(image, size, draw_view(*image.size, config, rng))


def random_resized_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """The box of a random resized crop (Szegedy et al. 2015): uniform area share, log-uniform aspect, uniform place.

    Where none of `TRIES` fits, the largest central box whose aspect is in `ASPECT`.
    """
    for _ in range(TRIES):
        area = rng.uniform(*AREA) * width * height
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w = round(math.sqrt(area * aspect))
        h = round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left = int(rng.integers(width - w + 1))
            upper = int(rng.integers(height - h + 1))
            return left, upper, left + w, upper + h
    w = min(width, round(height * ASPECT[1]))
    h = min(height, round(width / ASPECT[0]))
    left = (width - w) // 2
    upper = (height - h) // 2
    return left, upper, left + w, upper + h
