"""The training and evaluation steps: pure functions of arrays, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from plstm.training.meshes import Layout

GUARDED = ("loss", "gradient_norm", "parameter_norm")  # metrics that stop a run where they are not finite


class TrainState(NamedTuple):
    """All that changes from step to step, and so all that a checkpoint holds.

    step: int32, steps taken. params: float32. opt_state: optax's. bad_step: int32, the first step whose loss, gradient
    or new parameters were not finite, or -1. statistics: the running ones of batch norms; none: the model has no such
    norm.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    bad_step: jax.Array
    statistics: Any = None

    @property
    def weights(self) -> Any:
        """All that the model predicts with."""
        return self.params if self.statistics is None else nnx.merge_state(self.params, self.statistics)


def init_state(model: nnx.Module, optimizer: optax.GradientTransformation) -> tuple[nnx.GraphDef, TrainState]:
    """Splits a model into its static definition and the state of step 0."""
    graphdef, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    statistics = statistics if jax.tree.leaves(statistics) else None
    return graphdef, TrainState(jnp.int32(0), params, optimizer.init(params), jnp.int32(-1), statistics)


def make_train_step(graphdef: nnx.GraphDef, optimizer, schedule, loss, *, key: jax.Array, layout: Layout):
    """The jitted training step.

    `loss` is a task's: (model, batch, key) -> (mean loss, accuracy); step n gets fold_in(key, n).
    The model may update its running statistics. Returns a function (state, batch) -> (state, metrics); `state`, placed
    by `layout`, is donated. metrics: float32 scalars loss, accuracy, learning_rate, gradient_norm (before clipping),
    parameter_norm, update_norm.
    """
    constrain = jax.lax.with_sharding_constraint

    def loss_fn(params, statistics, batch, step_key):
        parts = (params,) if statistics is None else (params, statistics)
        model = nnx.merge(graphdef, *parts, copy=True)  # copies, because it may write to the statistics
        mean_loss, accuracy = loss(model, batch, step_key)
        return mean_loss, (accuracy, None if statistics is None else nnx.state(model, nnx.BatchStat))

    def train_step(state: TrainState, batch):
        batch = constrain(batch, layout.rows)
        step_key = jax.random.fold_in(key, state.step)
        params = constrain(state.params, layout.copies)  # gathered: each device runs the whole model on its rows
        gradient = jax.value_and_grad(loss_fn, has_aux=True)
        (mean_loss, (accuracy, statistics)), grads = gradient(params, state.statistics, batch, step_key)
        grads = constrain(grads, layout.state(grads))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": mean_loss,
            "accuracy": accuracy,
            "learning_rate": schedule(state.step),
            "gradient_norm": optax.tree.norm(grads),
            "parameter_norm": optax.tree.norm(params),
            "update_norm": optax.tree.norm(updates),
        }
        is_finite = jnp.all(jnp.isfinite(jnp.stack([metrics[name] for name in GUARDED])))
        bad_step = jnp.where(~is_finite & (state.bad_step < 0), state.step + 1, state.bad_step)
        state = TrainState(state.step + 1, params, opt_state, bad_step, statistics)
        return constrain(state, layout.state(state)), constrain(metrics, layout.copies)

    return jax.jit(train_step, donate_argnums=0)


def make_predict(graphdef: nnx.GraphDef, function):
    """A jitted function (weights, batch) of one of a task's (model, batch), such as `Task.logits`.

    The weights are those of `TrainState.weights`.
    """
    return jax.jit(lambda weights, batch: function(nnx.merge(graphdef, weights), batch))


class Programs(NamedTuple):
    """What a run compiles; see `init_state`, `make_train_step` and `make_predict`."""

    graphdef: nnx.GraphDef
    train_step: Callable
    predict: Callable
    inspect: Callable


_SHARED: dict[str, Programs] = {}  # at most one entry: those of the last run of this process


def share_programs(key: str, make: Callable[[], Programs]) -> Programs:
    """What `make` returns, or what it returned for the last run of this process if that had the same `key`.

    So runs that follow each other in one process, such as the folds of a cross-validation, compile once.
    """
    if key not in _SHARED:
        _SHARED.clear()
        _SHARED[key] = make()
    return _SHARED[key]
