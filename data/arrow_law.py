"""The arrow-pointing images (arXiv 2506.11997, Section 4.1 and Appendix G.2): their random law and their pixels.

An image shows one arrow and one filled circle, black on white; label 1 means that the arrow points at the circle.
Image `i` of a split has a random stream of its own, so any image can be drawn alone, the same on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from plstm.errors import UserError

LABELS = ("away", "at")  # the class names in label order
KAPPA = 1.2  # the law leaves out the directions between r / KAPPA and KAPPA r beside the circle's centre
# Pixels; the paper's least are 15 and 2, so these act on reduced laws only. With less, small models stay at chance for
# thousands of steps: an arrow of 8 x 1 pixels hardly shows its direction.
SHORTEST, THINNEST = 12, 2


@dataclass(frozen=True)
class ArrowLaw:
    """A canvas of `size` x `size` pixels; `scale` multiplies every other pixel length. The paper's: 192 and 384, 1.

    Raises UserError for a scale that is not positive, and for a canvas too small for the objects.
    """

    size: int = 192
    scale: float = 1.0

    def __post_init__(self):
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise UserError(f"data.scale={self.scale}: must be a positive number; the paper's is 1.0")
        smallest = math.ceil(2 * self.margin + 4 * 2 * self.radius_low)
        if self.size < smallest:
            raise UserError(
                f"data.size={self.size}: too small for arrows and circles at data.scale={self.scale}; "
                f"use a size of at least {smallest} or a smaller data.scale"
            )

    @property
    def margin(self) -> float:
        """Pixels along each edge where no centre falls."""
        return 30 * self.scale

    @property
    def span(self) -> float:
        """Pixels per axis in which centres fall, and the period of the circle's displacement."""
        return self.size - 2 * self.margin

    @property
    def radius_low(self) -> float:
        """The smallest radius in pixels; radii are uniform between it and twice it."""
        return 15 * self.scale

    def extended(self) -> ArrowLaw:
        """The extrapolation law: twice the canvas, objects of the same size."""
        return ArrowLaw(2 * self.size, self.scale)


class Arrow(NamedTuple):
    """One image's geometry in pixels (x right, y down), or arrays of them: Python numbers, or arrays of one shape."""

    label: Any  # 1: the arrow points at the circle
    length: Any  # the shaft's nominal length, a whole number
    width: Any  # of every line, a whole number
    ax: Any  # the arrow's midpoint
    ay: Any
    radius: Any
    cx: Any  # the circle's centre
    cy: Any
    phi: Any  # the arrow's direction in radians, not wrapped


def base_seed(seed: int) -> int:
    """The number to which an image's index is added to seed that image's stream."""
    return int(np.random.default_rng(seed).integers(1 << 62))


def parameters(base: int, index: int, law: ArrowLaw) -> Arrow:
    """The geometry of image `index` of the split whose seed has `base = base_seed(seed)`."""
    draws = np.random.default_rng(base + index).random(9)
    return Arrow(*(value.item() for value in _geometry(draws, law)))


def sample_parameters(rng: np.random.Generator, count: int, law: ArrowLaw) -> Arrow:
    """`count` geometries of the same law from one generator, as arrays of shape [count]; not the splits' stream."""
    return _geometry(rng.random((9, count)), law)


def _geometry(draws: np.ndarray, law: ArrowLaw) -> Arrow:
    """Nine uniform draws [9, ...] in the order of the stream -> geometry of shape [...]."""
    side, long, wide, x, y, big, right, down, turn = draws
    unit, span = law.scale, law.span
    label = (side < 0.5).astype(np.int64)
    length = np.maximum((15 * unit + 15 * unit * long).astype(np.int64), SHORTEST)
    width = np.maximum((2 * unit + 2 * unit * wide).astype(np.int64), THINNEST)
    ax, ay = span * x, span * y
    radius = law.radius_low + law.radius_low * big
    cx = ax + 2 * radius + (span - 4 * radius) * right
    cy = ay + 2 * radius + (span - 4 * radius) * down
    cx, cy = np.where(cx > span, cx - span, cx), np.where(cy > span, cy - span, cy)
    away = np.hypot(cx - ax, cy - ay)
    straight = np.arctan2(cy - ay, cx - ax)
    half = np.arcsin(np.where(label == 1, radius / (KAPPA * away), KAPPA * radius / away))
    phi = np.where(label == 1, straight - half + 2 * half * turn, straight + half + (2 * np.pi - 2 * half) * turn)
    ax, ay, cx, cy = (centre + law.margin for centre in (ax, ay, cx, cy))
    return Arrow(label, length, width, ax, ay, radius, cx, cy, phi)


def strokes(arrow: Arrow) -> list[tuple[float, float, float, float]]:
    """The shaft and the two head lines as (x0, y0, x1, y1) in pixels, in drawing order; all three end at the tip."""
    half, head = arrow.length // 2, arrow.length // 2.5
    dx, dy = np.cos(arrow.phi), np.sin(arrow.phi)
    tip_x, tip_y = arrow.ax + half * dx, arrow.ay + half * dy
    lines = [(arrow.ax - half * dx, arrow.ay - half * dy, tip_x, tip_y)]
    for side in (arrow.phi - 0.5, arrow.phi + 0.5):
        lines.append((tip_x - head * np.cos(side), tip_y - head * np.sin(side), tip_x, tip_y))
    return lines


def render(arrow: Arrow, law: ArrowLaw) -> np.ndarray:
    """uint8 [size, size]: 255 is the background, 0 the objects; no other value occurs.

    Only Pillow's own rounding of coordinates gives the paper's pixels.
    """
    image = Image.new("L", (law.size, law.size), 255)
    draw = ImageDraw.Draw(image)
    for line in strokes(arrow):
        draw.line(line, fill=0, width=arrow.width)
    cx, cy, r = arrow.cx, arrow.cy, arrow.radius
    draw.ellipse((cx - r, cy - r, cx + r, cy + r), fill=0)
    return np.array(image)


def digest(images_and_labels: Iterable[tuple[np.ndarray, int]]) -> tuple[int, int, str]:
    """(images, positives, first 24 hex digits of the sha256 over each image's bytes followed by its label byte)."""
    sha, images, positives = hashlib.sha256(), 0, 0
    for image, label in images_and_labels:
        sha.update(image.tobytes())
        sha.update(bytes([label]))
        images, positives = images + 1, positives + int(label)
    return images, positives, sha.hexdigest()[:24]


class Split(NamedTuple):
    """images: how many the paper has. seed: its stream's, or None for the run's own. extended: on the doubled canvas.

    digest: `digest` of all the paper's images; None for train, which differs from run to run.
    """

    images: int
    seed: int | None
    extended: bool
    digest: str | None


SPLITS = {
    "train": Split(100_000, None, False, None),
    "val": Split(5_120, 100_042, False, "7996369f91498d46eef9266f"),
    "val_ext": Split(5_120, 100_043, True, "61e09067958390be7291f618"),
    "test": Split(10_240, 200_042, False, "94030e29ead8a2c26f72554c"),
    "test_ext": Split(10_240, 200_043, True, "bdc54105f404e2708ec05b23"),
}


def split_law(split: str, law: ArrowLaw) -> ArrowLaw:
    """The law of a split of a data set whose training law is `law`."""
    return law.extended() if SPLITS[split].extended else law


def split_geometry(split: str, law: ArrowLaw, train_seed: int, count: int) -> Iterator[Arrow]:
    """The first `count` geometries of a split; `law` is the training law, and `train_seed` matters to "train" only."""
    seed = SPLITS[split].seed
    base = base_seed(train_seed if seed is None else seed)
    law = split_law(split, law)
    return (parameters(base, index, law) for index in range(count))
