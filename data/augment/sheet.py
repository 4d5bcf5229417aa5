"""A contact sheet: a picture and augmented views of it, each with what was drawn for it."""

from __future__ import annotations

import textwrap
from dataclasses import asdict

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data.augment.crops import evaluation_crop
from data.augment.recipes import RECIPES
from data.augment.views import View, draw_view, make_view, view_rng

COLUMNS = 4
MARGIN, LINE, FONT = 8, 15, 12  # pixels
CAPTION_LINES = 6


def draw_sheet(image: Image.Image, recipe: str, seed: int, count: int, size: int) -> Image.Image:
    """The central crop of an RGB image and `count` views of `size` pixels by a recipe, with captions.

    The views are those of the image with index 0 in epoch 0 of a run with this seed.
    """
    config = RECIPES[recipe]
    panels = [(evaluation_crop(image, size, 1.0), f"input, {image.width} x {image.height}: central crop")]
    for n in range(count):
        view = draw_view(*image.size, config, view_rng(seed, 0, 0, n))
        panels.append((make_view(image, size, view), f"view {n}: {describe(view, image)}"))
    keys = ", ".join(f"{key} {value}" for key, value in asdict(config).items())
    return _tile(panels, size, f"{recipe}, seed {seed}: {keys}. Erasing and mixing happen on the device, not here.")


def describe(view: View, image: Image.Image) -> str:
    """The view in words: the crop's share of the image's area and its size, then every step with its argument."""
    left, upper, right, lower = view.box
    width, height = right - left, lower - upper
    words = [f"crop {width * height / (image.width * image.height):.0%}, {width} x {height}"]
    if view.flip:
        words.append("flip")
    for name, argument in view.steps:
        words.append(name if argument is None else f"{name} {round(argument, 3)}")
    return "; ".join(words)


def _tile(panels: list[tuple[np.ndarray, str]], size: int, title: str) -> Image.Image:
    columns = min(COLUMNS, len(panels))
    cell_width, cell_height = max(size, 160) + MARGIN, size + CAPTION_LINES * LINE + MARGIN
    width = columns * cell_width + MARGIN
    font = ImageFont.load_default(FONT)
    letters = font.getlength("abcdefghijklmnopqrstuvwxyz0123456789") / 36

    def wrapped(text: str, pixels: int) -> str:
        return textwrap.fill(text, int(pixels / letters))

    title = wrapped(title, width - 2 * MARGIN)
    top = LINE * (title.count("\n") + 1) + 2 * MARGIN
    sheet = Image.new("RGB", (width, top + -(-len(panels) // columns) * cell_height), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), title, "black", font)
    for n, (pixels, caption) in enumerate(panels):
        x, y = MARGIN + n % columns * cell_width, top + n // columns * cell_height
        sheet.paste(Image.fromarray(pixels), (x, y))
        draw.text((x, y + size + 2), wrapped(caption, cell_width - MARGIN), "black", font)
    return sheet
