"""Every operation against its definition in plain numpy, and against fixed bytes on every supported Pillow."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from data.augment.operations import FILL, OPERATIONS, gaussian_blur
from data.augment.recipes import RAND_ARGUMENTS

LEVELS = [n / 2 for n in range(21)]
SIGNS = (1, -1)


def picture(height: int, width: int) -> np.ndarray:
    y, x, c = np.indices((height, width, 3))
    return ((37 * x + 59 * y + 83 * c) % 256).astype(np.uint8)


def curved(height: int, width: int) -> np.ndarray:
    y, x, c = np.indices((height, width, 3))
    return (20 + (7 * x * x + 13 * y * y + x * y * (c + 1) + 83 * c) % 200).astype(np.uint8)


A = picture(8, 8)
PICTURES = {"A": A, "curved": curved(17, 23), "row": curved(1, 9), "flat": np.full((6, 5, 3), (9, 200, 77), np.uint8)}


def gray(image: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(image.astype(np.int64), -1, 0)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


def blend(start: np.ndarray, end: np.ndarray, factor: float) -> np.ndarray:
    start = start.astype(np.float32)
    value = start + np.float32(factor) * (end.astype(np.float32) - start)
    return np.clip(value, 0, 255).astype(np.uint8)


def smooth(image: np.ndarray) -> np.ndarray:
    """Weights 1 and, in the middle, 5, over 13; Pillow leaves the border as it is."""
    result, height, width = image.astype(np.int64), *image.shape[:2]
    if min(height, width) > 2:
        taps = [image[y : height - 2 + y, x : width - 2 + x].astype(np.int64) for y in range(3) for x in range(3)]
        result[1:-1, 1:-1] = np.floor((sum(taps) + 4 * taps[4]) / 13 + 0.5)
    return result


def each_channel(table):
    """From (histogram, values) of a channel to its table of 256 values, applied to every channel."""

    def apply(image, _):
        result = np.empty_like(image)
        for c in range(3):
            histogram = np.bincount(image[..., c].ravel(), minlength=256)
            result[..., c] = np.clip(table(histogram), 0, 255)[image[..., c]]
        return result

    return apply


def stretch(histogram: np.ndarray) -> np.ndarray:
    low, high = np.flatnonzero(histogram)[[0, -1]]
    if high == low:
        return np.arange(256)
    scale = 255 / (high - low)
    return np.array([int(value * scale - low * scale) for value in range(256)])


def equalize(histogram: np.ndarray) -> np.ndarray:
    present = histogram[histogram > 0]
    step = (present.sum() - present[-1]) // 255
    if len(present) <= 1 or not step:
        return np.arange(256)
    below = np.concatenate([[0], np.cumsum(histogram)[:-1]])
    return (step // 2 + below) // step


def bicubic(image: np.ndarray, matrix) -> np.ndarray:
    """Input pixel = matrix x output pixel, at pixel centres; Keys' cubic with a = -1, edges repeated, fill outside."""
    a, b, c, d, e, f = matrix
    height, width = image.shape[:2]
    y, x = np.indices((height, width)) + 0.5
    source = [a * x + b * y + c, d * x + e * y + f]
    inside = (source[0] >= 0) & (source[0] < width) & (source[1] >= 0) & (source[1] < height)
    (left, across), (upper, down) = ((np.floor(s - 0.5).astype(int), (s - 0.5) % 1) for s in source)

    def weight(t):
        t = np.abs(t)
        return np.where(t <= 1, t**3 - 2 * t**2 + 1, np.where(t < 2, -(t**3) + 5 * t**2 - 8 * t + 4, 0))

    total = np.zeros(image.shape)
    for j in range(-1, 3):
        for i in range(-1, 3):
            pixel = image[np.clip(upper + j, 0, height - 1), np.clip(left + i, 0, width - 1)].astype(float)
            total += (weight(i - across) * weight(j - down))[..., None] * pixel
    return np.where(inside[..., None], np.clip(total, 0, 255), FILL)


def rotation(image: np.ndarray, degrees: float) -> np.ndarray:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    y, x = image.shape[0] / 2, image.shape[1] / 2
    return bicubic(image, (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y))


EXACT = {
    "AutoContrast": each_channel(stretch),
    "Equalize": each_channel(equalize),
    "Invert": lambda image, _: 255 - image,
    "Posterize": lambda image, bits: image & (0xFF << (8 - bits) & 0xFF),
    "Solarize": lambda image, threshold: np.where(image < threshold, image, 255 - image),
    "SolarizeAdd": lambda image, add: np.where(image < 128, np.minimum(image.astype(int) + add, 255), image),
    "Color": lambda image, factor: blend(gray(image)[..., None].repeat(3, -1), image, factor),
    "Contrast": lambda image, factor: blend(np.floor(gray(image).mean() + 0.5), image, factor),
    "Brightness": lambda image, factor: blend(np.zeros(1), image, factor),
    "Sharpness": lambda image, factor: blend(smooth(image), image, factor),
}
NEAR = {
    "Rotate": rotation,
    "ShearX": lambda image, f: bicubic(image, (1, f, 0, 0, 1, 0)),
    "ShearY": lambda image, f: bicubic(image, (1, 0, 0, f, 1, 0)),
    "TranslateX": lambda image, f: bicubic(image, (1, 0, f * image.shape[1], 0, 1, 0)),
    "TranslateY": lambda image, f: bicubic(image, (1, 0, 0, 0, 1, f * image.shape[0])),
}

# Of the bytes of A and then of the curved picture, at all levels in turn, each with sign + and then -.
NAMES_AND_CRCS = """
    AutoContrast 69d81029 Equalize fa5a7913 Invert d4d9136b Rotate cc6be443 Posterize 6858cb1e Solarize 41dd3e28
    SolarizeAdd a5b9980c Color 961e93b6 Contrast 5342f2af Brightness 97377fcd Sharpness 0b419c1c ShearX adbc2eb7
    ShearY 348d470f TranslateX 7b7c27e6 TranslateY 70133bd9
"""
CRCS = dict(zip(NAMES_AND_CRCS.split()[::2], NAMES_AND_CRCS.split()[1::2], strict=True))


def apply(name: str, pixels: np.ndarray, argument) -> np.ndarray:
    image = Image.fromarray(pixels)
    result = OPERATIONS[name](image, argument)
    assert result.mode == "RGB" and result.size == image.size
    np.testing.assert_array_equal(np.asarray(image), pixels)  # the input is left alone
    return np.asarray(result)


def test_the_fifteen_operations():
    assert len(RAND_ARGUMENTS) == 15
    assert EXACT.keys() | NEAR.keys() == RAND_ARGUMENTS.keys() == CRCS.keys() < OPERATIONS.keys()


@pytest.mark.parametrize("shape", PICTURES)
@pytest.mark.parametrize("name", RAND_ARGUMENTS)
def test_pixels_are_those_of_the_definition(name, shape):
    pixels = PICTURES[shape]
    for argument in dict.fromkeys(RAND_ARGUMENTS[name](level, sign) for level in LEVELS for sign in SIGNS):
        ours = apply(name, pixels, argument)
        if name in EXACT:
            np.testing.assert_array_equal(ours, EXACT[name](pixels, argument), f"{argument}")
        else:
            rest = NEAR[name](pixels, argument) - ours  # Pillow rounds down, and a whole number may fall just short
            assert rest.min() > -1e-6 and rest.max() < 1 + 1e-6, argument


@pytest.mark.parametrize("name", CRCS)
def test_bytes_never_change(name):
    content = b"".join(
        apply(name, PICTURES[shape], RAND_ARGUMENTS[name](level, sign)).tobytes()
        for shape in ("A", "curved")
        for level in LEVELS
        for sign in SIGNS
    )
    assert f"{zlib.crc32(content):08x}" == CRCS[name]


@pytest.mark.parametrize(
    "name, values",
    {
        "Rotate": (0, 15, 27, 30),
        "Posterize": (4, 2, 1, 0),
        "Solarize": (256, 128, 26, 0),
        "SolarizeAdd": (0, 55, 99, 110),
        "ShearX": (0, 0.15, 0.27, 0.3),
        "ShearY": (0, 0.15, 0.27, 0.3),
        "TranslateX": (0, 0.225, 0.405, 0.45),
        "TranslateY": (0, 0.225, 0.405, 0.45),
    }.items(),
)
def test_arguments(name, values):
    is_signed = name not in ("Posterize", "Solarize", "SolarizeAdd")
    for level, value in zip((0, 5, 9, 10), values, strict=True):
        assert RAND_ARGUMENTS[name](level, 1) == pytest.approx(value)
        assert RAND_ARGUMENTS[name](level, -1) == pytest.approx(-value if is_signed else value)
        assert isinstance(RAND_ARGUMENTS[name](level, 1), int) or is_signed


@pytest.mark.parametrize("name", ["Color", "Contrast", "Brightness", "Sharpness"])
def test_enhancement_factors(name):
    factors = [[RAND_ARGUMENTS[name](level, sign) for level in (0, 5, 9, 10)] for sign in SIGNS]
    np.testing.assert_allclose(factors, [[1, 1.45, 1.81, 1.9], [1, 0.55, 0.19, 0.1]])


@pytest.mark.parametrize("name", ["Color", "Contrast", "Brightness"])
def test_gray_pictures_may_have_one_channel(name):
    one = Image.fromarray(gray(PICTURES["curved"]).astype(np.uint8))
    three = Image.merge("RGB", [one] * 3)
    for factor in (0.7, 0.95, 1.0, 1.28):
        expected = getattr(ImageEnhance, name)(three).enhance(factor)
        ours = OPERATIONS[name](one, factor)
        assert ours.mode == "L" and Image.merge("RGB", [ours] * 3).tobytes() == expected.tobytes()
        assert OPERATIONS[name](three, factor).tobytes() == expected.tobytes()


def test_grayscale_and_solarize_of_three_augment():
    pixels = PICTURES["curved"]
    np.testing.assert_array_equal(OPERATIONS["Grayscale"](Image.fromarray(pixels), None), gray(pixels))
    np.testing.assert_array_equal(apply("Solarize", pixels, 128), np.where(pixels < 128, pixels, 255 - pixels))


@pytest.mark.parametrize("height, width", [(29, 37), (192, 192), (1, 1), (1, 9), (7, 2)])
def test_blur_has_the_bytes_of_pillows_filter(height, width):
    rng = np.random.default_rng(height)
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    near_the_next_box = [2**0.5, np.nextafter(2**0.5, 0).item(), 1.4142134, 1.4142136]
    for radius in [0.1, 2.0, 3.3, *near_the_next_box, *rng.uniform(0.1, 2, 5 if height == 192 else 60).tolist()]:
        assert gaussian_blur(image, radius).tobytes() == image.filter(ImageFilter.GaussianBlur(radius)).tobytes()


def test_blur_spreads_as_a_gaussian_does():
    image = np.zeros((41, 41, 3), np.uint8)
    image[20, 20] = 255
    image[17:24, 17:24] = 255
    blurred = np.asarray(gaussian_blur(Image.fromarray(image), 2.0))[..., 0].astype(float)
    x = np.arange(41) - 20
    kernel = np.exp(-((x[:, None] - x) ** 2) / 8) / np.sqrt(8 * np.pi)
    np.testing.assert_allclose(blurred, kernel @ image[..., 0] @ kernel.T, atol=6)
