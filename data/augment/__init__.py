"""ImageNet augmentation on the host: Pillow and numpy, no device. Mixing and erasing are in `plstm.training.mixing`."""

from data.augment.recipes import RECIPES, AugmentConfig
from data.augment.views import augment, evaluation_crop, view_rng

__all__ = ["RECIPES", "AugmentConfig", "augment", "evaluation_crop", "view_rng"]
