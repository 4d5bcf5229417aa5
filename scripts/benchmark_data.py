"""How many augmented views of ImageNet-like photographs one core makes a second, by recipe and decoder."""

from __future__ import annotations

import argparse
import functools
import io
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from data import decoding
from data.augment import augment, view_rng
from data.augment.recipes import RECIPES
from scripts.make_photos import draw
from scripts.measuring import ROOT, positive, write_report

WIDTH, HEIGHT, BYTES = 500, 375, 87_000  # a typical training image
SIZES = {"deit3": 192}  # the recipes' resolutions; the others' is 224


def photographs(count: int) -> list[bytes]:
    """JPEGs of WIDTH x HEIGHT and about BYTES each, chroma halved both ways."""
    return [_photograph(draw(number, np.random.default_rng(number))) for number in range(count)]


def _photograph(picture: Image.Image) -> bytes:
    picture = picture.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    found = []
    for quality in range(70, 98, 3):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality, subsampling=2)
        found.append(file.getvalue())
    return min(found, key=lambda content: abs(len(content) - BYTES))


def make_views(recipe: str | None, contents: list[bytes]) -> int:
    """Decodes each image once and makes its views by a recipe, or none of them; returns how many views, or images."""
    if recipe is None:
        for content in contents:
            decoding.decode(content)
        return len(contents)
    config = RECIPES[recipe]
    for index, content in enumerate(contents):
        picture = decoding.decode(content)
        for view in range(config.repeats):
            augment(picture, SIZES.get(recipe, 224), config, view_rng(0, 0, index, view))
    return config.repeats * len(contents)


def with_decoder(decoder: str, run: Callable[[], int]) -> int:
    """Runs with Pillow alone, or with what is installed."""
    if decoder == "simplejpeg":
        return run()
    with mock.patch.object(decoding, "simplejpeg", None):
        return run()


def measure(images: int, repeats: int) -> tuple[dict, list[dict]]:
    """Settings, and a row for decoding alone and each recipe by each decoder: views a second of this process's time.

    One thread; one round to warm up, then the rows take turns.
    """
    contents = photographs(images)
    decoders = ["pillow"] + ["simplejpeg"] * (decoding.simplejpeg is not None)
    cases = [(recipe, decoder) for recipe in (None, *RECIPES) for decoder in decoders]
    rates = {case: [] for case in cases}
    for repeat in range(repeats + 1):
        for recipe, decoder in cases:
            start = time.process_time()
            views = with_decoder(decoder, functools.partial(make_views, recipe, contents))
            if repeat:
                rates[recipe, decoder].append(views / (time.process_time() - start))
    settings = {
        "images": images,
        "repeats": repeats,
        "width": WIDTH,
        "height": HEIGHT,
        "mean_bytes": round(statistics.mean(map(len, contents))),
        "simplejpeg": getattr(decoding.simplejpeg, "__version__", None),
    }
    return settings, [_row(recipe, decoder, rates[recipe, decoder]) for recipe, decoder in cases]


def _row(recipe: str | None, decoder: str, rates: list[float]) -> dict:
    config = RECIPES.get(recipe)
    return {
        "recipe": recipe or "decoding alone",
        "decoder": decoder,
        "size": config and SIZES.get(recipe, 224),
        "views_an_image": config.repeats if config else 1,
        "views_per_second": statistics.median(rates),
        "rates": rates,
    }


def benchmark_data(options: argparse.Namespace) -> None:
    """Measures, prints and writes the report."""
    load = os.getloadavg()[0]
    settings, rows = measure(options.images, options.repeats)
    print_rows(rows)
    write_report(options.out, settings | {"load_average_at_start": load}, rows)
    print(f"Written to {options.out}")


def print_rows(rows: list[dict]) -> None:
    table = Table(title="Augmented views a second and core")
    for column in ("recipe", "pixels", "views an image", "decoder", "views/s"):
        table.add_column(column, justify="left" if column in ("recipe", "decoder") else "right")
    for row in rows:
        size = str(row["size"] or "")
        table.add_row(
            row["recipe"], size, str(row["views_an_image"]), row["decoder"], f"{row['views_per_second']:,.0f}"
        )
    Console().print(table)


def add_subject(subjects: argparse._SubParsersAction) -> None:
    """Adds `data` to the command line."""
    data = subjects.add_parser("data", help="augmented views a second and core, by recipe and decoder")
    data.add_argument("--images", type=positive, default=64, help="a repeat (default 64)")
    data.add_argument("--repeats", type=positive, default=5, help="the median is over these (default 5)")
    data.add_argument("--out", type=Path, default=ROOT / "results/benchmarks/data-cpu.json")
    data.set_defaults(run=benchmark_data)
