"""From the bytes of an image file to an RGB picture, by Pillow, or by simplejpeg (extra `fast`) to the same pixels."""

import io

from PIL import Image

from plstm.errors import UserError
from plstm.preprocessing import to_rgb

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

# Pillow's other formats are left out: reading some of them starts another program (EPS: Ghostscript).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
MOST_PIXELS = 2**27  # 400 MB as RGB; ImageNet's largest has half of that


class CorruptImage(Exception):
    """An image file that cannot be decoded; the text says why."""


def decode(content: bytes, upright: bool = False) -> Image.Image:
    """The picture in a file of one of `FORMATS`, as RGB; upright: turned as its rotation tag says, which data sets are
    taken without. Raises CorruptImage."""
    if simplejpeg is not None and not upright and content.startswith(b"\xff\xd8"):
        try:
            height, width, colours, *_ = simplejpeg.decode_jpeg_header(content)
            _refuse_huge(width, height)
            if colours == "YCbCr":
                settings = {"fastdct": False, "fastupsample": False, "strict": True}
                return Image.fromarray(simplejpeg.decode_jpeg(content, "RGB", **settings))
        except ValueError:  # Pillow decides what is corrupt
            pass
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
        _refuse_huge(*picture.size)
        picture.load()
        return to_rgb(picture, upright)
    except (MemoryError, CorruptImage):
        raise
    except UserError as error:
        raise CorruptImage(str(error)) from error
    except Exception as error:  # Pillow's formats raise a dozen different ones
        raise CorruptImage(f"{type(error).__name__}: {error}".split(" <_io", 1)[0]) from error


def _refuse_huge(width: int, height: int) -> None:
    """A file of a few bytes can claim to be a picture that fills the memory."""
    if width * height > MOST_PIXELS:
        raise CorruptImage(f"{width} x {height} pixels; at most {MOST_PIXELS:,} are read")
