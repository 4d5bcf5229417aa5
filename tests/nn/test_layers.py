"""The small layers: starts, numbers against NumPy, and stochastic depth's statistics."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.nn import (
    MLSTM,
    SLSTM,
    AttentionMixer,
    CausalAttention,
    GatedDeltaNet,
    Mamba2,
    PLSTMMixer,
    TrackingMixer,
    TrackingPLSTM,
)
from plstm.nn.layers import (
    PatchEmbedding,
    divide_heads,
    drop_path,
    exact_gelu,
    linear,
    norm,
    sinusoids,
    softmax_attention,
    tanh_gelu,
)
from plstm.nn.maps import to_map
from plstm.nn.sequence import MLSTMLarge
from tests.drawing import fill, normal
from tests.ops.comparing import assert_close


def test_patches_are_cut_in_reading_order():
    layer = fill(lambda: PatchEmbedding(2, 3, 12, dtype=jnp.float32, rngs=nnx.Rngs(0)))
    layer.project.kernel[...], layer.project.bias[...] = jnp.eye(12), jnp.zeros(12)
    images = np.arange(2 * 4 * 6 * 3, dtype=np.float32).reshape(2, 4, 6, 3)
    tokens = jax.jit(layer)(images)
    assert tokens.shape == (2, 2, 3, 12)
    for y in range(2):
        for x in range(3):
            cut = images[:, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
            np.testing.assert_array_equal(tokens[:, y, x], cut.reshape(2, -1))
    for height, width in ((4, 5), (5, 4)):
        with pytest.raises(ValueError, match=f"{height} x {width} pixels .* patches of 2 x 2"):
            layer(np.zeros((1, height, width, 3), np.float32))


@pytest.mark.parametrize(("dim_in", "dim_out"), [(3, 7), (7, 3)])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_a_linear_layer_has_the_numbers_and_gradients_of_a_product(x64, dim_in, dim_out, dtype):
    layer = fill(lambda: linear(dim_in, dim_out, dtype=dtype, rngs=nnx.Rngs(0)))
    x, cotangent = (jnp.asarray(normal(2, 5, dim), dtype) for dim in (dim_in, dim_out))
    graphdef, params = nnx.split(layer)

    def plain(params, x):
        kernel, bias = (params[name][...].astype(dtype) for name in ("kernel", "bias"))
        return jnp.einsum("...i,io->...o", x, kernel) + bias

    output, backward = jax.vjp(lambda params, x: nnx.merge(graphdef, params)(x), params, x)
    expected, expected_backward = jax.vjp(plain, params, x)
    assert output.dtype == dtype
    tolerance = 1e-12 if dtype == jnp.float64 else 2e-2
    assert_close((output, backward(cotangent)), (expected, expected_backward(cotangent)), tolerance)


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_norms_compute_in_float32_with_an_epsilon_of_1e_5(kind):
    layer = fill(lambda: norm(kind, 8, nnx.Rngs(0)))
    x = jnp.asarray(normal(2, 8) * np.array([[1.0], [1e-3]]), jnp.bfloat16)  # at 1e-3 the epsilon decides
    expected = np.asarray(x, np.float64)
    if kind == "layernorm":
        expected = expected - expected.mean(-1, keepdims=True)
    expected = expected / np.sqrt((expected**2).mean(-1, keepdims=True) + 1e-5) * np.asarray(layer.scale[...])
    expected += np.asarray(layer.bias[...]) if kind == "layernorm" else 0
    actual = jax.jit(layer)(x)
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
    assert hasattr(layer, "bias") == (kind == "layernorm")


# JAX's own tanh GELU has a gradient of NaN from 7e12, where x cubed overflows.
@pytest.mark.parametrize(("gelu", "largest"), [(exact_gelu, 1e30), (tanh_gelu, 1e12)])
def test_gelus_are_the_library_s_in_value_and_gradient(gelu, largest):
    x = jnp.concatenate([jnp.linspace(-12, 12, 4001), jnp.array([0.0, -1e4, 1e4, -largest, largest])])
    slope = jax.jit(jax.vmap(jax.grad(gelu)))
    oracle = functools.partial(jax.nn.gelu, approximate=gelu is tanh_gelu)
    np.testing.assert_allclose(jax.jit(gelu)(x), jax.jit(oracle)(x), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slope(x), jax.jit(jax.vmap(jax.grad(oracle)))(x), rtol=1e-6, atol=2e-6)
    half = x.astype(jnp.bfloat16)
    assert gelu(half).dtype == slope(half).dtype == jnp.bfloat16
    rounded = half.astype(jnp.float32)
    np.testing.assert_array_equal(gelu(half), gelu(rounded).astype(jnp.bfloat16))
    np.testing.assert_array_equal(slope(half), slope(rounded).astype(jnp.bfloat16))


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-6), (jnp.bfloat16, 2e-2)])
def test_attention_is_the_library_s_in_values_and_gradients(dtype, tolerance):
    *qkv, cotangent = (jnp.asarray(normal(2, 9, 3, 8, seed=n), dtype) for n in range(4))  # [batch, tokens, heads, d]

    def by_heads(q, k, v):
        return softmax_attention(*(x.swapaxes(1, 2) for x in (q, k, v))).swapaxes(1, 2)

    def with_gradients(function):
        out, backward = jax.vjp(function, *qkv)
        return [out, *backward(cotangent)]

    found = with_gradients(by_heads)
    assert {x.dtype for x in found} == {jnp.dtype(dtype)}
    assert_close(found, with_gradients(jax.nn.dot_product_attention), tolerance)


@pytest.mark.parametrize("axis", [0, 2])
def test_drop_path_drops_whole_samples_and_keeps_the_mean(axis):
    samples, rate = 4000, 0.25
    branch = jnp.moveaxis(jnp.ones((samples, 2, 3)), 0, axis)
    dropped = (drop_path(branch, rate, jax.random.key(seed), axis=axis) for seed in (0, 1))
    first, second = (np.moveaxis(np.asarray(array), axis, 0) for array in dropped)
    assert np.all(first == first[:, :1, :1])
    kept = first[:, 0, 0] > 0
    np.testing.assert_allclose(first[kept], 1 / (1 - rate), rtol=1e-6)
    assert abs(kept.mean() - (1 - rate)) < 4 * math.sqrt(rate * (1 - rate) / samples)
    assert np.any(second != first)


def test_drop_path_is_off_without_a_key_and_at_rate_zero_and_leaves_nothing_of_what_it_drops():
    branch = normal(64, 2)
    np.testing.assert_array_equal(drop_path(branch, 0.9, None), branch)
    np.testing.assert_array_equal(drop_path(branch, 0.0, jax.random.key(0)), branch)
    dropped = drop_path(jnp.full((64, 2), np.inf, jnp.bfloat16), 0.5, jax.random.key(0))
    assert dropped.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(dropped, np.float32))) == {0.0, np.inf}


@pytest.mark.parametrize("make", [PLSTMMixer, TrackingMixer])
def test_what_is_no_grid_is_refused(make):
    """Without a batch, [2, 5, 16] would run, and mix rows with heads."""
    layer = make(16, 2, rngs=nnx.Rngs(0))
    for shape in ((2, 5, 16), (1, 2, 5, 8), (1, 1, 2, 5, 16)):
        with pytest.raises(ValueError, match=r"^x must be \[batch, Y, X, 16\]; got"):
            layer(jnp.zeros(shape))


def test_heads_that_do_not_divide_the_channels_are_refused():
    rngs = nnx.Rngs(0)
    makes = {
        "dim=15 must be a multiple of heads=5 x 2": lambda: CausalAttention(15, 5, rngs),
        "dim=16 must be a multiple of heads=5": lambda: CausalAttention(16, 5, rngs, rotary=False),
        "dim=18 must be a multiple of heads=5": lambda: AttentionMixer(18, 5, dtype=jnp.float32, rngs=rngs),
        "inner width=16 must be a multiple of heads=5": lambda: MLSTM(8, 5, 2, rngs),
        "dim=31 must be a multiple of 2": lambda: MLSTM(31, 2, 2, rngs),
        "dim=35 must be a multiple of heads=5 x 2": lambda: MLSTMLarge(35, 5, rngs),
        "dim=16 must be a multiple of heads=3": lambda: SLSTM(16, 3, 0, 2, rngs),
        "key_dim=16 must be a multiple of heads=5": lambda: GatedDeltaNet(8, 5, 16, False, rngs),
        "track=3 must be from 1 to 4, and dim=16 a multiple of it": lambda: TrackingPLSTM(16, 3, rngs),
        "track=5 must be from 1 to 4, and dim=20 a multiple of it": lambda: TrackingPLSTM(20, 5, rngs),
    }
    for message, make in makes.items():
        with pytest.raises(ValueError, match=f"^{message}$"):
            make()
    with pytest.raises(ValueError, match="^5 heads do not divide 16 channels$"):
        divide_heads(jnp.zeros((3, 16)), 5)
    with pytest.raises(ValueError, match="^inner=30 must be a multiple of head_dim=8$"):
        Mamba2(16, 30, 8, 16, rngs)


def test_images_of_other_axes_are_refused():
    layer = PatchEmbedding(4, 3, 8, dtype=jnp.float32, rngs=nnx.Rngs(0))
    for shape in ((8, 8, 3), (1, 8, 8, 1)):
        with pytest.raises(ValueError, match=r"^images must be \[batch, height, width, 3\]; got"):
            layer(jnp.zeros(shape))
    for embed in (layer, functools.partial(to_map, channels=3)):
        with pytest.raises(ValueError, match="^images must be normalised floats; got uint8"):
            embed(jnp.zeros((1, 8, 8, 3), jnp.uint8))
    assert to_map(jnp.zeros((2, 8, 6, 1)), 1).shape == (8, 6, 2, 1)


def test_sinusoids():
    actual = np.asarray(sinusoids(jnp.array([0, 1, 5]), 6))
    for row, number in zip(actual, (0, 1, 5), strict=True):
        angles = [number / 10000 ** (2 * i / 6) for i in range(3)]
        np.testing.assert_allclose(row, [*np.sin(angles), *np.cos(angles)], atol=1e-6)
