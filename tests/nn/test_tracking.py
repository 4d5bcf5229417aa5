"""Transitions as matrices on grids: orthogonal factors, the bounds of Appendix D.7, and the layer node by node."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.linalg import expm
from scipy.special import expit

from plstm.nn.sequence import rotation
from plstm.nn.tracking import TRANSITIONS, TrackingMixer, delta, reflections
from tests.drawing import fill, normal

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
        largest = [norm(t).max() for t in (gates.t_rl, gates.t_dl, gates.t_du)]
        assert not gates.t_ru.any() and max(largest) <= 1 + 1e-5 and min(largest) > 0.5
    assert mixer(x).shape == x.shape


def node_gates(mode, source, mark, numbers, orientation=None):
    """Of a node and direction, of their pre-activations by kind: the sources of the right and the lower edge, and what
    leads from the left and the upper edge, side by side, to the right edge, to the lower one and to the mark. A
    transition is U diag(l) W, U and W rotations."""
    turns = [[expm(a - a.T) for a in row[:8].reshape(2, 2, 2)] for row in numbers]
    eigenvalues = np.tanh(numbers[:, 8:] * [4, 1] + [0, 2.5])
    t = [after @ np.diag(values) @ before for (after, before), values in zip(turns, eigenvalues, strict=True)]
    if mode == "D":
        m_l, m_u = expit(mark)
        return *expit(source), np.hstack([t[0], 0 * t[0]]), np.hstack(t[1:]), np.hstack([m_l * t[0], m_u * t[2]])
    alpha, both = expit(orientation[0]), np.hstack([t[0], t[0]])
    s_r, s_d = alpha * expit(source[0]), (1 - alpha) * expit(source[0])
    return s_r, s_d, alpha * both, (1 - alpha) * both, expit(mark[0]) * both


def node_by_node(mixer, mode, x):
    """The layer of two heads, 2 x 2 transitions and eight channels: x [Y, X, 8] -> the same."""

    def linear(name, *shape):
        layer = getattr(mixer, name)
        return (x @ np.asarray(layer.kernel[...], np.float64) + layer.bias[...]).reshape(*x.shape[:2], *shape)

    q, k, v = linear("query", 2, 4), linear("key", 2, 4), linear("value", 2, 2, 2)
    pre = [linear("source", -1, 2, 4), linear("mark", -1, 2, 4), linear("transition", -1, 2, 4, 10)]
    pre += [linear("orientation", -1, 2, 4)] if mode == "P" else []
    hidden = expit(mixer.direct_bias[...])[:, None, None] * (q * k / 2).sum(-1)[..., None, None] * v
    for head, direction in np.ndindex(2, 4):
        down, right = 1 - direction // 2 * 2, 1 - direction % 2 * 2
        left, upper = np.zeros((2, x.shape[0] + 1, x.shape[1] + 1, 2, 4, 2))  # the last row and column: never read
        for y in range(x.shape[0])[::down]:
            for z in range(x.shape[1])[::right]:
                s_r, s_d, to_right, to_down, mark = node_gates(mode, *(part[y, z, :, head, direction] for part in pre))
                new = np.einsum("k,at->tka", k[y, z, head], v[y, z, head])
                edges = np.concatenate([left[y, z], upper[y, z]])
                left[y, z + right] = np.tensordot(to_right, edges, 1) + s_r * new
                upper[y + down, z] = np.tensordot(to_down, edges, 1) + s_d * new
                hidden[y, z, head] += np.einsum("k,tka->at", q[y, z, head] / 2, np.tensordot(mark, edges, 1))
    hidden /= np.sqrt((hidden**2).mean((-1, -2), keepdims=True) + 1e-5)
    return hidden.reshape(x.shape) * mixer.norm_scale[...] @ np.asarray(mixer.out.kernel[...])


@pytest.mark.parametrize("mode", ["P", "D"])
def test_the_layer_is_its_equations_node_by_node(mode):
    mixer, x = fill(lambda: TrackingMixer(8, 2, mode, rngs=nnx.Rngs(0))), normal(1, 2, 3, 8)
    np.testing.assert_allclose(jax.jit(mixer)(x)[0], node_by_node(mixer, mode, x[0]), rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_named():
    message = "mode='P' must be P or D, track=5 from 1 to 4, and dim=24 a multiple of heads x track"
    with pytest.raises(ValueError, match=message):
        TrackingMixer(24, 2, track=5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="dim=24 a multiple of heads x track"):
        TrackingMixer(24, 0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="transitions must be one of rotation, householder, delta"):
        TrackingMixer(24, 2, track=2, transitions="shift", rngs=nnx.Rngs(0))
