"""Image files to pixels: every format that ImageNet holds, the same by both decoders, and what counts as corrupt."""

import io
import itertools
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from data import decoding
from data.decoding import CorruptImage, decode
from tests.drawing import encoded

RNG = np.random.default_rng(0)


def picture(width: int, height: int) -> Image.Image:
    """Smooth, with noise: something for every part of a JPEG."""
    grid = RNG.integers(0, 256, (4, 5, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC), np.float64)
    return Image.fromarray((smooth + RNG.normal(0, 9, smooth.shape)).clip(0, 255).astype(np.uint8))


def by_pillow(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("size", [(1, 1), (17, 8), (50, 33), (203, 120)])
def test_simplejpeg_gives_pillows_pixels(size):
    pytest.importorskip("simplejpeg")
    for quality, subsampling, progressive in itertools.product((5, 60, 90, 100), (0, 1, 2), (False, True)):
        options = {"subsampling": subsampling, "progressive": progressive, "restart_marker_blocks": 3 * (quality == 60)}
        content = encoded(picture(*size), "JPEG", quality=quality, **options)
        np.testing.assert_array_equal(np.asarray(decode(content)), by_pillow(content))


def test_colour_jpegs_go_through_simplejpeg_and_nothing_else_does(monkeypatch):
    simplejpeg = pytest.importorskip("simplejpeg")
    fast = Mock(wraps=simplejpeg.decode_jpeg)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", fast)
    image = picture(20, 10)
    for other, kind in ((image.convert("L"), "JPEG"), (image.convert("CMYK"), "JPEG"), (image, "PNG")):
        decode(encoded(other, kind))
    assert not fast.called
    decode(encoded(image, "JPEG"))
    assert fast.called


@pytest.fixture(params=["installed", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setattr(decoding, "simplejpeg", None)


@pytest.mark.parametrize("mode, kind", [("L", "JPEG"), ("CMYK", "JPEG"), ("L", "PNG"), ("P", "PNG"), ("RGBA", "PNG")])
def test_every_kind_becomes_rgb_as_pillow_has_it(decoder, mode, kind):
    content = encoded(picture(31, 22).convert(mode), kind)
    image = decode(content)
    assert image.mode == "RGB" and image.size == (31, 22)
    np.testing.assert_array_equal(np.asarray(image), by_pillow(content))


def test_inks_rotation_tags_and_harmless_flaws(decoder):
    image, exif = picture(31, 22), Image.Exif()
    close = np.asarray(decode(encoded(image.convert("CMYK"), "JPEG", quality=100)), int) - np.asarray(image, int)
    assert abs(close).mean() < 4  # inverted inks would be off by a hundred
    exif[0x0112] = 6  # a quarter turn, which is ignored
    assert decode(encoded(image, "JPEG", exif=exif)).size == (31, 22)
    content = encoded(image, "JPEG") + b"more"
    np.testing.assert_array_equal(np.asarray(decode(content)), by_pillow(content))


def test_a_picture_is_turned_where_that_is_asked_for(decoder):
    image, exif = picture(31, 22), Image.Exif()
    exif[0x0112] = 6
    content = encoded(image, "JPEG", exif=exif)
    turned = np.asarray(decode(content, upright=True))
    np.testing.assert_array_equal(turned, np.rot90(np.asarray(decode(content)), -1))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_unknown_ranges_refused(kind):
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    pixels = np.asarray(decode(encoded(Image.fromarray(values), kind)))
    np.testing.assert_array_equal(pixels, np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2))
    for other in (np.int32, np.float32):
        with pytest.raises(CorruptImage, match="pixels of mode [IF], whose range is not known"):
            decode(encoded(Image.fromarray(values.astype(other)), "TIFF"))


def test_corrupt_files_say_what_is_wrong(decoder):
    jpeg, png = (encoded(picture(31, 22), kind) for kind in ("JPEG", "PNG"))
    for case in (b"", b"text", bytes(1000), jpeg[:100], jpeg[: len(jpeg) // 2], png[: len(png) // 2]):
        with pytest.raises(CorruptImage, match=r"^\w+: \S") as error:
            decode(case)
        assert "0x" not in str(error.value)  # no address: the same file has the same message
