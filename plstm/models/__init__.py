"""Models, built from a typed config by `build_model`."""

from plstm.models.vision import VisionConfig, VisionModel, build_model

__all__ = ["VisionConfig", "VisionModel", "build_model"]
