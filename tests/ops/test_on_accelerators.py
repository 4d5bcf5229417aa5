"""The forms of the 2-D operator on a GPU or TPU, whose products are rounded unless told otherwise."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

from plstm.ops.grid import METHODS, plstm2d
from plstm.ops.grid.oracle import plstm2d_oracle

from .test_grid import STRUCTURE, assemble, draw

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", list(STRUCTURE))
@pytest.mark.parametrize("method", METHODS)
def test_values_and_gradients_on_the_device(outputs_and_gradients, assert_close, method, kind):
    assert jax.default_backend() != "cpu"
    if method == "fused" and jax.default_backend() != "gpu":
        pytest.skip("the kernels are for GPUs")
    arguments, cotangent = draw((2, 2, 12, 12), kind, jnp.float32)

    def operator(q, k, v, free, direct, form):
        return form(q, k, v, assemble(free), direct)

    fast = functools.partial(plstm2d, method=method, structure=STRUCTURE[kind])
    with jax.default_matmul_precision("highest"):
        found = outputs_and_gradients(functools.partial(operator, form=fast), arguments, cotangent)
        expected = outputs_and_gradients(functools.partial(operator, form=plstm2d_oracle), arguments, cotangent)
    assert_close(found, expected, 1e-4)
