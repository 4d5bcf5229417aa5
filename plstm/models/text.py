"""Text from models of bytes, whose tokens are 256 bytes and one that begins a file.

model = plstm.load("model.safetensors")
print(complete(model, "def area(self", 100))
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from plstm.errors import UserError
from plstm.models.sequence import SequenceModel

BYTES = 256  # also the token that begins a file
SIZES = {"vocabulary": BYTES + 1, "classes": BYTES}
CONTEXT = 256  # bytes that a model reads, where its weights do not tell
MOST_CONTEXT = 2**15


def complete(model: Any, text: str, count: int, *, temperature: float = 0.0, seed: int = 0) -> str:
    """The `count` bytes that follow `text`, taken as the start of a file; decoded, with � where they are no UTF-8.
    temperature: of the draw; 0: the likeliest byte each time. The model reads the last bytes, as many as in training.

    Raises UserError where the model is not one of bytes, or there is nothing to do."""
    start = text.encode("utf-8", "surrogateescape")
    (found,) = sample(model, start, count, 1, temperature=temperature, seed=seed)
    return bytes(found).decode("utf-8", "replace")


def sample(model: Any, start: bytes, count: int, rows: int, *, temperature: float, seed: int) -> np.ndarray:
    """Ways to go on from `start`: uint8 [rows, count]. Raises UserError as `complete`."""
    info = model.info
    if not isinstance(model, SequenceModel) or info.sizes != SIZES:
        raise UserError(f"this model of family {info.config.family} continues no text")
    for key, value, least, most in (
        ("count", count, 1, math.inf),
        ("temperature", temperature, 0, math.inf),
        ("seed", seed, 0, 2**32 - 1),
    ):
        if not least <= value <= most:
            raise UserError(f"{key}={value}: must be at least {least}" + f" and at most {most}" * (most < math.inf))
    data = (info.training or {}).get("data")
    context = data.get("context") if isinstance(data, dict) else CONTEXT
    if not isinstance(context, int) or not 1 <= context <= MOST_CONTEXT:
        raise UserError(f"its training has data.context={context}, and this takes from 1 to {MOST_CONTEXT:,}")
    tokens = np.zeros((rows, context + 1 + len(start) + count), np.int32)  # first what pads the end of a short text
    tokens[:, : 1 + len(start)] = [BYTES, *start]
    keys = jax.random.split(jax.random.key(seed), count)
    for place, key in enumerate(keys, start=1 + len(start)):
        first = max(place - context, 0)
        window = jnp.asarray(tokens[:, first : first + context])
        tokens[:, place] = _next(model, window, place - first - 1, key, temperature)
    return tokens[:, 1 + len(start) :][:, :count].astype(np.uint8)


@nnx.jit
def _next(model: SequenceModel, window: jax.Array, last: int, key: jax.Array, temperature: float) -> jax.Array:
    """The byte after place `last` of each row, int32 [rows]; what follows there is not seen."""
    logits = model(window)[:, last]
    drawn = jax.random.categorical(key, logits / jnp.maximum(temperature, 1e-6))
    return jnp.where(temperature > 0, drawn, logits.argmax(-1))
