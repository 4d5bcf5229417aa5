"""The configuration of augmentation, and the recipes of the paper's ImageNet runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from data.augment.policies import THREE_AUGMENT, parse_rand_augment
from plstm.errors import UserError


@dataclass
class AugmentConfig:
    """What happens to a training image. The defaults: a random crop and flip, nothing else."""

    crop: str = "random_resized"  # area U(0.08, 1), aspect log-uniform in (3/4, 4/3)
    flip: float = 0.5  # probability of a horizontal flip
    auto_augment: str | None = None  # three_augment, or RandAugment as in rand-m9-mstd0.5-inc1
    color_jitter: float = 0.0  # brightness, contrast, saturation by factors U(1 - this, 1 + this)
    random_erasing: float = 0.0  # probability, on the device
    repeats: int = 1  # views of an image in a batch
    mixup: float = 0.0  # alpha of Beta(alpha, alpha), on the device; 0: none
    cutmix: float = 0.0  # the same; with both, half the batches each

    def check(self) -> None:
        """Raises UserError naming the key of a value out of range."""
        if self.crop != "random_resized":
            raise UserError(f"augment.crop={self.crop}: the only one is random_resized")
        if self.auto_augment not in (None, THREE_AUGMENT):
            parse_rand_augment(self.auto_augment)
        for key in ("flip", "color_jitter", "random_erasing"):
            if not 0 <= getattr(self, key) <= 1:
                raise UserError(f"augment.{key}={getattr(self, key)}: must be in [0, 1]")
        for key in ("mixup", "cutmix"):
            if not 0 <= getattr(self, key) < math.inf:
                raise UserError(f"augment.{key}={getattr(self, key)}: must be at least 0")
        if self.repeats < 1:
            raise UserError(f"augment.repeats={self.repeats}: must be at least 1")


_MIXED = {"mixup": 0.8, "cutmix": 1.0}
_RAND = "rand-m9-mstd0.5-inc1"

RECIPES: dict[str, AugmentConfig] = {
    "deit3": AugmentConfig(auto_augment=THREE_AUGMENT, color_jitter=0.3, repeats=3, **_MIXED),  # pre-training
    "deit3_finetune": AugmentConfig(auto_augment=_RAND, **_MIXED),
    "deit": AugmentConfig(auto_augment=_RAND, random_erasing=0.25, repeats=3, **_MIXED),  # the ablation
    "none": AugmentConfig(),
}
