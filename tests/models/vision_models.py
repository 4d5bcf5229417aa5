"""Small vision models and images for them."""

import numpy as np

from plstm.models import VisionConfig, build_model
from plstm.models.vision import VisionModel
from tests.drawing import fill, normal

VIT = {"modes": ["attention"], "pooling": "class_token", "layer_scale": 1e-4}
MODELS = {"pLSTM": {}, "ViT": VIT | {"layer_scale": 1.0}}


def tiny(**changes) -> VisionConfig:
    """A 4 x 4 grid of patches of 4 pixels."""
    own = {"image_size": 16, "patch_size": 4, "dim": 16, "heads": 2, "depth": 2, "classes": 3, "dtype": "float32"}
    return VisionConfig(**own | changes)


def filled(config: VisionConfig, seed: int = 0) -> VisionModel:
    """A model with every parameter drawn from a normal, also those that start at zero or one."""
    return fill(lambda: build_model(config, 0), 0.3, seed)


def draw_images(height=16, width=16, batch=3) -> np.ndarray:
    return normal(batch, height, width, 3, seed=1)
