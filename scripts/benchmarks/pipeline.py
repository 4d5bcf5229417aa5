"""How many augmented views of ImageNet-like photographs one core makes a second, by recipe and decoder."""

from __future__ import annotations

import argparse
import functools
import io
import statistics
import time
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
from PIL import Image

from data import decoding
from data.augment import augment, view_rng
from data.augment.recipes import RECIPES
from scripts.benchmarks.harness import Row, Subject, alternate, option
from scripts.make_photos import draw

SHAPE, BYTES = (500, 375), 87_000  # of a typical training image
SIZES = {"deit3": 192}  # the recipes' resolutions; the others' is 224


def make_photograph(number: int) -> bytes:
    """A JPEG of SHAPE and about BYTES, chroma halved both ways."""
    picture = draw(number, np.random.default_rng(number)).resize(SHAPE, Image.Resampling.BICUBIC)
    found = []
    for quality in range(70, 98, 3):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality, subsampling=2)
        found.append(file.getvalue())
    return min(found, key=lambda content: abs(len(content) - BYTES))


def make_views(recipe: str | None, decoder: str, contents: list[bytes]) -> int:
    """Decodes each image once and makes its views by a recipe, or none of them; returns how many views, or images."""
    config = RECIPES.get(recipe)
    with mock.patch.object(decoding, "simplejpeg", decoding.simplejpeg if decoder == "simplejpeg" else None):
        for index, content in enumerate(contents):
            picture = decoding.decode(content)
            for view in range(config.repeats if config else 0):
                augment(picture, SIZES.get(recipe, 224), config, view_rng(0, 0, index, view))
    return len(contents) * (config.repeats if config else 1)


def views_per_second(make: Callable[[], int]) -> float:
    """Of this process's time on one core."""
    start = time.process_time()
    views = make()
    return views / (time.process_time() - start)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Augmented views a second and core: decoding alone and each recipe, by each decoder that is installed."""
    contents = [make_photograph(number) for number in range(options.images)]
    decoders = ["pillow"] + ["simplejpeg"] * (decoding.simplejpeg is not None)
    cases = [(recipe, decoder) for recipe in (None, *RECIPES) for decoder in decoders]
    runs = {case: functools.partial(make_views, *case, contents) for case in cases}
    for (recipe, decoder), rates in alternate(runs, options.repeats, views_per_second).items():
        yield {
            "recipe": recipe or "decoding alone",
            "decoder": decoder,
            "size": SIZES.get(recipe, 224) if recipe else None,
            "views_an_image": RECIPES[recipe].repeats if recipe else 1,
            "mean_bytes": round(statistics.mean(map(len, contents))),
            "views_per_second": statistics.median(rates),
            "rates": rates,
        }


SUBJECTS = {"data": Subject(measure, {"--images": option(64, "a repeat")})}
