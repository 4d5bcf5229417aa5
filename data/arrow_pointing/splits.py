"""The splits of arrow pointing, and its variants: which images, how many, and the name that tells them apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from data.arrow_pointing.geometry import Arrow, Canvas, base_seed, parameters
from plstm.errors import UserError

SMALL = {"size": 48, "scale": 0.25, "train_images": 50_000, "eval_images": 2_048}  # for small machines


class Split(NamedTuple):
    """images: how many the paper has. seed: its stream's, or None for the run's own. extended: on the doubled canvas.

    digest: `geometry.digest` of all the paper's images; None for train, which differs from run to run.
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


@dataclasses.dataclass(frozen=True)
class ArrowVariant:
    """One variant of the data set.

    train_seed: the seed of the training images. size: the training canvas in pixels; the extended splits double it.
    scale: of every other pixel length. train_images, eval_images: images per split, None for the paper's counts.
    Raises UserError for values that make no data set.
    """

    train_seed: int = 43
    size: int = 192
    scale: float = 1.0
    train_images: int = SPLITS["train"].images
    eval_images: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "scale", float(self.scale))
        Canvas(self.size, self.scale)
        if self.train_seed < 0:
            raise UserError(f"data.train_seed={self.train_seed}: must be 0 or more; the paper's are 43 to 47")
        for key in ("train_images", "eval_images"):
            count = getattr(self, key)
            if count is not None and count < 1:
                raise UserError(f"data.{key}={count}: must be at least 1")

    @property
    def name(self) -> str:
        """A name that no other variant has: every field that differs from the paper's, or `small_` for `SMALL`."""
        paper = {field.name: field.default for field in dataclasses.fields(ArrowVariant)}
        own = {key: getattr(self, key) for key in SMALL if getattr(self, key) != paper[key]}
        if own == SMALL:
            return f"small_seed{self.train_seed}"
        return "_".join([f"seed{self.train_seed}", *(f"{key.removesuffix('_images')}{own[key]}" for key in own)])

    def canvas(self, split: str) -> Canvas:
        """The canvas of a split."""
        return Canvas(self.size * (2 if SPLITS[split].extended else 1), self.scale)

    def images(self, split: str) -> int:
        """How many images `split` has. Raises UserError for an unknown split."""
        if split not in SPLITS:
            raise UserError(f"data.split={split}: no such split; choose from {', '.join(SPLITS)}")
        return self.train_images if split == "train" else self.eval_images or SPLITS[split].images

    def arrows(self, split: str, count: int | None = None) -> Iterator[Arrow]:
        """The first `count` geometries of a split, or all of them."""
        count = self.images(split) if count is None else count
        seed, canvas = SPLITS[split].seed, self.canvas(split)
        base = base_seed(self.train_seed if seed is None else seed)
        return (parameters(base, index, canvas) for index in range(count))
