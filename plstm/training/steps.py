"""The training step, what a training run carries from step to step, and evaluation."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from plstm.training.meshes import Layout, make_mesh

Batch = dict[str, Any]  # of arrays
# Name -> (sum, count), float32 scalars; in an evaluation perhaps vectors, an entry for each of the split's `lengths`.
Metrics = dict[str, tuple[jax.Array, jax.Array]]


class Batches(Protocol):
    """What to train on."""

    def from_step(self, step: int) -> Iterator[Batch]:
        """Device-placed batches forever, deterministic in the run's seed and the step, from 0."""
        ...


class Split(Protocol):
    """What to evaluate on. One whose metrics are vectors also has `lengths`, what each entry is of: lengths of rows, or
    names. One with metrics that are no means over examples has `summarise`, which adds them to the means."""

    def __len__(self) -> int:
        """The number of examples."""
        ...

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """This process's rows of batches, every example once and in order, with "mask" False at padding; of
        `batch_size` rows, unless the split has its own."""
        ...

    def first(self, batch_size: int) -> Batch:
        """The first of `batches`."""
        return next(self.batches(batch_size))


GUARDED = ("loss", "gradient_norm", "parameter_norm")  # a run stops when one of these is not finite


def named_leaves(tree: Any) -> dict[str, Any]:
    """Name, such as blocks.0.mlp.up.kernel -> leaf, in the order of the leaves; without nnx's "value" at its end."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    value = jax.tree_util.GetAttrKey("value")
    name = partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name(tuple(key for key in path if key != value)): leaf for path, leaf in leaves}


def named_mask(tree: Any, parts: Sequence[str]) -> Any:
    """A tree like `tree`, of bools: whether one of `parts` is a part of the leaf's dotted name."""
    return jax.tree.unflatten(jax.tree.structure(tree), [has_part(name, parts) for name in named_leaves(tree)])


def has_part(name: str, parts: Sequence[str]) -> bool:
    return any(part in parts for part in name.split("."))


class TrainState(NamedTuple):
    """All that changes from step to step, and so all that a checkpoint holds."""

    step: jax.Array  # int32, steps taken
    params: Any  # float32
    opt_state: Any  # optax's
    bad_step: jax.Array  # int32, the first step whose loss, gradient or new parameters were not finite, or -1
    statistics: Any = None  # running statistics of batch norms, None if the model has none

    @property
    def weights(self) -> Any:
        return self.params if self.statistics is None else nnx.merge_state(self.params, self.statistics)


class StepMetrics(NamedTuple):
    """What a training step reports."""

    averaged: Metrics  # the task's, which are averaged over steps
    latest: dict[str, jax.Array]  # float32: learning_rate, gradient_norm (before clipping), parameter_norm, update_norm


def init_state(model: nnx.Module, optimizer: optax.GradientTransformation) -> TrainState:
    """The state of step 0."""
    _, *states = nnx.split(model, nnx.Param, nnx.BatchStat)
    params, statistics = states
    has_statistics = bool(jax.tree.leaves(statistics))
    opt_state = optimizer.init(params)
    return TrainState(jnp.int32(0), params, opt_state, jnp.int32(-1), statistics if has_statistics else None)


def make_train_step(
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    loss: Callable[[nnx.Module, Batch, jax.Array], tuple[jax.Array, Metrics]],
    *,
    layout: Layout,
    microbatches: int = 1,
    only: Sequence[str] = (),
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, StepMetrics]]:
    """The jitted training step (state, batch, key) -> (state, StepMetrics).

    `loss` is a task's; step n gets fold_in(key, n), and the model may update its running statistics. `state`, placed by
    `layout`, is donated. `key` is an argument, so that runs which differ only in their seed share the compiled program.
    microbatches: see `in_microbatches`. only: as in `build_optimizer`; other parameters have gradients of 0.
    """
    constrain = jax.lax.with_sharding_constraint

    def loss_fn(params, statistics, batch, key):
        if only:
            params = jax.tree.map(_hold, params, named_mask(params, only))
        model = nnx.merge(graphdef, params, statistics or {}, copy=True)  # it may write to its statistics
        mean_loss, metrics = loss(model, batch, key)
        return mean_loss, (metrics, statistics and nnx.state(model, nnx.BatchStat))

    gradient = in_microbatches(jax.value_and_grad(loss_fn, has_aux=True), microbatches)

    def train_step(state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, StepMetrics]:
        batch = constrain(batch, layout.rows)
        params = constrain(state.params, layout.copies)  # gathered: each device runs the whole model on its rows
        key = jax.random.fold_in(key, state.step)
        with jax.sharding.use_abstract_mesh(layout.mesh.abstract_mesh):  # operators split their batch over it
            (mean_loss, (averaged, statistics)), grads = gradient(params, state.statistics, batch, key)
        grads = constrain(grads, layout.state(grads))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        latest = {
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "gradient_norm": optax.tree.norm(grads),
            "parameter_norm": optax.tree.norm(params),
            "update_norm": optax.tree.norm(updates),
        }
        guarded = {"loss": mean_loss} | latest
        is_finite = jnp.all(jnp.isfinite(jnp.stack([guarded[name] for name in GUARDED])))
        bad_step = jnp.where(~is_finite & (state.bad_step < 0), state.step + 1, state.bad_step)
        state = TrainState(state.step + 1, params, opt_state, bad_step, statistics)
        metrics = constrain(StepMetrics(averaged, latest), layout.copies)
        return constrain(state, layout.state(state)), metrics

    return jax.jit(train_step, donate_argnums=0)


def _hold(leaf: jax.Array, is_trained: bool) -> jax.Array:
    return leaf if is_trained else jax.lax.stop_gradient(leaf)


def in_microbatches(gradient: Callable, count: int) -> Callable:
    """A `value_and_grad(..., has_aux=True)` of (params, statistics, batch, key) that takes `count` equal parts of the
    batch one after the other, so that their tensors stay in a CPU's cache. It is for losses that are means over
    independent examples, metrics that are sums, and models without running statistics."""
    if count == 1:
        return gradient

    def whole(params, statistics, batch, key):
        def add(total, microbatch):
            number, examples = microbatch
            here = gradient(params, statistics, examples, jax.random.fold_in(key, number))
            return jax.tree.map(jnp.add, total, here), None

        split = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
        first = jax.tree.map(lambda x: x[0], split)
        shapes = jax.eval_shape(gradient, params, statistics, first, key)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        ((loss, metrics), grads), _ = jax.lax.scan(add, zeros, (jnp.arange(count), split))
        mean_loss, grads = jax.tree.map(lambda total: total / count, (loss, grads))
        return (mean_loss, metrics), grads

    return whole


def make_predict(
    graphdef: nnx.GraphDef, function: Callable[[nnx.Module, Batch], Any], layout: Layout | None = None
) -> Callable[[Any, Batch], Any]:
    """A jitted function (weights, batch) of a task's (model, batch); the weights are those of `TrainState.weights`.
    layout: where weights and batch lie; None: on one device."""

    def predict(weights: Any, batch: Batch) -> Any:
        with jax.sharding.use_abstract_mesh(layout.mesh.abstract_mesh) if layout else contextlib.nullcontext():
            return function(nnx.merge(graphdef, weights), batch)

    return jax.jit(predict)


# ---------------------------------------------------------------------- evaluation
# The one way to evaluate, used during training, at its end, and by eval.py, so that all agree to the last digit.
BATCHES_IN_FLIGHT = 2  # how far the host may run ahead, as in training


def make_ready(model: nnx.Module, function: Callable, batch_size: int) -> tuple[Callable, Any, Callable]:
    """The arguments measure, weights and place of `evaluate` for a model and a task's function (model, batch)."""
    layout = Layout(make_mesh(batch_size))
    graphdef, weights = nnx.split(model)
    return make_predict(graphdef, function, layout), layout.place_copies(weights), layout.place_rows


def evaluate(
    measure: Callable[[Any, Batch], Metrics],
    weights: Any,
    split: Split,
    batch_size: int,
    place: Callable[[Batch], Batch] = lambda batch: batch,
    each_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Each metric's sum over its count, over every example of a split, each exactly once, and "count", the number of
    examples.

    The last batch is padded, so that one compiled program serves the whole split; the metrics leave out the padding.
    `batch_size` fixes the order of the floating-point sums. A metric that is a vector becomes one for each of the
    split's lengths: accuracy@ becomes accuracy@64, ... `place` puts a batch on the devices;
    `each_batch` is called after each, and what it raises ends the evaluation.
    """
    found = []
    for batch in map(place, split.batches(batch_size)):
        found.append((measure(weights, batch), batch["mask"].sum()))
        if len(found) > BATCHES_IN_FLIGHT:
            jax.block_until_ready(found[-1 - BATCHES_IN_FLIGHT])
        each_batch()
    metrics, counts = zip(*jax.device_get(found), strict=True)
    sums = {name: np.sum([batch[name] for batch in metrics], axis=0, dtype=np.float64) for name in metrics[0]}
    means = {}
    for name, pair in sums.items():
        lengths: Sequence[int | str] = getattr(split, "lengths", ()) if pair.ndim > 1 else ()
        if pair.ndim > 1 and not lengths:
            raise TypeError(f"{name}: a vector, and the split has no lengths, which its entries are of")
        names = [f"{name}{length}" for length in lengths] or [name]
        for each, total, count in zip(names, *pair.reshape(2, -1)[:, : len(names)], strict=True):
            means[each] = float(total / count) if count else math.nan
    summarise = getattr(split, "summarise", dict)
    return summarise(means) | {"count": int(sum(counts))}


def describe(name: str, metrics: dict[str, float], digits: int = 4) -> str:
    """A split's metrics in one line, without those of single lengths."""
    names = sorted((name for name in metrics if name != "count" and "@" not in name), key=lambda n: (n != "loss", n))
    values = "  ".join(f"{metric} {metrics[metric]:.{digits}f}" for metric in names)
    return f"{name:<8}  {values}"
