"""Models of images, graphs, sequences and time series.

model = build_model(VisionConfig(image_size=192, classes=2), 0)  # an integer or a jax.random key
logits = model(images)  # a deterministic pass
logits = model(images, key=key)  # a training pass: it may draw from `key` and update running statistics
"""

from plstm.models.efficientnet import EfficientNetConfig
from plstm.models.graph import GraphConfig
from plstm.models.languages import LanguageConfig
from plstm.models.mamba2d import Mamba2DConfig
from plstm.models.registry import MODELS, Family, Info, build_model, named_variables
from plstm.models.sequence import SequenceConfig
from plstm.models.series import SeriesConfig
from plstm.models.ss2d import SS2DConfig
from plstm.models.vil import ViLConfig
from plstm.models.vision import VisionConfig, VisionModel

__all__ = [
    "MODELS",
    "EfficientNetConfig",
    "Family",
    "GraphConfig",
    "Info",
    "LanguageConfig",
    "Mamba2DConfig",
    "SS2DConfig",
    "SequenceConfig",
    "SeriesConfig",
    "ViLConfig",
    "VisionConfig",
    "VisionModel",
    "build_model",
    "named_variables",
]
