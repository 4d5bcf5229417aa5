"""The task of walks: its batches, its metrics, what configs it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.errors import UserError
from plstm.runs.compose import to_config
from plstm.tasks.walk import WalkTask
from plstm.training.steps import evaluate
from tests.data.batching import crc

from .batches import assert_batches_depend_on_seed_and_step


@pytest.fixture(scope="module")
def make(composed):
    return lambda *words: WalkTask(to_config(composed("experiment=walk/plstm", "debug=smoke", *words)))


def test_batches_depend_on_seed_and_step_alone(make):
    task, other, _ = assert_batches_depend_on_seed_and_step(make, pinned="fef253d7")
    for split, side, pinned in (("val", 4, "894e0d30"), ("test", 4, "8256de90"), ("test_ext", 8, "46767e82")):
        assert task.draw_at(split, 7)["cells"].shape == (16, side, side, 3)
        np.testing.assert_array_equal(task.draw_at(split, 7)["cells"], other.draw_at(split, 7)["cells"])
        assert crc(task.draw_at(split, 7).values()) == pinned
    assert (task.draw_at("val", 7)["cells"] != task.draw_at("test", 7)["cells"]).any()


def test_evaluation_has_each_length(make):
    """A model that answers by the element in the corner knows walks of one cell, which are not evaluated, alone."""
    task = make("data.name=z5")
    assert (task.config.model.channels, task.config.model.classes) == (8, 5)

    def measure(_, batch):
        right = jnp.arange(5) == batch["label"][:, None]
        known = batch["group"][:, None] == 1
        return task.metrics(lambda images, key: jnp.where(known, right, right[:, ::-1] * 0.0), batch)

    found = evaluate(measure, None, task.split("test_ext"), 32)
    assert [*task.lengths("test")] == [2, 4, 7] and [*task.lengths("test_ext")] == [2, 4, 7, 15]
    assert found["count"] == 64 and found["accuracy@4"] == 1
    zeros = [(task.draw_at("test_ext", length)["label"] == 0).mean() for length in (2, 7, 15)]
    np.testing.assert_allclose([found[f"accuracy@{length}"] for length in (2, 7, 15)], zeros)


def test_a_model_sees_element_arrow_and_start(make):
    task = make()
    batch = task.draw_batch(0)
    seen = np.asarray(task.logits(lambda images, key: images, batch))
    np.testing.assert_array_equal(seen[..., :6].argmax(-1), batch["cells"][..., 0])
    np.testing.assert_array_equal(seen[..., 7], batch["cells"][..., 1])
    np.testing.assert_array_equal(seen[..., 8], batch["cells"][..., 2])
    np.testing.assert_array_equal(seen.sum(-1), 2 + batch["cells"][..., 2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.name=s4"], "data.name=s4: choose one of z2, s3, z5"),
        (["data.classes=7"], "data.classes=7: the group has 6"),
        (["model.channels=3"], "model.channels=3: follows the data"),
        (["model.image_size=8"], "model.image_size=8: follows the data"),
        (["data.side=3"], r"data.side=3: must be in \[4, 64\]"),
    ],
)
def test_what_does_not_fit_is_named(make, words, message):
    with pytest.raises(UserError, match=f"^{message}"):
        make(*words)


def test_models_of_pictures_alone_are_named(composed):
    words = ["model.image_size=6", "model.patch_size=1", "loop.eval_splits=[val]", "loop.final_splits=[val]"]
    with pytest.raises(UserError, match="^model.family=vil: is not for this task; choose vision"):
        to_config(composed("data=walk", "model=vil_small", "optim=tokens", *words))
