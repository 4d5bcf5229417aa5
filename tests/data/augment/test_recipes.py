from __future__ import annotations

import math

import pytest
from omegaconf import OmegaConf

from data.augment import RECIPES, AugmentConfig
from plstm.errors import UserError

RAND = "rand-m9-mstd0.5-inc1"


def test_recipes_are_the_papers():
    keys = ("crop", "flip", "auto_augment", "color_jitter", "random_erasing", "repeats", "mixup", "cutmix")
    table = {
        "deit3": ("random_resized", 0.5, "three_augment", 0.3, 0.0, 3, 0.8, 1.0),
        "deit3_finetune": ("random_resized", 0.5, RAND, 0.0, 0.0, 1, 0.8, 1.0),
        "deit": ("random_resized", 0.5, RAND, 0.0, 0.25, 3, 0.8, 1.0),
        "none": ("random_resized", 0.5, None, 0.0, 0.0, 1, 0.0, 0.0),
    }
    assert {name: vars(config) for name, config in RECIPES.items()} == {
        name: dict(zip(keys, values, strict=True)) for name, values in table.items()
    }
    for config in RECIPES.values():
        config.check()


def test_is_a_typed_config():
    node = OmegaConf.merge(OmegaConf.structured(AugmentConfig), {"auto_augment": "three_augment", "repeats": 3})
    assert OmegaConf.to_object(node) == AugmentConfig(auto_augment="three_augment", repeats=3)


@pytest.mark.parametrize(
    "key, value",
    [
        ("crop", "central"),
        ("flip", 1.5),
        ("flip", math.nan),
        ("auto_augment", "rand-m9"),
        ("color_jitter", -0.1),
        ("color_jitter", 1.01),
        ("random_erasing", 2.0),
        ("repeats", 0),
        ("mixup", -1.0),
        ("cutmix", math.nan),
        ("cutmix", math.inf),
    ],
)
def test_values_out_of_range_are_named(key, value):
    with pytest.raises(UserError, match=f"^augment.{key}={value}: "):
        AugmentConfig(**{key: value}).check()
