"""The arrow-pointing images (arXiv 2506.11997, Section 4.1 and Appendix G.2): their distribution, pixels and splits.

An image shows one arrow and one filled circle, black on white; label 1 means that the arrow points at the circle.
Of the two distributions "paper" is the paper's; with "balanced" parts of the geometry hardly tell the label.
Image `i` of a split has a random stream of its own, so any image can be drawn alone, the same on every machine.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from plstm.errors import UserError
from plstm.limits import Count, Natural, OneOf, Positive, check_limits

LABELS = ("away", "at")  # the class names in label order
KAPPA = 1.2  # no arrow's ray passes the circle's centre at between r / KAPPA and KAPPA r
SLENDERNESS = 6  # an arrow's least length over its least width; the paper's least length is 15 and its least width 2
DISTRIBUTIONS = ("paper", "balanced")
# Of "balanced". Distances of the place pointed at are uniform from 40 pixels (times the scale) to 0.75 of the span.
NEAREST = 40
FARTHEST = 0.75
SMALLER = 1 / 3  # radii over the paper's
SLIDES = 0.45  # the share of images whose two places differ by a slide; those of the others, by a turn
GAP = np.deg2rad([4, 8])  # between the ray and the circle, KAPPA times as large, at the other place; often more


@dataclass(frozen=True)
class Canvas:
    """`size` x `size` pixels; `scale` multiplies every other pixel length. The paper's: 192 and 384, 1.

    thinnest: no arrow has thinner lines, nor is shorter than SLENDERNESS times as much. The default acts only where
    `scale` is under 1 and a scaled arrow would hardly show its direction: at 8 x 1 pixels small models stay at chance
    for thousands of steps.

    Raises UserError for a canvas too small for the objects.
    """

    size: int = 192
    scale: float = 1.0
    thinnest: int = 2

    margin = property(lambda self: 30 * self.scale)  # along each edge, where no centre falls
    span = property(lambda self: self.size - 2 * self.margin)  # of centres, and the period of the circle's displacement
    radius = property(lambda self: 15 * self.scale)  # the smallest; radii are uniform between it and twice it

    def __post_init__(self):
        smallest = math.ceil(2 * self.margin + 4 * 2 * self.radius)
        if self.size < smallest:
            remedy = f"use a size of at least {smallest} or a smaller data.object_scale"
            raise UserError(
                f"data.size={self.size}: too small for the objects at data.object_scale={self.scale}; {remedy}"
            )
        most = max(1, int(2 * self.margin / SLENDERNESS))
        if self.thinnest > most:
            raise UserError(
                f"data.thinnest={self.thinnest}: arrows {SLENDERNESS} times as long leave the image; use at most {most}"
            )


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


def parameters(base: int, index: int, canvas: Canvas, distribution: str = "paper") -> Arrow:
    """The geometry of image `index` of the split whose seed has `base = base_seed(seed)`."""
    return Arrow(
        *(value.item() for value in sample_parameters(np.random.default_rng(base + index), 1, canvas, distribution))
    )


def sample_parameters(rng: np.random.Generator, count: int, canvas: Canvas, distribution: str = "paper") -> Arrow:
    """`count` geometries from one generator, as arrays [count]: the same distribution, not the splits' stream."""
    return _balanced(rng, count, canvas) if distribution == "balanced" else _geometry(rng.random((9, count)), canvas)


def _objects(side: np.ndarray, long: np.ndarray, wide: np.ndarray, canvas: Canvas) -> tuple[np.ndarray, ...]:
    """Uniform draws -> label, length and width, of the draws' shape."""
    unit = canvas.scale
    length = np.maximum((15 * unit + 15 * unit * long).astype(np.int64), SLENDERNESS * canvas.thinnest)
    width = np.maximum((2 * unit + 2 * unit * wide).astype(np.int64), canvas.thinnest)
    return (side < 0.5).astype(np.int64), length, width


def _geometry(draws: np.ndarray, canvas: Canvas) -> Arrow:
    """Nine uniform draws [9, ...] in the order of the stream -> the paper's geometry of shape [...]."""
    side, long, wide, x, y, big, right, down, turn = draws
    span = canvas.span
    label, length, width = _objects(side, long, wide, canvas)
    ax = span * x
    ay = span * y
    radius = canvas.radius + canvas.radius * big
    cx = ax + 2 * radius + (span - 4 * radius) * right
    cy = ay + 2 * radius + (span - 4 * radius) * down
    cx = np.where(cx > span, cx - span, cx)
    cy = np.where(cy > span, cy - span, cy)
    away = np.hypot(cx - ax, cy - ay)
    straight = np.arctan2(cy - ay, cx - ax)
    half = np.arcsin(np.where(label == 1, radius / (KAPPA * away), KAPPA * radius / away))
    phi = np.where(label == 1, straight - half + 2 * half * turn, straight + half + (2 * np.pi - 2 * half) * turn)
    ax, ay, cx, cy = (centre + canvas.margin for centre in (ax, ay, cx, cy))
    return Arrow(label, length, width, ax, ay, radius, cx, cy, phi)


def _balanced(rng: np.random.Generator, count: int, canvas: Canvas) -> Arrow:
    """`count` balanced geometries as arrays [count]: of each image's tries the first whose places lie on the canvas."""
    side, long, wide, kind = rng.random((4, count))
    label, length, width = _objects(side, long, wide, canvas)
    geometry = np.empty((6, count))
    open_ = np.arange(count)
    tries = max(16 // count, 1)
    while len(open_):
        draws = rng.random((8, tries, len(open_)))
        fits, fields = _two_places(draws, label[open_] == 1, kind[open_] < SLIDES, canvas)
        done = fits.any(axis=0)
        geometry[:, open_] = fields[:, fits.argmax(axis=0), np.arange(len(open_))]
        open_ = open_[~done]
    return Arrow(label, length, width, *geometry)


def _two_places(draws: np.ndarray, at: np.ndarray, slides: np.ndarray, canvas: Canvas) -> tuple[np.ndarray, np.ndarray]:
    """Uniform draws [8, tries, n] -> whether the places are allowed [tries, n], and `Arrow`'s last six fields [6, ...].

    The arrow points at one place and misses the other; the circle is at the first where `at` [n], else at the second.
    The second is the first turned about the arrow or, where `slides` [n], moved at right angles to the line from the
    arrow. What allows a pair also allows the pair with its places exchanged: an image with the other label that has the
    same arrow (turns: and the same distance), or the same circle and direction (slides).
    """
    x, y, big, turn, reach, aim, way, gap = draws
    span = canvas.span
    nearest = NEAREST * canvas.scale
    arrow = span * x + 1j * span * y
    radius = SMALLER * canvas.radius * (1 + big)
    away = nearest + (FARTHEST * span - nearest) * reach
    off = np.arcsin(radius / (KAPPA * away)) * (2 * aim - 1)
    angle = np.abs(off) + np.arcsin(KAPPA * radius / away) + GAP[0] + (GAP[1] - GAP[0]) * gap
    angle = np.where(way < 0.5, -angle, angle)
    first = arrow + away * np.exp(2j * np.pi * turn)
    second = arrow + (first - arrow) * np.where(slides, 1 + 1j * np.tan(angle), np.exp(1j * angle))
    moved = np.where(slides, arrow + second - first, arrow)
    centres = np.stack([part for place in (first, second, moved) for part in (place.real, place.imag)])
    fits = ((centres >= 0) & (centres <= span)).all(axis=0)
    circle = np.where(at, first, second)
    ax, ay, cx, cy = (part + canvas.margin for part in (arrow.real, arrow.imag, circle.real, circle.imag))
    return fits, np.stack([ax, ay, radius, cx, cy, 2 * np.pi * turn + off])


def strokes(arrow: Arrow) -> list[tuple[float, float, float, float]]:
    """The shaft and the two head lines as (x0, y0, x1, y1) in pixels, in drawing order; all three end at the tip."""
    half = arrow.length // 2
    head = arrow.length // 2.5
    dx = np.cos(arrow.phi)
    dy = np.sin(arrow.phi)
    tip_x = arrow.ax + half * dx
    tip_y = arrow.ay + half * dy
    lines = [(arrow.ax - half * dx, arrow.ay - half * dy, tip_x, tip_y)]
    for side in (arrow.phi - 0.5, arrow.phi + 0.5):
        lines.append((tip_x - head * np.cos(side), tip_y - head * np.sin(side), tip_x, tip_y))
    return lines


def render(arrow: Arrow, canvas: Canvas) -> np.ndarray:
    """uint8 [size, size]: 255 is the background, 0 the objects. Only Pillow's rounding gives the paper's pixels."""
    image = Image.new("L", (canvas.size, canvas.size), 255)
    draw = ImageDraw.Draw(image)
    for line in strokes(arrow):
        draw.line(line, fill=0, width=arrow.width)
    cx = arrow.cx
    cy = arrow.cy
    r = arrow.radius
    draw.ellipse((cx - r, cy - r, cx + r, cy + r), fill=0)
    return np.array(image)


def digest(images_and_labels: Iterable[tuple[np.ndarray, int]]) -> tuple[int, int, str]:
    """(images, positives, first 24 hex digits of the sha256 over each image's bytes followed by its label byte)."""
    sha = hashlib.sha256()
    images = 0
    positives = 0
    for image, label in images_and_labels:
        sha.update(image.tobytes() + bytes([label]))
        images = images + 1
        positives = positives + int(label)
    return images, positives, sha.hexdigest()[:24]


class Split(NamedTuple):
    images: int
    seed: int | None  # of its stream; None: the run's own
    extended: bool  # on the doubled canvas
    digest: str | None  # `digest` of all its images; None for train, which differs from run to run


SPLITS = {
    "train": Split(100_000, None, False, None),
    "val": Split(5_120, 100_042, False, "7996369f91498d46eef9266f"),
    "val_ext": Split(5_120, 100_043, True, "61e09067958390be7291f618"),
    "test": Split(10_240, 200_042, False, "94030e29ead8a2c26f72554c"),
    "test_ext": Split(10_240, 200_043, True, "bdc54105f404e2708ec05b23"),
}


@dataclass(frozen=True)
class ArrowVariant:
    """One variant of the data set. Raises UserError for values that make none."""

    train_seed: Natural = 43
    size: Count = 192  # of the training canvas; the extended splits double it
    object_scale: Positive = 1.0  # see `Canvas`
    train_images: Count = SPLITS["train"].images
    eval_images: Count | None = None  # of each other split; None: the paper's counts
    distribution: Annotated[str, OneOf(*DISTRIBUTIONS)] = "paper"
    thinnest: Count = 2  # see `Canvas`

    def __post_init__(self):
        object.__setattr__(self, "object_scale", float(self.object_scale))
        check_limits(self, "data.")
        self.canvas("train")  # refuses what is too small
        if self.train_seed in {split.seed for split in SPLITS.values()}:
            raise UserError(f"data.train_seed={self.train_seed}: gives images of an evaluation split; take another")

    @property
    def name(self) -> str:
        """A name that no other variant has: the seed, and every other field that differs from the paper's."""
        others = {field.name: field.default for field in dataclasses.fields(self) if field.name != "train_seed"}
        changed = {key: getattr(self, key) for key, paper in others.items() if getattr(self, key) != paper}
        tags = (f"{key.removeprefix('object_').removesuffix('_images')}{value}" for key, value in changed.items())
        return "_".join([f"seed{self.train_seed}", *tags])

    def canvas(self, split: str) -> Canvas:
        return Canvas(self.size * (2 if SPLITS[split].extended else 1), self.object_scale, self.thinnest)

    def images(self, split: str) -> int:
        if split not in SPLITS:
            raise UserError(f"data.split={split}: no such split; choose from {', '.join(SPLITS)}")
        return self.train_images if split == "train" else self.eval_images or SPLITS[split].images

    def arrows(self, split: str, count: int | None = None) -> Iterator[Arrow]:
        count = self.images(split) if count is None else count
        seed = SPLITS[split].seed
        canvas = self.canvas(split)
        base = base_seed(self.train_seed if seed is None else seed)
        return (parameters(base, index, canvas, self.distribution) for index in range(count))
