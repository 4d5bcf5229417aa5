"""The operator a chunk of batch x heads at a time: the numbers of the whole, however it divides."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.common import chunked_map
from plstm.ops.grid import plstm2d_oracle
from plstm.ops.grid.matrix import by_matrix
from scripts.benchmark import draw_operator_inputs

from .comparing import assert_close, outputs_and_gradients


@functools.cache
def in_chunks(structure, form, number):
    return functools.partial(by_matrix, structure=structure, form=form, chunks=number)


SLOW = [("shared_incoming", "cpu", 2), ("shared_incoming", "cpu", 7), ("general", "row_transfer", 4)]


# Of seven entries: four and three, with one of padding; two each, with one; one each.
@pytest.mark.parametrize(
    ("structure", "form", "number"),
    [("d_mode", "cpu", 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_numbers_of_the_recurrence(x64, structure, form, number):
    inputs = draw_operator_inputs(structure, grid=4, batch=1, heads=7, dim=5)
    values = jax.tree.map(lambda tensor: jnp.asarray(tensor, jnp.float64), inputs)
    arguments = dict(zip(("q", "k", "v", "gates", "direct"), values, strict=True))
    cotangent = jax.random.normal(jax.random.key(1), arguments["v"].shape, jnp.float64)
    found = outputs_and_gradients(in_chunks(structure, form, number), arguments, cotangent)
    expected = outputs_and_gradients(in_chunks(structure, form, 1), arguments, cotangent)
    assert_close(found, expected, 1e-12)
    assert_close(found["output"], jax.jit(plstm2d_oracle)(**arguments), 1e-10)


def test_entries_keep_their_places_in_chunks_of_equal_size():
    a, b = np.arange(7.0), np.arange(14.0).reshape(7, 2)
    calls = []
    found = chunked_map(lambda a, b: calls.append(a.shape) or a[:, None] * b["b"], (a, {"b": b}), 3)
    np.testing.assert_array_equal(found, a[:, None] * b)
    assert set(calls) == {(3,)}


def test_a_large_batch_takes_little_memory():
    inputs = draw_operator_inputs("shared_incoming", grid=6, batch=64, heads=8, dim=4)

    def temporary(number):
        function = jax.value_and_grad(lambda *values: in_chunks("shared_incoming", "auto", number)(*values).sum())
        return jax.jit(function).lower(*inputs).compile().memory_analysis().temp_size_in_bytes

    assert temporary(16) < temporary(1) / 4
