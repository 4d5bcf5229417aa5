"""Variants of the arrow-pointing data set: which images, how many, and the name that tells them apart."""

from __future__ import annotations

import dataclasses

from data.arrow_law import SPLITS, ArrowLaw
from plstm.errors import UserError

SMALL = {"size": 48, "scale": 0.25, "train_images": 50_000, "eval_images": 2_048}  # same law, for small machines


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
        ArrowLaw(self.size, self.scale)
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

    @property
    def law(self) -> ArrowLaw:
        """The training law; `data.arrow_law.split_law` gives a split's."""
        return ArrowLaw(self.size, self.scale)

    def images(self, split: str) -> int:
        """How many images `split` has. Raises UserError for an unknown split."""
        if split not in SPLITS:
            raise UserError(f"data.split={split}: no such split; choose from {', '.join(SPLITS)}")
        return self.train_images if split == "train" else self.eval_images or SPLITS[split].images
