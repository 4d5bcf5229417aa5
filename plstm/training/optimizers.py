"""AdamW and LAMB with the decay mask of the paper's experiments, and the warm-up and cosine schedule."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from plstm.config import OptimConfig
from plstm.errors import UserError
from plstm.training.steps import has_part, named_leaves, named_mask

# Weight decay applies to linear layers and gates; not to biases, norms, scales, positions and the class token.
DECAYED = ("kernel", "weight")  # the last words of their names, or of a module's that holds them


def learning_rate_schedule(config: OptimConfig, steps: int, warmup_steps: float) -> optax.Schedule:
    """Linear from 0 to the peak over the warm-up, then a cosine to end_factor x peak at the last step, `steps` - 1. The
    warm-up may end between two steps."""
    end = config.peak_lr * config.end_factor
    cosine_steps = max(steps - 1 - warmup_steps, 1)

    def schedule(step):
        warm = config.peak_lr * step / max(warmup_steps, 1)
        progress = jnp.clip((step - warmup_steps) / cosine_steps, 0, 1)
        cosine = end + (config.peak_lr - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return jnp.where(step < warmup_steps, warm, cosine)

    return schedule


def epoch_schedule(config: OptimConfig, steps_per_epoch: int) -> optax.Schedule:
    """`learning_rate_schedule` with one value per epoch: the peak is reached in epoch `warmup_epochs`, counted from 1,
    and end_factor x peak in the last epoch. A single epoch has the peak."""
    epochs = math.ceil(config.epochs)
    if epochs == 1:
        return optax.constant_schedule(config.peak_lr)
    of_epoch = learning_rate_schedule(config, epochs + 1, config.warmup_epochs)
    return lambda step: of_epoch(step // steps_per_epoch + 1)


def decay_mask(params: Any) -> Any:
    """A tree like `params`: True where weight decay (and LAMB's trust ratio) applies."""
    decays = [any(part.rpartition("_")[2] in DECAYED for part in name.split(".")) for name in named_leaves(params)]
    return jax.tree.unflatten(jax.tree.structure(params), decays)


def build_optimizer(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Clip by global norm, then AdamW (Loshchilov and Hutter, 2019) or LAMB (You et al., 2020).

    LAMB: u = m_hat / (sqrt(v_hat) + eps), plus decay, times |w| / |u| per matrix (1 where either is 0); tensors outside
    the mask take plain Adam steps. With `optim.only`, parameters of other names stay as they are and have no state; the
    optimizer's `init` raises UserError where a part is in no name.
    """
    parts = [optax.clip_by_global_norm(config.clip_norm), optax.scale_by_adam(config.b1, config.b2, config.eps)]
    parts.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask))
    if config.name == "lamb":
        parts.append(optax.masked(optax.stateless_with_tree_map(_trust), decay_mask))
    optimizer = optax.chain(*parts, optax.scale_by_learning_rate(schedule))
    if not config.only:
        return optimizer
    return optax.partition({"trained": optimizer, "kept": optax.set_to_zero()}, partial(_labels, config.only))


def _labels(only: Sequence[str], params: Any) -> Any:
    names = named_leaves(params)
    if missing := [part for part in only if not any(has_part(name, [part]) for name in names)]:
        known = sorted({part for name in names for part in name.split(".") if not part.isdigit()})
        raise UserError(f"optim.only: no parameter has the part {missing[0]} in its name; there are {', '.join(known)}")
    return jax.tree.map(lambda is_trained: "trained" if is_trained else "kept", named_mask(params, only))


def _trust(update: jax.Array, weight: jax.Array) -> jax.Array:
    """Scales an update to the norm of its weight; the axes before the last two stack layers, or kinds of gates."""
    size, target = (jnp.linalg.norm(tensor, axis=(-2, -1), keepdims=True) for tensor in (update, weight))
    return update * jnp.where((size > 0) & (target > 0), target / jnp.where(size > 0, size, 1), 1)
