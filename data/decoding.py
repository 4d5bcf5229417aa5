"""From the bytes of an image file to an RGB picture, by Pillow, or by simplejpeg where it is installed (extra `fast`).

Both are libjpeg-turbo with the same settings, and give the same pixels.
"""

from __future__ import annotations

import io

from PIL import Image

try:
    import simplejpeg
except ImportError:
    simplejpeg = None


class CorruptImage(Exception):
    """An image file that cannot be decoded; the text says why."""


def decode(content: bytes) -> Image.Image:
    """The picture in a file of any format that Pillow reads, as RGB, its rotation tag ignored.

    Colour JPEGs may go through simplejpeg; grey ones, CMYK and all else through Pillow's `convert("RGB")`, and so does
    whatever simplejpeg finds fault with, so that one decoder decides what is corrupt. Raises CorruptImage.
    """
    if simplejpeg is not None and content.startswith(b"\xff\xd8"):
        try:
            if simplejpeg.decode_jpeg_header(content)[2] == "YCbCr":
                settings = {"fastdct": False, "fastupsample": False, "strict": True}
                return Image.fromarray(simplejpeg.decode_jpeg(content, "RGB", **settings))
        except ValueError:
            pass
    try:
        return Image.open(io.BytesIO(content)).convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # Pillow's formats raise a dozen different ones
        raise CorruptImage(f"{type(error).__name__}: {error}".split(" <_io", 1)[0]) from error
