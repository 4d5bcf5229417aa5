"""How many augmented views of ImageNet-like photographs one core makes a second, by recipe and decoder."""

import itertools
import statistics
import time
from collections.abc import Iterator
from unittest import mock

import numpy as np
from PIL import Image

from data import decoding
from data.augment.recipes import RECIPES
from data.augment.views import augment, view_rng
from scripts.benchmarks.harness import Row, alternate
from scripts.make_photos import draw, encode

SHAPE, BYTES = (500, 375), 87_000  # of a typical training image
SIZES = {"deit3": 192}  # the recipes' resolutions; the others' is 224


def make_photograph(number: int) -> bytes:
    """A JPEG of SHAPE and about BYTES, chroma halved both ways."""
    picture = draw(number, np.random.default_rng(number)).resize(SHAPE, Image.Resampling.BICUBIC)
    files = (encode(picture, quality, subsampling=2) for quality in range(70, 98, 3))
    return min(files, key=lambda content: abs(len(content) - BYTES))


def views_per_second(recipe: str | None, decoder: str, contents: list[bytes]) -> float:
    """Decodes each image once and makes its views by a recipe, or none of them; of this process's time on one core."""
    views, start = RECIPES[recipe].repeats if recipe else 0, time.process_time()
    with mock.patch.object(decoding, "simplejpeg", decoding.simplejpeg if decoder == "simplejpeg" else None):
        for index, content in enumerate(contents):
            picture = decoding.decode(content)
            for view in range(views):
                augment(picture, SIZES.get(recipe, 224), RECIPES[recipe], view_rng(0, 0, index, view))
    return len(contents) * max(views, 1) / (time.process_time() - start)


def measure_views(repeats: int, images=64) -> Iterator[Row]:
    """Augmented views a second and core: decoding alone and each recipe, by each decoder that is installed."""
    contents = [make_photograph(number) for number in range(images)]
    decoders = ["pillow"] + ["simplejpeg"] * (decoding.simplejpeg is not None)
    cases = {case: case for case in itertools.product((None, *RECIPES), decoders)}
    found = alternate(cases, repeats, lambda case: views_per_second(*case, contents))
    for (recipe, decoder), rates in found.items():
        row = {"recipe": recipe or "decoding alone", "decoder": decoder}
        row |= {"size": SIZES.get(recipe, 224), "views_an_image": RECIPES[recipe].repeats} if recipe else {}
        yield row | {"views_per_second": statistics.median(rates), "rates": rates}
