"""Evaluation covers every example exactly once, whatever the batch size."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from data.loading import unpack
from plstm.tasks.vision import normalise
from plstm.training.evaluation import describe, evaluate
from plstm.training.steps import make_predict

COUNT = 10


@pytest.fixture(scope="module")
def split(draw_split):
    return draw_split(COUNT, seed=3)


def linear_predict(params, batch):
    """Logits that tell images apart; padding would score as well."""
    pixels = np.asarray(unpack(np.asarray(batch["image"]), 16), np.float64).reshape(len(batch["image"]), -1) / 255
    return jnp.asarray(pixels @ params, jnp.float32)


def expected_metrics(logits, labels):
    logits = np.asarray(logits, np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]
    return {"loss": losses.mean(), "accuracy": (logits.argmax(-1) == labels).mean(), "count": len(labels)}


@pytest.mark.parametrize("batch_size", [1, 3, 5, 10, 16])
def test_every_example_counts_once(split, batch_size):
    params = np.random.default_rng(0).normal(size=(16 * 16, 2)) / 4
    seen = []

    def predict(params, batch):
        seen.append(np.asarray(batch["image"]))
        return linear_predict(params, batch)

    found = evaluate(predict, params, split, batch_size)
    expected = expected_metrics(linear_predict(params, {"image": split.bits}), split.labels)
    assert found["count"] == COUNT and isinstance(found["count"], int)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["accuracy"] == expected["accuracy"]
    assert {len(bits) for bits in seen} == {batch_size}  # one compiled program serves all
    np.testing.assert_array_equal(np.concatenate(seen)[:COUNT], split.bits)


def test_padding_cannot_score(split):
    """A model that is sure of class 0, which padding is labelled with."""
    found = evaluate(lambda params, batch: jnp.tile(jnp.array([[9.0, 0.0]]), (len(batch["label"]), 1)), None, split, 7)
    assert found["accuracy"] == (split.labels == 0).mean()
    assert found["loss"] == pytest.approx(np.log1p(np.exp(-9)) + 9 * (split.labels == 1).mean(), rel=1e-6)


def test_a_model_s_numbers_are_the_direct_mean(split, tiny_config, filled):
    graphdef, params = nnx.split(filled(tiny_config("ViT")))
    predict = make_predict(graphdef, lambda model, batch: model(normalise(batch["image"])))
    found = evaluate(predict, params, split, 4)
    first, second, third = (np.asarray(predict(params, {"image": split.bits[at : at + 4]})) for at in (0, 4, 6))
    expected = expected_metrics(np.concatenate([first, second, third[2:]]), split.labels)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["accuracy"] == expected["accuracy"]
    assert evaluate(predict, params, split, 4) == found


def test_the_line_that_is_printed():
    line = describe("test_ext", {"loss": 0.25, "accuracy": 0.7784, "count": 10_240})
    assert line == "test_ext  loss 0.250000  accuracy 0.778400  (10,240 images)"
