"""One way to evaluate, used while training, at its end, and by eval.py: so they agree to the last digit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from plstm.tasks.base import Split, Task
from plstm.training.meshes import Layout, make_mesh
from plstm.training.steps import make_predict

BATCHES_IN_FLIGHT = 2  # how far the host may run ahead, as in training


class Ready(NamedTuple):
    """What `evaluate` needs of a model; its arguments have the same names."""

    predict: Callable
    weights: Any
    place: Callable


def make_ready(model: nnx.Module, task: Task, batch_size: int) -> Ready:
    """A model on all devices, a whole copy on each, to be evaluated with `task`'s logits in batches of `batch_size`."""
    layout = Layout(make_mesh(batch_size))
    graphdef, weights = nnx.split(model)
    return Ready(make_predict(graphdef, task.logits), layout.place_copies(weights), layout.place_rows)


def evaluate(
    predict,
    weights: Any,
    split: Split,
    batch_size: int,
    place: Callable = lambda b: b,
    each_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Mean loss (cross entropy, nats), accuracy, and count over every example of a split, each exactly once.

    The last batch is padded to `batch_size` and the padding masked, so that one compiled program serves the split. An
    example labelled -1 counts as wrong, with the loss of a guess.

    Args:
        predict: as `plstm.training.steps.make_predict` returns it.
        weights: what `predict` takes first.
        split: where the batches come from.
        batch_size: examples a batch; it fixes the order of the floating-point sums.
        place: puts a batch on the devices, as `plstm.training.meshes.Layout.place_rows`.
        each_batch: called after each batch; what it raises ends the evaluation.
    """
    sums = []
    for batch in map(place, split.batches(batch_size)):
        sums.append(_batch_sums(predict(weights, batch), batch["label"], batch["mask"]))
        if len(sums) > BATCHES_IN_FLIGHT:
            jax.block_until_ready(sums[-1 - BATCHES_IN_FLIGHT])
        each_batch()
    loss, hits, count = np.sum(np.asarray(jax.device_get(sums), np.float64), axis=0)
    return {"loss": loss / count, "accuracy": hits / count, "count": int(count)}


def describe(name: str, metrics: dict[str, float], noun: str = "images") -> str:
    """One line that training and eval.py both print."""
    loss, accuracy, count = metrics["loss"], metrics["accuracy"], metrics["count"]
    return f"{name:<8}  loss {loss:.6f}  accuracy {accuracy:.6f}  ({count:,} {noun})"


@jax.jit
def _batch_sums(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    losses = jnp.where(labels < 0, math.log(logits.shape[-1]), losses)
    hits = logits.argmax(-1) == labels
    return jnp.sum(losses * mask), jnp.sum(hits & mask), jnp.sum(mask)
