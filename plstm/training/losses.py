"""Classification losses, in nats, over soft targets: one number per example, so that padding can be masked."""

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Softmax cross entropy; logits and targets [batch, classes] -> float32 [batch]."""
    return -(targets * jax.nn.log_softmax(logits.astype(jnp.float32))).sum(axis=-1)


def binary_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean binary cross entropy over classes; logits and targets [batch, classes] -> float32 [batch].

    A class is present if its target is over 0, so both partners of a mixture count in full (Wightman et al. 2021,
    "ResNet strikes back"). With label smoothing every class would be present: use it with label smoothing 0 only.
    """
    logits = logits.astype(jnp.float32)
    return (jax.nn.softplus(logits) - jnp.where(targets > 0, logits, 0)).mean(axis=-1)


LOSSES = {"cross_entropy": cross_entropy, "binary_cross_entropy": binary_cross_entropy}
