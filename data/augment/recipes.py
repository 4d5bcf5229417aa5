"""The configuration of augmentation, the recipes of the paper's ImageNet runs, and how they draw operations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from plstm.errors import UserError

Step = tuple[str, Any]  # a name and an argument for `operations.apply_operation`

THREE_AUGMENT = "three_augment"
MAX_MAGNITUDE = 10.0


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


def _enhance(level: float, sign: int) -> float:
    return max(0.1, 1 + sign * 0.09 * level)


# RandAugment's fifteen operations of increasing strength: argument = function of (magnitude in [0, 10], sign).
RAND_ARGUMENTS: dict[str, Callable[[float, int], Any]] = {
    "AutoContrast": lambda level, sign: None,
    "Equalize": lambda level, sign: None,
    "Invert": lambda level, sign: None,
    "Rotate": lambda level, sign: sign * 3 * level,
    "Posterize": lambda level, sign: 4 - int(0.4 * level),
    "Solarize": lambda level, sign: 256 - int(25.6 * level),
    "SolarizeAdd": lambda level, sign: min(128, int(11 * level)),
    "Color": _enhance,
    "Contrast": _enhance,
    "Brightness": _enhance,
    "Sharpness": _enhance,
    "ShearX": lambda level, sign: sign * 0.03 * level,
    "ShearY": lambda level, sign: sign * 0.03 * level,
    "TranslateX": lambda level, sign: sign * 0.045 * level,
    "TranslateY": lambda level, sign: sign * 0.045 * level,
}
_NAMES = tuple(RAND_ARGUMENTS)


class RandAugment(NamedTuple):
    """RandAugment (Cubuk et al. 2020) as released recipes configure it: each of `layers` operations fires with 0.5."""

    magnitude: float
    deviation: float = 0.0  # of the magnitude, normal, clipped to [0, 10]
    layers: int = 2

    def draw(self, rng: np.random.Generator) -> list[Step]:
        """The operations that fire, in order; drawn uniformly, with replacement."""
        steps = []
        for _ in range(self.layers):
            name = _NAMES[rng.integers(len(_NAMES))]
            level = min(max(rng.normal(self.magnitude, self.deviation), 0.0), MAX_MAGNITUDE)
            sign = 1 if rng.random() < 0.5 else -1
            if rng.random() < 0.5:
                steps.append((name, RAND_ARGUMENTS[name](level, sign)))
        return steps


def parse_rand_augment(text: str) -> RandAugment:
    """From the field's notation, such as rand-m9-mstd0.5-inc1: m magnitude, mstd its deviation, n layers (2), inc1.

    inc1, strength that increases with magnitude, must be there: there is no other form here. Raises UserError naming
    augment.auto_augment for any other text.
    """
    refusal = UserError(
        f"augment.auto_augment={text}: write {THREE_AUGMENT}, or like rand-m9-mstd0.5-inc1: m from 0 to 10, "
        "mstd 0 or more, n (operations an image, 2) 1 or more, inc1"
    )
    parts = [re.fullmatch(r"(m|mstd|n|inc)(\d+(?:\.\d+)?)", part) for part in text.split("-")[1:]]
    if text.split("-")[0] != "rand" or None in parts or len({part[1] for part in parts}) < len(parts):
        raise refusal
    values = {"mstd": "0", "n": "2"} | {part[1]: part[2] for part in parts}
    if values.keys() != {"m", "mstd", "n", "inc"} or values["inc"] != "1" or not values["n"].isdigit():
        raise refusal
    policy = RandAugment(float(values["m"]), float(values["mstd"]), int(values["n"]))
    if policy.magnitude > MAX_MAGNITUDE or policy.layers < 1:
        raise refusal
    return policy


def three_augment(rng: np.random.Generator) -> Step:
    """3-Augment (Touvron et al. 2022, DeiT III): one of three operations, equally likely."""
    choices = (("Solarize", 128), ("Grayscale", None), ("GaussianBlur", rng.uniform(0.1, 2.0)))
    return choices[rng.integers(3)]


def color_jitter(strength: float, rng: np.random.Generator) -> list[Step]:
    """Brightness, contrast and saturation in random order, each by a factor U(1 - strength, 1 + strength)."""
    names = ("Brightness", "Contrast", "Color")
    return [(names[n], rng.uniform(1 - strength, 1 + strength)) for n in rng.permutation(3)]
