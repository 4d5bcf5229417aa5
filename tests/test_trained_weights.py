"""What the weights in results/weights compute: the numbers they gave when they were kept, and walks that are solved."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.random import RandomState

import plstm
from data.walk import answer, draw_walks
from plstm.nn.recurrent import Rows
from plstm.tasks.graphs import GraphBatches
from tests.commands import ROOT
from tests.tasks.test_graph_batches import TOY

FOLDER = ROOT / "results/weights"
TEXT = 'def add(left, right):\n    """Return the sum."""\n    return left + r'  # longer than the windows of attention
# Of each file, for the input below: some of the outputs for the last token, by their place. New weights, new numbers.
OUTPUTS = {
    "arrow-plstm": {0: -4.8785, 1: 4.9686},
    "arrow-plstm-d_mode": {0: 4.2498, 1: -4.4560},
    "arrow-vit": {0: 6.5375, 1: -6.4387},
    "code-plstm": {101: 2.6906, 105: 5.4120, 111: 1.7373},
    "code-student": {101: 4.8985, 105: 4.7576, 111: 2.7140},
    "code-teacher": {101: 3.8163, 105: 6.8044, 111: 2.0101},
    "majority-plstm": {0: 5.1939, 1: -6.1276},
    "missing_duplicate-pr_lstm": {0: -3.4442, 1: 3.4375},
    "mutag-plstm": {0: 6.0000, 1: -5.0771},
    "s3-xlstm": {0: 8.6707, 1: 1.2352, 3: 2.1997},
    "series-gdn": {0: 0.3342, 72: 0.4783, 143: 0.7877},
    "walk-plstm": {0: -4.2584, 1: -3.5264, 5: 6.3940},
}
QUICK = {"arrow-plstm", "code-student", "series-gdn"}


def example(info) -> tuple:
    """An input for the model."""
    config = info.config
    if config.family == "vision":
        shape = (1, config.image_size, config.image_size, config.channels)
        return (jnp.asarray(np.sin(np.arange(math.prod(shape))).reshape(shape), jnp.float32),)
    if config.family == "series":
        return jnp.asarray(np.sin(np.arange(64)), jnp.float32), jnp.arange(64) % 5 > 0
    if config.family == "language":
        return (Rows(jnp.array([[1, 0, 1, 3, 1, 0, 1, 4]]), jnp.array([7]), jnp.array([8])),)
    if config.family == "graph":
        labels = np.eye(info.sizes["features"], dtype=np.float32)[np.arange(len(TOY.features)) % 7]
        return (GraphBatches(dataclasses.replace(TOY, features=labels), 1).batch([0]),)
    return (jnp.array(list(TEXT.encode())) % info.sizes["classes"],)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OUTPUTS]
)
def test_trained_weights_compute_what_they_computed(name):
    model = plstm.load(FOLDER / f"{name}.safetensors")
    answers = (1,) if model.info.config.family == "language" else ()
    outputs = nnx.jit(lambda model, arguments: model(*arguments, *answers))(model, example(model.info))
    last = np.asarray(outputs[-1]).ravel()
    assert {place: last[place] for place in OUTPUTS[name]} == pytest.approx(OUTPUTS[name], abs=2e-3)


def test_every_file_of_weights_is_in_the_table():
    assert {path.stem for path in FOLDER.iterdir()} == OUTPUTS.keys()


def test_the_model_of_walks_solves_them():
    """Chance is 1/6."""
    cells = draw_walks(RandomState(0), "s3", 6, np.full(200, 7))
    images = np.concatenate([np.eye(6)[cells[..., 0]], np.eye(2)[cells[..., 1]], cells[..., 2:]], axis=-1)
    logits = jax.jit(plstm.load(FOLDER / "walk-plstm.safetensors"))(jnp.asarray(images, jnp.float32))
    assert (logits.argmax(-1) == answer("s3", cells)).mean() >= 0.95
