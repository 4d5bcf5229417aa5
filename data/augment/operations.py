"""Every named operation on an image, with its argument in its own units; the policies say how arguments are drawn.

All give Pillow's bytes; blur, brightness, contrast and saturation do so at half the cost of Pillow's own.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

FILL = (124, 116, 104)  # ImageNet's mean colour, for what comes from outside the image
PASSES = 3  # box blurs in each direction


def gaussian_blur(image: Image.Image, radius: float) -> Image.Image:
    """What `ImageFilter.GaussianBlur(radius)` gives on an RGB image, radius (a standard deviation, pixels) over 0.

    Pillow's are three box blurs along rows, then three along columns, each rounded to bytes, with the border repeated.
    The image is one flat uint32 array with a margin, so that a neighbour is the same offset from every pixel.
    """
    reach, inner, outer = _box_weights(radius)
    pixels = np.asarray(image)
    height, width, channels = pixels.shape
    padded = np.empty((height + 2 * reach, width + 2 * reach, channels), np.uint32)
    scratch = np.empty_like(padded), np.empty_like(padded)
    padded[reach:-reach, reach:-reach] = pixels
    for axis, offset in ((1, channels), (0, channels * padded.shape[1])):
        lines = np.moveaxis(padded, axis, 0)
        for _ in range(PASSES):
            lines[:reach], lines[-reach:] = lines[reach], lines[-reach - 1]
            _box_pass(padded.reshape(-1), [s.reshape(-1) for s in scratch], reach, inner, outer, offset)
    return Image.fromarray(padded.astype(np.uint8)[reach:-reach, reach:-reach])


def _box_weights(radius: float) -> tuple[int, np.uint32, np.uint32]:
    """The farthest tap of a box of fractional radius, the weight of the taps before it, and its own; 2**24 is one.

    Gwosdek et al. 2011, "Theoretical foundations of Gaussian convolution by extended box filtering".
    """
    one = np.float32(1)  # Pillow computes in single precision
    variance = np.float32(radius) * np.float32(radius) / np.float32(PASSES)
    whole = np.float32(math.floor((math.sqrt(12 * float(variance) + 1) - 1) / 2))
    part = (2 * whole + one) * (whole * (whole + one) - 3 * variance) / (6 * (variance - (whole + one) * (whole + one)))
    inner = int(np.float32(1 << 24) / (2 * (whole + part) + one))
    return int(whole) + 1, np.uint32(inner), np.uint32(((1 << 24) - (2 * int(whole) + 1) * inner) // 2)


def _box_pass(flat, scratch, reach: int, inner: np.uint32, outer: np.uint32, offset: int) -> None:
    """One box blur in place: inner x (taps nearer than `reach`) + outer x (the two at it), in steps of `offset`."""
    margin = reach * offset
    centre = slice(margin, len(flat) - margin)

    def tap(distance: int) -> np.ndarray:
        return flat[margin + distance * offset : len(flat) - margin + distance * offset]

    total, ends = (s[centre] for s in scratch)
    np.add(tap(-reach), tap(reach), out=ends)
    ends *= outer
    if reach == 1:
        np.multiply(tap(0), inner, out=total)
    else:
        np.add(tap(0), tap(1), out=total)
        for distance in (-1, *range(2, reach), *range(-reach + 1, -1)):
            total += tap(distance)
        total *= inner
    total += ends
    total += np.uint32(1 << 23)
    np.right_shift(total, np.uint32(24), out=flat[centre])


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    """Pillow's matrices give the input's (x, y) for the output's."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=FILL)


def _contrast(image: Image.Image, factor: float) -> Image.Image:
    mean = int(np.asarray(image.convert("L")).sum() / (image.width * image.height) + 0.5)
    return Image.blend(Image.new(image.mode, image.size, (mean,) * len(image.getbands())), image, factor)


def _saturation(image: Image.Image, factor: float) -> Image.Image:
    if image.mode == "L":  # gray at every factor
        return image
    return Image.blend(Image.merge("RGB", [image.convert("L")] * 3), image, factor)


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
    # degrees counter-clockwise; pixels per pixel; the share of the width or height by which the image moves left or up
    "Rotate": lambda image, degrees: image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=FILL),
    "ShearX": lambda image, shear: _affine(image, 1, shear, 0, 0, 1, 0),
    "ShearY": lambda image, shear: _affine(image, 1, 0, 0, shear, 1, 0),
    "TranslateX": lambda image, share: _affine(image, 1, 0, share * image.width, 0, 1, 0),
    "TranslateY": lambda image, share: _affine(image, 1, 0, 0, 0, 1, share * image.height),
    # a radius in pixels
    "GaussianBlur": gaussian_blur,
}
