"""From pictures of any kind to what a model takes."""

import io
import resource

import numpy as np
import pytest
from PIL import Image

from data.decoding import decode
from plstm.errors import UserError
from plstm.preprocessing import Preprocessing, evaluation_crop
from tests.drawing import encoded, scene


def test_pixels_are_normalised_by_channel():
    image = Image.new("RGB", (60, 80), (255, 255, 255))
    image.paste((0, 0, 0), (30, 0, 60, 80))
    pixels = Preprocessing(32, 0.5, mean=(0.5, 0.5, 0.5), deviation=(0.25, 0.5, 1.0))(image)
    assert pixels.shape == (32, 32, 3) and pixels.dtype == np.float32
    np.testing.assert_allclose(pixels[16, 0], [2, 1, 0.5])
    np.testing.assert_allclose(pixels[16, -1], [-2, -1, -0.5])


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "RGBA", "P", "1", "I;16"])
@pytest.mark.parametrize("turn", [None, 6])
def test_an_opened_file_gives_what_its_decoded_bytes_give(mode, turn):
    """Sixteen bits are scaled, and a photograph that lies on its side is turned: `decode` is what scripts read with."""
    grey = scene(40, 50).convert("L")
    sixteen = Image.fromarray(257 * np.asarray(grey, np.uint16))
    picture = sixteen if mode == "I;16" else scene(40, 50).convert(mode)
    exif = Image.Exif()
    if turn:
        exif[0x0112] = turn
    content = encoded(picture, "TIFF", exif=exif)
    how = Preprocessing(32)
    ours = how(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(ours, how(decode(content, upright=True)))
    if mode in ("I;16", "L"):
        np.testing.assert_array_equal(ours, how(grey.rotate(-90, expand=True) if turn else grey))


def test_pixels_whose_range_is_not_known_are_refused():
    for mode in ("I", "F"):
        with pytest.raises(UserError, match=f"pixels of mode {mode}, whose range is not known; convert them to 8 bits"):
            Preprocessing(32)(Image.new(mode, (40, 40)))


@pytest.mark.parametrize(
    "width, height, size, ratio, resized, corner",
    [
        (500, 375, 192, 1.0, (256, 192), (32, 0)),
        (192, 192, 192, 1.0, (192, 192), (0, 0)),
        (375, 500, 192, 1.0, (192, 256), (0, 32)),
        (500, 375, 224, 0.875, (341, 256), (58, 16)),
        (64, 64, 192, 0.875, (219, 219), (14, 14)),
        (30, 31, 192, 1.0, (192, 198), (0, 3)),
    ],
)
def test_evaluation_crop(width, height, size, ratio, resized, corner):
    image = scene(height, width)
    left, upper = corner
    expected = np.asarray(image.resize(resized, Image.Resampling.BICUBIC))[upper : upper + size, left : left + size]
    ours = evaluation_crop(image, size, ratio)
    assert ours.dtype == np.uint8 and ours.shape == (size, size, 3)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("width, height", [(100_000, 1), (1, 100_000)])
def test_a_strip_of_few_pixels_does_not_fill_the_memory(width, height):
    """Resized whole to a shorter side of 192, it would take 11 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    centre = scene(height, width).crop((width // 2, height // 2, width // 2 + 1, height // 2 + 1)).getpixel((0, 0))
    ours = evaluation_crop(scene(height, width), 192, 1.0)
    assert ours.shape == (192, 192, 3) and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    assert np.abs(np.median(ours, axis=(0, 1)) - centre).max() < 30
