"""Every named operation on an image, with its argument in its own units; the policies say how arguments are drawn.

All give Pillow's bytes; brightness, contrast and saturation do so at half the cost of Pillow's own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

FILL = (124, 116, 104)  # ImageNet's mean colour, for what comes from outside the image


def _affine(image: Image.Image, resampling: Image.Resampling, *matrix: float) -> Image.Image:
    """Pillow's matrices give the input's (x, y) for the output's."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resampling, fillcolor=FILL)


def _contrast(image: Image.Image, factor: float) -> Image.Image:
    mean = int(np.asarray(image.convert("L")).sum() / (image.width * image.height) + 0.5)
    return Image.blend(Image.new(image.mode, image.size, (mean,) * len(image.getbands())), image, factor)


def _saturation(image: Image.Image, factor: float) -> Image.Image:
    if image.mode == "L":  # gray at every factor
        return image
    return Image.blend(Image.merge("RGB", [image.convert("L")] * 3), image, factor)


GEOMETRIC: dict[str, Callable[[Image.Image, float, Image.Resampling], Image.Image]] = {
    # degrees counter-clockwise; pixels per pixel; the share of the width or height by which the image moves left or up
    "Rotate": lambda image, degrees, resampling: image.rotate(degrees, resampling, fillcolor=FILL),
    "ShearX": lambda image, shear, resampling: _affine(image, resampling, 1, shear, 0, 0, 1, 0),
    "ShearY": lambda image, shear, resampling: _affine(image, resampling, 1, 0, 0, shear, 1, 0),
    "TranslateX": lambda image, share, resampling: _affine(image, resampling, 1, 0, share * image.width, 0, 1, 0),
    "TranslateY": lambda image, share, resampling: _affine(image, resampling, 1, 0, 0, 0, 1, share * image.height),
}

# Each takes an RGB image, which is not changed, and an argument, and gives an image of the same size. After Grayscale,
# whose result has mode L, only Brightness, Contrast and Color may follow: L stands for RGB of three equal channels.
OPERATIONS: dict[str, Callable[[Image.Image, Any], Image.Image]] = {
    # no argument
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    "Grayscale": lambda image, _: image.convert("L"),
    # bits kept (Pillow 13 refuses 0); the lowest byte that is inverted; bytes added to values under 128
    "Posterize": lambda image, n: ImageOps.posterize(image, n) if n else Image.new("RGB", image.size),
    "Solarize": ImageOps.solarize,
    "SolarizeAdd": lambda image, add: image.point([min(255, v + add) if v < 128 else v for v in range(256)] * 3),
    # factors from gray, from the rounded mean gray, from black, and from a smooth image (0) to the image (1) and beyond
    "Color": _saturation,
    "Contrast": _contrast,
    "Brightness": lambda image, factor: Image.blend(Image.new(image.mode, image.size), image, factor),
    "Sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    # a standard deviation in pixels
    "GaussianBlur": lambda image, radius: image.filter(ImageFilter.GaussianBlur(radius)),
}
OPERATIONS |= {name: partial(draw, resampling=Image.Resampling.BICUBIC) for name, draw in GEOMETRIC.items()}
OPERATIONS |= {
    f"{name}/bilinear": partial(draw, resampling=Image.Resampling.BILINEAR) for name, draw in GEOMETRIC.items()
}
