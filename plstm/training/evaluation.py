"""The one way to evaluate, used during training, at its end, and by eval.py, so that all agree to the last digit."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from plstm.training.meshes import Layout, make_mesh
from plstm.training.steps import Batch, Metrics, make_predict

BATCHES_IN_FLIGHT = 2  # how far the host may run ahead, as in training


class Split(Protocol):
    """One split to evaluate on; `len` is its number of examples."""

    def __len__(self) -> int: ...

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """This process's rows of batches, every example once and in order; "mask" is False at padding."""

    def first(self, batch_size: int) -> Batch:
        """The first of `batches`."""


def make_ready(model: nnx.Module, function: Callable, batch_size: int) -> tuple[Callable, Any, Callable]:
    """The arguments measure, weights and place of `evaluate` for a model and a task's function (model, batch)."""
    layout = Layout(make_mesh(batch_size))
    graphdef, weights = nnx.split(model)
    return make_predict(graphdef, function), layout.place_copies(weights), layout.place_rows


def evaluate(
    measure: Callable[[Any, Batch], Metrics],
    weights: Any,
    split: Split,
    batch_size: int,
    place: Callable[[Batch], Batch] = lambda batch: batch,
    each_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The mean of each metric over every example of a split, each exactly once, and "count", the number of examples.

    The last batch is padded, so that one compiled program serves the whole split; the metrics leave out the padding.
    `batch_size` fixes the order of the floating-point sums. `place` puts a batch on the devices; `each_batch` is called
    after each, and what it raises ends the evaluation.
    """
    found = []
    for batch in map(place, split.batches(batch_size)):
        found.append((measure(weights, batch), batch["mask"].sum()))
        if len(found) > BATCHES_IN_FLIGHT:
            jax.block_until_ready(found[-1 - BATCHES_IN_FLIGHT])
        each_batch()
    metrics, counts = zip(*jax.device_get(found), strict=True)
    sums = {name: np.sum([batch[name] for batch in metrics], axis=0, dtype=np.float64) for name in metrics[0]}
    means = {name: float(total / count) if count else math.nan for name, (total, count) in sums.items()}
    return means | {"count": int(sum(counts))}


def describe(name: str, metrics: dict[str, float], unit: str) -> str:
    """One line for a split, as training and eval.py print it; `unit` is the plural name of an example."""
    names = sorted(metrics.keys() - {"count"}, key=lambda metric: (metric != "loss", metric))
    values = "  ".join(f"{metric} {metrics[metric]:.6f}" for metric in names)
    return f"{name:<8}  {values}  ({metrics['count']:,} {unit})"
