"""From a picture of any kind to the pixels that an image model takes, and from a series to standardised values.

The pictures are Pillow's. Pillow itself is not needed for models that take none.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, FiniteFloat, PositiveFloat

from plstm.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

IMAGE_MEAN = (0.485, 0.456, 0.406)  # of ImageNet
IMAGE_DEVIATION = (0.229, 0.224, 0.225)
LONGEST = 16  # of a picture's sides in evaluation, over the shorter one; the rest is cut off


@dataclass(frozen=True)
class Preprocessing:
    """What a model takes of a picture, as its training evaluated it, but always turned as its rotation tag says, which
    training on ImageNet does not look at."""

    size: Annotated[int, Field(ge=1, le=4096)]  # pixels a side
    crop_ratio: Annotated[float, Field(ge=0.1, le=1)] = 1.0  # of `size` to the resized picture's shorter side
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat] = IMAGE_MEAN  # of each channel, pixels in [0, 1]
    deviation: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = IMAGE_DEVIATION

    def __call__(self, picture: "Image.Image") -> np.ndarray:
        """A picture of any size and mode -> its centre, float32 [size, size, 3], turned as its rotation tag says.
        Raises UserError where the range of its pixels is not known."""
        pixels = evaluation_crop(to_rgb(picture, upright=True), self.size, self.crop_ratio)
        return ((pixels.astype(np.float32) / 255 - self.mean) / self.deviation).astype(np.float32)


def to_rgb(picture: "Image.Image", upright: bool = False) -> "Image.Image":
    """The picture in mode RGB, 16 bits brought to 8; upright: turned as its rotation tag says. Raises UserError for
    pixels of modes I and F, whose range is not known."""
    from PIL import Image, ImageOps

    if upright:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("I", "F"):
        raise UserError(f"pixels of mode {picture.mode}, whose range is not known; convert them to 8 bits")
    if picture.mode.startswith("I;16"):  # Pillow would make all above 255 white
        picture = Image.fromarray((np.asarray(picture) / 257).round().astype(np.uint8))
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def evaluation_crop(picture: "Image.Image", size: int, ratio: float) -> np.ndarray:
    """The central `size` x `size` pixels after resizing the shorter side to int(size / ratio); uint8 [size, size, 3].

    `ratio` in (0, 1]: the share of the shorter side that stays in view.
    """
    from PIL import Image

    if max(picture.size) > LONGEST * min(picture.size):  # resized whole, a strip of few pixels could fill the memory
        width, height = (min(side, LONGEST * min(picture.size)) for side in picture.size)
        left = (picture.width - width) // 2
        upper = (picture.height - height) // 2
        picture = picture.crop((left, upper, left + width, upper + height))
    short = int(size / ratio)
    width, height = (int(short * side / min(picture.size)) for side in picture.size)
    resized = to_rgb(picture).resize((width, height), Image.Resampling.BICUBIC)
    left = round((width - size) / 2)
    upper = round((height - size) / 2)
    return np.array(resized.crop((left, upper, left + size, upper + size)))


def standardise(values: np.ndarray) -> tuple[np.ndarray, float, float]:
    """A series [T], NaN where a value is missing -> (values - loc) / scale, loc, scale, in float64: mean and deviation
    of the known values; of a constant series scale is |loc| + 1e-5, and of none loc is 0 and scale 1."""
    values = np.asarray(values, np.float64)
    known = values[np.isfinite(values)]
    loc = known.mean() if len(known) else 0.0
    scale = known.std() if len(known) else 1.0
    if scale <= 1e-12 * abs(loc):  # of a constant series rounding leaves a little
        scale = abs(loc) + 1e-5
    return (values - loc) / scale, float(loc), float(scale)
