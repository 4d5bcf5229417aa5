"""How many augmented views a second one core makes, from the bytes of a JPEG on."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

from data.augment.crops import rgb
from data.augment.recipes import RECIPES
from data.augment.views import augment, view_rng


def decode(content: bytes) -> Image.Image:
    """Pillow's decoder, to RGB."""
    return rgb(Image.open(io.BytesIO(content)))


def stand_in_jpeg() -> bytes:
    """A JPEG like ImageNet's typical one, 500 x 375 pixels and about 87 KB: a smooth scene with grain."""
    rng = np.random.default_rng(0)
    scene = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
    grainy = np.asarray(scene) + rng.normal(0, 10, (375, 500, 1))
    stream = io.BytesIO()
    Image.fromarray(grainy.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def measure_recipe(
    name: str, seconds: float, size: int = 192, decode: Callable[[bytes], Image.Image] = decode
) -> float:
    """Views of `size` pixels a second of processor time: decoding `stand_in_jpeg` once for the recipe's repeats.

    Measures the thread's own processor time, so that other work on the machine hardly matters.
    """
    config, content = RECIPES[name], stand_in_jpeg()
    start = time.thread_time()
    for index in itertools.count(1):
        image = decode(content)
        for view in range(config.repeats):
            augment(image, size, config, view_rng(0, 0, index, view))
        elapsed = time.thread_time() - start
        if elapsed >= seconds:
            return index * config.repeats / elapsed
    raise AssertionError
