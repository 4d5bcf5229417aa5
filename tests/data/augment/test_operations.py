"""Every operation's bytes, the same on every supported Pillow, with the arguments of RandAugment's."""

import itertools
import zlib

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from data.augment.operations import OPERATIONS
from data.augment.recipes import RAND_ARGUMENTS

LEVELS = [n / 2 for n in range(21)]


def picture(height: int, width: int) -> np.ndarray:
    y, x, c = np.indices((height, width, 3))
    return ((37 * x + 59 * y + 83 * c) % 256).astype(np.uint8)


def curved(height: int, width: int) -> np.ndarray:
    y, x, c = np.indices((height, width, 3))
    return (20 + (7 * x * x + 13 * y * y + x * y * (c + 1) + 83 * c) % 200).astype(np.uint8)


FLAT = np.full((6, 5, 3), (9, 200, 77), np.uint8)
PICTURES = {"A": picture(8, 8), "curved": curved(17, 23), "row": curved(1, 9), "flat": FLAT}


def gray(image: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(image.astype(np.int64), -1, 0)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


# Of the bytes of all pictures in turn, at all levels, each with sign + and then -; all agreed, pixel by pixel, with the
# operations' definitions in plain NumPy.
NAMES_AND_CRCS = """
    AutoContrast f2fba358 Equalize d84950ea Invert 4fad16e9 Rotate 3c9eb168 Posterize cf40fb42 Solarize ac6b70f9
    SolarizeAdd c2f3ffc0 Color ace4ca09 Contrast 0f2d5758 Brightness 44b9631b Sharpness 6a47e3fc ShearX 5789729b
    ShearY d7ba04ed TranslateX d4854585 TranslateY 5a0250e5
"""
CRCS = dict(zip(NAMES_AND_CRCS.split()[::2], NAMES_AND_CRCS.split()[1::2], strict=True))


def apply(name: str, pixels: np.ndarray, argument) -> np.ndarray:
    image = Image.fromarray(pixels)
    result = OPERATIONS[name](image, argument)
    assert result.mode == "RGB" and result.size == image.size
    np.testing.assert_array_equal(np.asarray(image), pixels)  # the input is left alone
    return np.asarray(result)


@pytest.mark.parametrize("name", CRCS)
def test_bytes_never_change(name):
    cases = itertools.product(PICTURES.values(), LEVELS, (1, -1))
    content = [apply(name, shape, RAND_ARGUMENTS[name](level, sign)).tobytes() for shape, level, sign in cases]
    assert f"{zlib.crc32(b''.join(content)):08x}" == CRCS[name]
    assert RAND_ARGUMENTS.keys() == CRCS.keys() < OPERATIONS.keys()


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


def test_blur_has_the_bytes_of_pillows_box_blurs():
    pixels = [
        apply("GaussianBlur", shape, radius) for shape in PICTURES.values() for radius in (0.1, 0.7, 2**0.5, 2, 3.3)
    ]
    assert f"{zlib.crc32(b''.join(each.tobytes() for each in pixels)):08x}" == "fa6abbde"
