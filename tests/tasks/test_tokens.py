"""The task of token models: its batches, its metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.runs.compose import to_config
from plstm.tasks.tokens import TokenTask, token_metrics
from plstm.training.steps import evaluate
from tests.data.batching import crc

from .batches import assert_batches_depend_on_seed_and_step


@pytest.fixture(scope="module")
def make(composed):
    def make(*overrides):
        return TokenTask(to_config(composed("experiment=tokens/plstm", "variant=length_32", "debug=smoke", *overrides)))

    return make


def test_batches_depend_on_seed_and_step_alone(make):
    task, other, _ = assert_batches_depend_on_seed_and_step(make, "data.name=s3", pinned="2bbe5efa")
    for array in task.draw_batch(7).values():
        assert array.shape == (32, 16) and array.dtype == np.int8
    for split, pinned in (("val", "349477bf"), ("test", "1c47679a")):
        np.testing.assert_array_equal(task.draw_at(split, 16)["tokens"], other.draw_at(split, 16)["tokens"])
        assert crc(task.draw_at(split, 16).values()) == pinned
    assert (task.draw_at("val", 16)["tokens"] != task.draw_at("test", 16)["tokens"]).any()


def test_metrics_count_the_last_label_all_labels_and_no_padding():
    label = np.array([[0, -1, 1, -1], [1, 1, 0, 1], [1, 1, 1, 1]], np.int8)
    logits = jnp.zeros((3, 4, 2)).at[..., 1].set(1.0)  # class 1 everywhere
    batch = {"label": label, "mask": np.array([True, True, False])}
    low, high = np.log(1 + np.e) - 1, np.log(1 + np.e)  # the loss of class 1, of class 0
    found = token_metrics(logits, batch, "all")
    assert found["accuracy"] == (2, 2) and found["accuracy_all"] == (4, 6)
    np.testing.assert_allclose(found["loss"], (4 * low + 2 * high, 6), rtol=1e-6)
    np.testing.assert_allclose(token_metrics(logits, batch, "last")["loss"], (2 * low, 2), rtol=1e-6)


def test_a_loss_of_the_last_labels_alone_trains_and_evaluates(make):
    task = make("data.name=s3", "data.supervision=last")
    batch = task.draw_batch(0) | {"mask": np.ones(32, bool), "group": np.zeros(32, np.int32)}

    @jax.jit
    def found(batch, logits):
        def model(tokens, key):
            return logits

        expected = token_metrics(logits, batch, "last")["loss"]
        return expected, task.loss(model, batch, None)[0], task.metrics(model, batch)["loss"]

    (total, count), loss, evaluated = found(batch, np.random.default_rng(0).normal(size=(32, 16, 6)))
    assert count == 32 and loss == total / count and evaluated == (total, count)


def test_evaluation_has_each_length_and_rescales_by_chance(make):
    """A model that knows the class of a half of the rows, here of those whose first token is 0."""
    task = make("data.name=z5")

    @jax.jit
    def measure(_, batch):
        known = (batch["tokens"][:, :1] == 0) | (batch["label"] < 0)
        logits = jnp.where(known[..., None], jnp.eye(5)[batch["label"]], jnp.eye(5)[(batch["label"] + 1) % 5])
        return task.metrics(lambda tokens, key: logits, batch)

    found = evaluate(measure, None, task.split("test"), 32)
    assert found["count"] == 3 * 40
    shares = [(task.draw_at("test", length)["tokens"][:, 0] == 0).mean() for length in (16, 64, 256)]
    np.testing.assert_allclose([found[f"accuracy@{length}"] for length in (16, 64, 256)], shares, rtol=1e-6)
    np.testing.assert_allclose(found["accuracy"], np.mean(shares), rtol=1e-6)
    np.testing.assert_allclose(found["rescaled@64"], (shares[1] - 0.2) / 0.8, rtol=1e-5, atol=1e-6)
