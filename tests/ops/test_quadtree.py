"""The benchmark's quad-tree against the oracle: a yardstick must measure the same thing."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.grid import GridGates
from plstm.ops.grid.oracle import gating_matrix_oracle
from scripts.benchmarks.quadtree import gating_matrix


@pytest.mark.parametrize("size", [(1, 1), (4, 3), pytest.param((5, 7), marks=pytest.mark.slow)])
def test_quadtree_is_the_gating_matrix(x64, outputs_and_gradients, assert_close, size):
    height, width = size
    rng = np.random.default_rng(0)
    gates = GridGates(*(jnp.asarray(rng.uniform(-1, 1, (2, 4, *size))) for _ in GridGates._fields))
    cotangent = jnp.asarray(rng.normal(size=(2, height, width, height, width)))
    expected = outputs_and_gradients(gating_matrix_oracle, {"gates": gates}, cotangent)
    actual = outputs_and_gradients(gating_matrix, {"gates": gates}, cotangent)
    assert_close(actual, expected, 1e-12)
