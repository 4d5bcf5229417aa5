"""Models, built from a typed config by `build_model`, or trained, by `from_checkpoint`."""

from plstm.models.vision import VisionConfig, VisionModel, build_model
from plstm.runs.weights import from_checkpoint, save_safetensors

__all__ = ["VisionConfig", "VisionModel", "build_model", "from_checkpoint", "save_safetensors"]
