"""pLSTM: parallelizable linear source transition mark networks (arXiv 2506.11997) in JAX, with their experiments.

    model = plstm.load("model.safetensors")
    plstm.save(model, "copy.safetensors")

See `plstm.models.weights`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plstm.models.weights import load, save

__all__ = ["load", "save"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports JAX and the models when they are asked for, and not with each of the package's modules."""
    if name in __all__:
        return getattr(importlib.import_module("plstm.models.weights"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
