"""The mLSTM: chunks against steps, published values, extreme gates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.mlstm import mlstm
from tests.models.golden import check as check_golden
from tests.models.golden import waves

from .comparing import check, check_bfloat16

chunkwise = functools.partial(mlstm, method="chunkwise", chunk=16)
recurrent = functools.partial(mlstm, method="recurrent")


def draw(length, dtype=jnp.float32):
    """Arguments and the output's cotangent; half of the second entry's gates are -50 or 50."""
    rng = np.random.default_rng(0)
    arguments = {name: rng.normal(size=(2, length, size)) for name, size in {"q": 4, "k": 4, "v": 3}.items()}
    for name, mean in {"i": 0, "f": 3}.items():
        gate = rng.normal(mean, 2, size=(2, length))
        gate[1] = np.where(rng.random(length) < 0.5, rng.choice([-50, 50], length), gate[1])
        arguments[name] = gate
    return jax.tree.map(lambda array: jnp.asarray(array, dtype), (arguments, rng.normal(size=(2, length, 3))))


# Equal gates of 50 tie in the maximum, whose gradient is then arbitrary: it enters by the normaliser's 1e-6 only.
TOLERANCES = {32: 1e-5, 64: 1e-8}
SLOW = (pytest.param(length, 64, marks=pytest.mark.slow) for length in (1, 16, 64, 200))


@pytest.mark.parametrize(("length", "bits"), [(7, 32), (65, 64), *SLOW])
def test_chunks_are_the_steps_in_values_and_gradients(length, bits):
    with jax.enable_x64(bits == 64):
        check(chunkwise, recurrent, *draw(length, f"float{bits}"), TOLERANCES[bits])


@pytest.mark.parametrize("operator", [chunkwise, recurrent])
def test_gates_that_close_for_good_have_finite_gradients(operator):
    arguments, cotangent = draw(40)
    arguments |= {"i": jnp.full((2, 40), -100.0), "f": jnp.full((2, 40), -3.0)}
    gradients = jax.jit(jax.grad(lambda arguments: jnp.vdot(operator(**arguments), cotangent)))(arguments)
    assert all(jnp.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize("gate", [-1e3, -1e6, -1e30])
def test_what_follows_a_token_that_forgets_all_is_as_exact_as_steps(gate):
    arguments, cotangent = jax.tree.map(lambda array: array[:1], draw(40))
    arguments["f"] = arguments["f"].at[:, 9].set(gate)
    check(chunkwise, recurrent, arguments, cotangent, 1e-4)


def test_bfloat16_inputs():
    check_bfloat16(chunkwise, recurrent, *draw(7), 2e-2)


@pytest.mark.parametrize("operator", [recurrent, functools.partial(mlstm, chunk=4)])
def test_published_cells(x64, operator):
    """A cell of arXiv 2606.12364 as its released code computes it, and values and gradients of Vision-LSTM's."""
    wave = lambda channels: jnp.sin(1.0 + jnp.arange(7)[:, None] + 2 * jnp.asarray(channels))  # noqa: E731
    q, k, v, i, f = wave(range(4)), wave(range(3, 7)), wave(range(7, 10)), 3 * wave([11])[:, 0], 3 * wave([13])[:, 0]
    h = jax.jit(operator)(q, k, v, i, f)
    np.testing.assert_allclose(h[6], [-0.02940930, -0.86297242, 0.74765578], atol=1e-8)
    np.testing.assert_allclose(h[2], [-0.50700822, 0.07899670, 0.44125976], atol=1e-8)

    n, gate = (1, 2, 5, 3), (1, 2, 5)
    inputs = {"q": waves(n), "k": waves(n, 0.41, 0.5), "v": waves(n, 0.29, 1.0)}
    inputs |= {"i": 8 * waves(gate, 1.3), "f": 3 + 2 * waves(gate, 0.7, 0.4)}
    check_golden("V1", lambda **inputs: (operator(**inputs), None), **inputs)
