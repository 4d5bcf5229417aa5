"""The configuration of augmentation, the recipes of the paper's ImageNet runs, and how they draw operations."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from data.augment.operations import GEOMETRIC
from plstm.errors import UserError
from plstm.limits import Count, NotNegative, Share

Step = tuple[str, Any]  # a name in `operations.OPERATIONS` and an argument

THREE_AUGMENT = "three_augment"
MAX_MAGNITUDE = 10.0


@dataclass
class AugmentConfig:
    """What happens to a training image, after a random resized crop. The defaults: a random flip, nothing else."""

    flip: Share = 0.5  # probability of a horizontal flip
    auto_augment: str | None = None  # three_augment, or RandAugment as in rand-m9-mstd0.5-inc1
    color_jitter: Share = 0.0  # brightness, contrast, saturation by factors U(1 - this, 1 + this)
    random_erasing: Share = 0.0  # probability, on the device
    repeats: Count = 1  # views of an image in a batch
    mixup: NotNegative = 0.0  # alpha of Beta(alpha, alpha), on the device; 0: none
    cutmix: NotNegative = 0.0  # the same; with both, half of the draws each, see `mix`

    def check(self) -> None:
        """Raises UserError where `auto_augment` names no augmentation; `check_limits` checks the ranges."""
        if self.auto_augment not in (None, THREE_AUGMENT):
            parse_rand_augment(self.auto_augment)


_MIXED = {"mixup": 0.8, "cutmix": 1.0}
_RAND = "rand-m9-mstd0.5-inc1"
_ENHANCED = ("Color", "Contrast", "Brightness", "Sharpness")

RECIPES: dict[str, AugmentConfig] = {
    "deit3": AugmentConfig(auto_augment=THREE_AUGMENT, color_jitter=0.3, repeats=3, **_MIXED),  # pre-training
    "deit3_finetune": AugmentConfig(auto_augment=_RAND, **_MIXED),
    "deit": AugmentConfig(auto_augment=_RAND, random_erasing=0.25, repeats=3, **_MIXED),  # the ablation
    "none": AugmentConfig(),
}


# RandAugment's fifteen operations of increasing strength: argument = function of (magnitude in [0, 10], sign).
RAND_ARGUMENTS: dict[str, Callable[[float, int], Any]] = {
    **dict.fromkeys(("AutoContrast", "Equalize", "Invert"), lambda level, sign: None),
    "Rotate": lambda level, sign: sign * 3 * level,
    "Posterize": lambda level, sign: 4 - int(0.4 * level),
    "Solarize": lambda level, sign: 256 - int(25.6 * level),
    "SolarizeAdd": lambda level, sign: min(128, int(11 * level)),
    **dict.fromkeys(_ENHANCED, lambda level, sign: max(0.1, 1 + sign * 0.09 * level)),
    **dict.fromkeys(("ShearX", "ShearY"), lambda level, sign: sign * 0.03 * level),
    **dict.fromkeys(("TranslateX", "TranslateY"), lambda level, sign: sign * 0.045 * level),
}


class RandAugment(NamedTuple):
    """RandAugment (Cubuk et al. 2020) as released recipes configure it: each of `layers` operations fires with 0.5."""

    magnitude: float
    deviation: float = 0.0  # of the magnitude, normal, clipped to [0, 10]
    layers: int = 2

    def draw(self, rng: np.random.Generator) -> list[Step]:
        """The operations that fire, in order; drawn uniformly, with replacement; half the geometric ones bilinear."""
        names = list(RAND_ARGUMENTS)
        steps = []
        for _ in range(self.layers):
            name = names[rng.integers(len(names))]
            level = min(max(rng.normal(self.magnitude, self.deviation), 0.0), MAX_MAGNITUDE)
            sign = 1 if rng.random() < 0.5 else -1
            if rng.random() < 0.5:
                bilinear = name in GEOMETRIC and rng.random() < 0.5  # as released; the others are bicubic
                steps.append((f"{name}/bilinear" if bilinear else name, RAND_ARGUMENTS[name](level, sign)))
        return steps


def parse_rand_augment(text: str) -> RandAugment:
    """From the field's notation, such as rand-m9-mstd0.5-inc1: m magnitude, mstd its deviation, n layers (2).

    inc1, strength that increases with magnitude, must be there. Raises UserError for any other text.
    """
    pairs = re.findall(r"-(m|mstd|n|inc)(\d+(?:\.\d+)?)", text)
    values = {"mstd": "0", "n": "2"} | dict(pairs)
    is_whole = text == "rand" + "".join(f"-{key}{value}" for key, value in pairs) and len(dict(pairs)) == len(pairs)
    if is_whole and len(values) == 4 and values["inc"] == "1" and values["n"].isdigit():
        policy = RandAugment(float(values["m"]), float(values["mstd"]), int(values["n"]))
        if policy.magnitude <= MAX_MAGNITUDE and policy.layers >= 1:
            return policy
    form = "rand-m9-mstd0.5-inc1: m from 0 to 10, mstd 0 or more, n (operations an image, 2) 1 or more, inc1"
    raise UserError(f"augment.auto_augment={text}: write {THREE_AUGMENT}, or like {form}")
