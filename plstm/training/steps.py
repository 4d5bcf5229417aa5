"""The training and evaluation steps: pure functions of arrays, compiled once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from data.packed import unpack

IMAGE_MEAN, IMAGE_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


class TrainState(NamedTuple):
    """All that changes from step to step, and so all that a checkpoint holds.

    step: int32, steps taken. params: float32. opt_state: optax's. bad_step: int32, the first step whose loss or
    gradient was not finite, or -1.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    bad_step: jax.Array


def init_state(model: nnx.Module, optimizer: optax.GradientTransformation) -> tuple[nnx.GraphDef, TrainState]:
    """Splits a model into its static definition and the state of step 0."""
    graphdef, params = nnx.split(model, nnx.Param)
    return graphdef, TrainState(jnp.int32(0), params, optimizer.init(params), jnp.int32(-1))


def normalise(images: jax.Array, size: int) -> jax.Array:
    """Packed bits uint8 [batch, bytes] or gray uint8 [batch, size, size, 1] -> float32 [batch, size, size, 3]."""
    if images.ndim == 2:
        images = unpack(images, size)[..., None]
    return (images.astype(jnp.float32) / 255 - jnp.array(IMAGE_MEAN)) / jnp.array(IMAGE_DEVIATION)


def make_train_step(
    graphdef: nnx.GraphDef, optimizer, schedule, *, size: int, label_smoothing: float, drop_key: jax.Array, layout
):
    """The jitted training step for images of `size` pixels; `layout` is the sharding of a batch.

    Returns a function (state, batch) -> (state, metrics); `state` is donated. batch: "image" as `normalise` takes it,
    and "label" [batch]. metrics: float32 scalars loss (mean cross entropy in nats), accuracy, learning_rate,
    gradient_norm (before clipping), parameter_norm, update_norm.
    """

    def loss_fn(params, batch, key):
        logits = nnx.merge(graphdef, params)(normalise(batch["image"], size), key=key)
        targets = optax.smooth_labels(jax.nn.one_hot(batch["label"], logits.shape[-1]), label_smoothing)
        return optax.softmax_cross_entropy(logits, targets).mean(), _hits(logits, batch["label"]).mean()

    def train_step(state: TrainState, batch):
        batch = jax.lax.with_sharding_constraint(batch, layout)
        key = jax.random.fold_in(drop_key, state.step)
        (loss, accuracy), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        gradient_norm = optax.tree.norm(grads)
        is_bad = ~(jnp.isfinite(loss) & jnp.isfinite(gradient_norm)) & (state.bad_step < 0)
        metrics = {
            "loss": loss,
            "accuracy": accuracy,
            "learning_rate": schedule(state.step),
            "gradient_norm": gradient_norm,
            "parameter_norm": optax.tree.norm(params),
            "update_norm": optax.tree.norm(updates),
        }
        bad_step = jnp.where(is_bad, state.step + 1, state.bad_step)
        return TrainState(state.step + 1, params, opt_state, bad_step), metrics

    return jax.jit(train_step, donate_argnums=0)


def make_predict(graphdef: nnx.GraphDef):
    """The jitted forward pass: (params, images as `normalise` takes them, size) -> float32 logits [batch, classes]."""

    def predict(params, images, size):
        return nnx.merge(graphdef, params)(normalise(images, size))

    return jax.jit(predict, static_argnums=2)


def _hits(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return (logits.argmax(-1) == labels).astype(jnp.float32)
