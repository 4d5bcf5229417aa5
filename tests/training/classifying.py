"""A small classification task for the tests of this folder: its images, its loss and its metrics."""

import jax
import jax.numpy as jnp
import numpy as np

from data.loading import PackedSplit, pack, unpack
from plstm.tasks.base import classification_metrics

SIZE = 16  # pixels per side: a 4 x 4 grid of patches


def draw_split(count: int, seed: int = 0) -> PackedSplit:
    rng = np.random.default_rng(seed)
    images = rng.choice(np.array([0, 255], np.uint8), (count, SIZE, SIZE))
    return PackedSplit(pack(images), rng.integers(2, size=count, dtype=np.uint8), SIZE)


def pixels(packed) -> jax.Array:
    """uint8 [batch, bytes] -> float32 [batch, SIZE, SIZE, 3] in [-1, 1]."""
    images = 2 * jnp.asarray(unpack(packed, SIZE), jnp.float32) / 255 - 1
    return jnp.repeat(images[..., None], 3, axis=-1)


def logits(model, batch) -> jax.Array:
    return model(pixels(batch["image"]))


def metrics_of(found: jax.Array, batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Sums and counts of the cross entropy and the accuracy, without padding."""
    mask = batch.get("mask", np.ones(len(found), bool))
    return classification_metrics(found, batch["label"], mask)


def loss(model, batch, key) -> tuple[jax.Array, dict]:
    metrics = metrics_of(model(pixels(batch["image"]), key=key), batch)
    total, count = metrics["loss"]
    return total / count, metrics


def measure(model, batch) -> dict:
    return metrics_of(logits(model, batch), batch)


def expected_metrics(logits, labels) -> dict[str, float]:
    """What evaluating these logits is to give, computed in float64."""
    logits = np.asarray(logits, np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]
    return {"loss": losses.mean(), "accuracy": (logits.argmax(-1) == labels).mean(), "count": len(labels)}
