"""The losses against their definitions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_expit, log_softmax

from plstm.tasks.photographs import LOSSES


@pytest.mark.parametrize(
    ("name", "oracle", "slope"),
    [
        ("cross_entropy", lambda x, targets: -(targets * log_softmax(x, -1)).sum(-1), [-0.65, 0.15, 0.25, 0.25]),
        # Pulls towards both partners.
        (
            "binary_cross_entropy",
            lambda x, targets: -log_expit(np.where(targets > 0, x, -x)).mean(-1),
            [-0.125, -0.125, 0.125, 0.125],
        ),
    ],
)
def test_values_and_gradients_are_the_definitions(name, oracle, slope):
    rng, loss = np.random.default_rng(0), LOSSES[name]
    logits = rng.normal(0, 3, (6, 11))
    targets = rng.dirichlet(np.ones(11), 6) * (rng.random((6, 11)) < 0.4)
    for dtype in (jnp.float32, jnp.bfloat16):
        given = jnp.asarray(logits, dtype)
        value = jax.jit(loss)(given, jnp.asarray(targets, jnp.float32))
        assert value.shape == (6,) and value.dtype == jnp.float32
        np.testing.assert_allclose(value, oracle(np.asarray(given, np.float64), targets), rtol=1e-5)
    gradient = jax.grad(lambda x: loss(x, jnp.array([[0.9, 0.1, 0.0, 0.0]])).sum())(jnp.zeros((1, 4)))
    np.testing.assert_allclose(gradient, [slope], rtol=1e-6)
    extreme, targets = jnp.array([[1e4, -1e4, 0.0], [-1e4, -1e4, 1e4]]), jnp.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert all(np.isfinite(found).all() for found in jax.value_and_grad(lambda x: loss(x, targets).sum())(extreme))
