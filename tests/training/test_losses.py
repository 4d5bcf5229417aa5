import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.training.losses import LOSSES, binary_cross_entropy, cross_entropy


def softmax_oracle(logits, targets):
    shifted = logits - logits.max(-1, keepdims=True)
    return -(targets * (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))).sum(-1)


def binary_oracle(logits, targets):
    present = targets > 0
    probability = 1 / (1 + np.exp(-logits))
    return -np.where(present, np.log(probability), np.log(1 - probability)).mean(-1)


def test_known_value_of_binary_cross_entropy():
    value = binary_cross_entropy(jnp.array([[1.0, -1.0, 0.0, 2.0]]), jnp.array([[0.3, 0.7, 0.0, 0.0]]))
    np.testing.assert_allclose(value, [1.1116498], rtol=1e-6)


@pytest.mark.parametrize("name, oracle", [("cross_entropy", softmax_oracle), ("binary_cross_entropy", binary_oracle)])
def test_values_are_the_definitions(name, oracle):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (6, 11))
    targets = rng.dirichlet(np.ones(11), 6) * (rng.random((6, 11)) < 0.4)
    value = jax.jit(LOSSES[name])(logits, targets)
    assert value.shape == (6,) and value.dtype == jnp.float32
    np.testing.assert_allclose(value, oracle(logits, targets), rtol=1e-5)
    half = LOSSES[name](jnp.asarray(logits, jnp.bfloat16), jnp.asarray(targets, jnp.float32))
    assert half.dtype == jnp.float32
    rounded = np.asarray(jnp.asarray(logits, jnp.bfloat16), np.float64)
    np.testing.assert_allclose(half, oracle(rounded, targets), rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_logits_give_finite_values_and_gradients(name):
    logits = jnp.array([[1e4, -1e4, 0.0], [-1e4, -1e4, 1e4]])
    targets = jnp.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    value, gradient = jax.value_and_grad(lambda x: LOSSES[name](x, targets).sum())(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_gradient_pulls_towards_both_partners():
    logits, targets = jnp.zeros((1, 4)), jnp.array([[0.9, 0.1, 0.0, 0.0]])
    gradient = jax.grad(lambda x: binary_cross_entropy(x, targets).sum())(logits)
    np.testing.assert_allclose(gradient, [[-0.125, -0.125, 0.125, 0.125]])
    gradient = jax.grad(lambda x: cross_entropy(x, targets).sum())(logits)
    np.testing.assert_allclose(gradient, [[-0.65, 0.15, 0.25, 0.25]], rtol=1e-6)
