"""Every named operation on an image, with its argument in its own units; the policies say how arguments are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image, ImageEnhance, ImageOps

from data.augment.blur import gaussian_blur
from data.augment.colour import brightness, contrast, saturation

FILL = (124, 116, 104)  # ImageNet's mean colour, for what comes from outside the image


def apply_operation(image: Image.Image, name: str, argument: Any) -> Image.Image:
    """The operation `name` of `OPERATIONS` on an RGB image, which is not changed; same size, Pillow's bytes.

    argument: None (AutoContrast, Equalize, Invert, Grayscale), degrees counter-clockwise (Rotate), bits kept
    (Posterize), the lowest byte that is inverted (Solarize), bytes added to values under 128 (SolarizeAdd), a factor
    of Pillow's ImageEnhance (Color, Contrast, Brightness, Sharpness), pixels per pixel (ShearX, ShearY), the share of
    the width or height by which the image moves left or up (TranslateX, TranslateY), a radius in pixels
    (GaussianBlur). After Grayscale, whose result has mode L, only Brightness, Contrast and Color may follow.
    """
    return OPERATIONS[name](image, argument)


def _posterize(image: Image.Image, bits: int) -> Image.Image:
    return ImageOps.posterize(image, bits) if bits else Image.new("RGB", image.size)  # Pillow 13 refuses 0 bits


def _solarize_add(image: Image.Image, add: int) -> Image.Image:
    return image.point([min(255, value + add) if value < 128 else value for value in range(256)] * 3)


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=FILL)


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    """Pillow's matrices give the input's (x, y) for the output's."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=FILL)


OPERATIONS: dict[str, Callable[[Image.Image, Any], Image.Image]] = {
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    "Rotate": _rotate,
    "Posterize": _posterize,
    "Solarize": ImageOps.solarize,
    "SolarizeAdd": _solarize_add,
    "Color": saturation,
    "Contrast": contrast,
    "Brightness": brightness,
    "Sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "ShearX": lambda image, shear: _affine(image, 1, shear, 0, 0, 1, 0),
    "ShearY": lambda image, shear: _affine(image, 1, 0, 0, shear, 1, 0),
    "TranslateX": lambda image, share: _affine(image, 1, 0, share * image.width, 0, 1, 0),
    "TranslateY": lambda image, share: _affine(image, 1, 0, 0, 0, 1, share * image.height),
    "Grayscale": lambda image, _: image.convert("L"),
    "GaussianBlur": gaussian_blur,
}
