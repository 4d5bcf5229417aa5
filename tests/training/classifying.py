"""A small classification task for the tests of this folder: its images, its loss and its metrics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from data.loading import unpack

SIZE = 16  # pixels per side: a 4 x 4 grid of patches


def pixels(packed) -> jax.Array:
    """uint8 [batch, bytes] -> float32 [batch, SIZE, SIZE, 3] in [-1, 1]."""
    images = 2 * jnp.asarray(unpack(packed, SIZE), jnp.float32) / 255 - 1
    return jnp.repeat(images[..., None], 3, axis=-1)


def logits(model, batch) -> jax.Array:
    return model(pixels(batch["image"]))


def metrics_of(found: jax.Array, batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Sums and counts of the cross entropy and the accuracy, without padding."""
    losses = optax.softmax_cross_entropy_with_integer_labels(found, batch["label"])
    hits = found.argmax(-1) == batch["label"]
    mask = jnp.asarray(batch.get("mask", jnp.ones(len(losses))), jnp.float32)
    return {"loss": (jnp.sum(losses * mask), mask.sum()), "accuracy": (jnp.sum(hits * mask), mask.sum())}


def loss(model, batch, key) -> tuple[jax.Array, dict]:
    metrics = metrics_of(model(pixels(batch["image"]), key=key), batch)
    total, count = metrics["loss"]
    return total / count, metrics


def measure(model, batch) -> dict:
    return metrics_of(logits(model, batch), batch)
