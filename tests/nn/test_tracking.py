"""Transitions as matrices on grids: orthogonal factors, and the bounds of Appendix D.7."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.nn.sequence import rotation
from plstm.nn.tracking import TRANSITIONS, TrackingMixer, delta, reflections

norm = lambda matrix: np.linalg.norm(matrix, ord=2, axis=(-2, -1))  # noqa: E731


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_products_of_reflections_are_orthogonal(size):
    a = jax.random.normal(jax.random.key(0), (size**2, 50))
    found = np.moveaxis(np.asarray(reflections(a, size)), -1, 0)
    np.testing.assert_allclose(found @ found.swapaxes(-1, -2), np.tile(np.eye(size), (50, 1, 1)), atol=1e-5)
    np.testing.assert_allclose(np.linalg.det(found), (-1) ** size, rtol=1e-5)
    turned = np.moveaxis(np.asarray(rotation(a, size)), -1, 0)
    np.testing.assert_allclose(np.linalg.det(turned), 1, rtol=1e-4)


def test_delta_is_one_plus_beta_k_k(x64):
    """D.6: T = 1 + beta k k^T; beta in (-2, 0) keeps its norm at 1."""
    a = jnp.asarray([3.0, 4.0, 0.7])
    beta, k = -2 / (1 + np.exp(-0.7)), np.array([0.6, 0.8])
    np.testing.assert_allclose(delta(a, 2), np.eye(2) + beta * np.outer(k, k), rtol=1e-10)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("mode", ["P", "D"])
def test_spectral_norms_are_bounded(mode, transitions):
    """D.7: those of what leaves an edge sum to at most 1 in P-mode; in D-mode each is at most 1 and one is zero."""
    mixer = TrackingMixer(24, 2, mode, track=3, transitions=transitions, rngs=nnx.Rngs(0))
    x = 3 * jax.random.normal(jax.random.key(1), (2, 3, 4, 24))
    gates = mixer.gates(x)
    assert gates.s_r.shape == gates.m_u.shape == (2, 2, 4, 3, 4, 3, 1, 3) and gates.t_du.shape == (2, 2, 4, 3, 4, 3, 3)
    left, upper = norm(gates.t_rl) + norm(gates.t_dl), norm(gates.t_ru) + norm(gates.t_du)
    if mode == "P":
        assert max(left.max(), upper.max()) <= 1 + 1e-5 and left.max() > 0.9
    else:
        assert not gates.t_ru.any() and max(norm(t).max() for t in (gates.t_rl, gates.t_dl, gates.t_du)) <= 1 + 1e-5
    assert mixer(x).shape == x.shape


def test_what_does_not_fit_is_named():
    message = "mode='P' must be P or D, track=5 from 1 to 4, and dim=24 a multiple of heads x track"
    with pytest.raises(ValueError, match=message):
        TrackingMixer(24, 2, track=5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="transitions must be one of rotation, householder, delta"):
        TrackingMixer(24, 2, track=2, transitions="shift", rngs=nnx.Rngs(0))
