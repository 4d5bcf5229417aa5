"""Text that models of bytes continue."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.errors import UserError
from plstm.models import SequenceConfig, build_model
from plstm.models.text import SIZES, complete, sample

CONTEXT = 16


@pytest.fixture(scope="module")
def model():
    model = build_model(SequenceConfig(blocks=["attention"], dim=8), 0, SIZES)
    model.info = replace(model.info, training={"data": {"context": CONTEXT}})
    return model


def test_each_byte_is_the_likeliest_after_those_that_the_model_reads(model):
    text = "def area(self"
    read = jax.jit(lambda tokens: model(tokens).argmax(-1))
    tokens = [256, *text.encode()]
    for byte in sample(model, text.encode(), 6, 1, temperature=0.0, seed=0)[0].tolist():
        seen = tokens[-CONTEXT:]
        assert byte == read(jnp.array(seen + [0] * (CONTEXT - len(seen))))[len(seen) - 1]
        tokens.append(byte)
    assert complete(model, text, 6) == bytes(tokens[-6:]).decode("utf-8", "replace")


def test_draws_depend_on_seed_and_temperature(model):
    first, again, other = (sample(model, b"x", 2, 9, temperature=0.5, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and len({tuple(row) for row in first.tolist()}) > 5
    likeliest = sample(model, b"x", 2, 9, temperature=0.0, seed=0)
    np.testing.assert_array_equal(sample(model, b"x", 2, 9, temperature=1e-5, seed=3), likeliest)


def test_what_cannot_be_continued_is_named(model):
    with pytest.raises(UserError, match="count=0: must be at least 1"):
        complete(model, "a", 0)
    with pytest.raises(UserError, match="seed=4294967296: must be at least 0 and at most 4294967295"):
        complete(model, "x", 1, seed=2**32)
    with pytest.raises(UserError, match="temperature=nan: must be at least 0"):
        complete(model, "a", 1, temperature=float("nan"))
    for data in ({}, {"context": 0}, {"context": 2**40}, {"context": "8"}):
        damaged = build_model(SequenceConfig(blocks=["attention"], dim=8), 0, SIZES)
        damaged.info = replace(damaged.info, training={"data": data})
        with pytest.raises(UserError, match="its training has data.context=.*, and this takes from 1 to"):
            complete(damaged, "a", 1)
    other = build_model(SequenceConfig(blocks=["attention"], dim=8), 0, {"vocabulary": 2, "classes": 2})
    with pytest.raises(UserError, match="this model of family sequence continues no text"):
        complete(other, "a", 1)
