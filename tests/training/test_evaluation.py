"""Evaluation covers every example exactly once, whatever the batch size."""

import jax.numpy as jnp
import numpy as np
import pytest

from data.loading import unpack
from plstm.training.steps import describe, evaluate, make_ready
from tests.models.vision_models import MODELS, filled, tiny
from tests.training.classifying import draw_split, expected_metrics, logits, measure, metrics_of

COUNT = 10


@pytest.fixture(scope="module")
def split():
    return draw_split(COUNT, seed=3)


def linear_predict(params, batch):
    """Logits that tell images apart; padding would score as well."""
    pixels = np.asarray(unpack(np.asarray(batch["image"]), 16), np.float64).reshape(len(batch["image"]), -1) / 255
    return jnp.asarray(pixels @ params, jnp.float32)


@pytest.mark.parametrize("batch_size", [1, 3, 5, 10, 16])
def test_every_example_counts_once(split, batch_size):
    params, seen = np.random.default_rng(0).normal(size=(16 * 16, 2)) / 4, []

    def measure_linear(params, batch):
        seen.append(np.asarray(batch["image"]))
        return metrics_of(linear_predict(params, batch), batch)

    found = evaluate(measure_linear, params, split, batch_size)
    expected = expected_metrics(linear_predict(params, {"image": split.bits}), split.labels)
    assert found == pytest.approx(expected, rel=1e-6) and isinstance(found["count"], int)
    assert {len(bits) for bits in seen} == {batch_size}  # one compiled program serves all
    np.testing.assert_array_equal(np.concatenate(seen)[:COUNT], split.bits)


def test_the_numbers_of_a_model_are_the_direct_mean(split):
    model = filled(tiny(classes=2, **MODELS["ViT"]))
    ready, weights, place = make_ready(model, measure, 4)
    found = logits(model, {"image": split.bits})
    assert evaluate(ready, weights, split, 4, place) == pytest.approx(expected_metrics(found, split.labels), rel=1e-5)


def test_metrics_may_count_other_things_than_examples(split):
    """Sums are added in float64, and a metric that nothing counts towards is no number."""

    def measure_any(weights, batch):
        return {"loss": (jnp.float32(next(totals)), jnp.float32(1)), "none": (jnp.float32(0), jnp.float32(0))}

    totals, batches = iter([2**24, 1, 1, 1]), []
    found = evaluate(measure_any, None, split, 3, each_batch=lambda: batches.append(0))
    assert found["loss"] == (2**24 + 3) / 4 and np.isnan(found["none"]) and found["count"] == COUNT
    assert list(found) == ["loss", "none", "count"] and len(batches) == 4


def test_a_vector_is_a_metric_for_each_length_of_the_split(split):
    class Lengths:
        lengths, batches = (4, 16), staticmethod(split.batches)

    found = iter([([1.0, 0.0, 9.0], [2.0, 0.0, 9.0]), ([0.0, 3.0, 0.0], [1.0, 4.0, 0.0])])
    measure = lambda weights, batch: {"accuracy@": tuple(jnp.array(part) for part in next(found))}  # noqa: E731
    wanted = {"accuracy@4": 1 / 3, "accuracy@16": 0.75, "count": COUNT}
    assert evaluate(measure, None, Lengths, COUNT // 2) == pytest.approx(wanted)


def test_the_line_that_is_printed():
    metrics = {"loss": 0.5, "accuracy@4": 1.0, "accuracy": 0.5, "count": 2}
    assert describe("val", metrics) == "val       loss 0.5000  accuracy 0.5000"
    line = describe("val", {"top5": 0.5, "loss": 0.25, "accuracy": 0.7784, "count": 10_240}, digits=6)
    assert line == "val       loss 0.250000  accuracy 0.778400  top5 0.500000"
