"""Crops: the random resized crop of training and the centre crop of evaluation."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

AREA = (0.08, 1.0)  # of the image
ASPECT = (3 / 4, 4 / 3)  # width over height
TRIES = 10

Box = tuple[int, int, int, int]  # left, upper, right, lower, in pixels; right and lower are outside


def random_resized_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """The box of a random resized crop (Szegedy et al. 2015): uniform area share, log-uniform aspect, uniform place.

    Ten tries for a box that fits, else the largest central box whose aspect is in `ASPECT`.
    """
    for _ in range(TRIES):
        area = rng.uniform(*AREA) * width * height
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, upper, left + w, upper + h
    w = min(width, round(height * ASPECT[1]))
    h = min(height, round(width / ASPECT[0]))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def resized_crop(image: Image.Image, box: Box, size: int) -> Image.Image:
    """The box of an image, resized to `size` x `size`, bicubic and antialiased.

    Cropped first: `Image.resize(box=...)` costs the same, but reads pixels outside the box near its border.
    """
    return image.crop(box).resize((size, size), Image.Resampling.BICUBIC)


def evaluation_crop(image: Image.Image, size: int, ratio: float) -> np.ndarray:
    """The central `size` x `size` pixels after resizing the shorter side to int(size / ratio); uint8 [size, size, 3].

    `ratio` in (0, 1]: the share of the shorter side that stays in view.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio}: must be in (0, 1]")
    short = int(size / ratio)
    width, height = (int(short * side / min(image.size)) for side in image.size)
    resized = rgb(image).resize((width, height), Image.Resampling.BICUBIC)
    left, upper = round((width - size) / 2), round((height - size) / 2)
    return np.array(resized.crop((left, upper, left + size, upper + size)))


def rgb(image: Image.Image) -> Image.Image:
    """The image in mode RGB; itself where it is."""
    return image if image.mode == "RGB" else image.convert("RGB")
