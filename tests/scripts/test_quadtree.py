"""The benchmark's quad-tree against the oracle: a yardstick must measure the same thing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.grid import GridGates
from plstm.ops.grid.oracle import gating_matrix_oracle
from scripts.benchmarks.quadtree import gating_matrix


@pytest.mark.parametrize("size", [(1, 1), (4, 3), pytest.param((5, 7), marks=pytest.mark.slow)])
def test_quadtree_is_the_gating_matrix(size):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        gates = GridGates(*(jnp.asarray(rng.uniform(-1, 1, (2, 4, *size))) for _ in GridGates._fields))
        cotangent = jnp.asarray(rng.normal(size=(2, *size, *size)))
        found, backward = jax.vjp(gating_matrix, gates)
        expected, expected_backward = jax.vjp(gating_matrix_oracle, gates)
        pairs = zip((found, *backward(cotangent)[0]), (expected, *expected_backward(cotangent)[0]), strict=True)
        for actual, wanted in pairs:
            np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12 * float(jnp.abs(wanted).max()))
