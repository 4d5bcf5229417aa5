"""Whole mixers against transcriptions: the recurrence of Equations 1 and 2 for pLSTM, softmax for attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.models.vision import AttentionMixer, PLSTMMixer, VisionConfig
from plstm.ops.grid import plstm2d_oracle
from tests.drawing import fill, normal

DIM, HEADS, GRID = 32, 2, (3, 4)
MODES = ["P released", "P printed", "D"]


def build(mode, dtype="float32", method="auto"):
    gates = "printed" if mode == "P printed" else "released"
    config = VisionConfig(dim=DIM, heads=HEADS, gates=gates, dtype=dtype, method=method)
    return PLSTMMixer(config, mode[0], nnx.Rngs(0))


def heads_of(layer, x):
    """[batch, ..., dim] -> [batch, heads, ..., dim / heads]; head h has the h-th group of channels."""
    return np.stack(np.split(x @ layer.kernel[...] + layer.bias[...], HEADS, axis=-1), axis=1)


def transcribed(mixer, x):
    q, k, v = (heads_of(layer, x) for layer in (mixer.qkv.query, mixer.qkv.key, mixer.qkv.value))
    direct = np.broadcast_to(1 / (1 + np.exp(-mixer.direct_bias[...]))[:, None, None], q.shape[:-1])
    hidden = np.asarray(jax.jit(plstm2d_oracle)(q, k, v, jax.jit(mixer.gates)(x), direct))
    normed = [head / np.sqrt((head**2).mean(-1, keepdims=True) + 1e-5) for head in np.unstack(hidden, axis=1)]
    return (np.concatenate(normed, axis=-1) * mixer.norm_scale[...]) @ mixer.out.kernel[...]


@pytest.mark.parametrize("mode", MODES)
def test_plstm_mixer_follows_the_recurrence(mode):
    x = normal(2, *GRID, DIM)
    expected = transcribed(fill(lambda: build(mode)), x)
    assert np.abs(expected).max() > 0.1
    for method in ("auto", "parallel", "recurrent") if mode == "P printed" else ("auto",):
        mixer = fill(lambda method=method: build(mode, method=method))
        np.testing.assert_allclose(jax.jit(mixer)(x), expected, atol=3e-5, err_msg=method)


@pytest.mark.parametrize("mode", MODES)
def test_gates_are_float32_under_bfloat16(mode):
    mixer = fill(lambda: build(mode, "bfloat16"))
    x = jnp.asarray(normal(2, *GRID, DIM), jnp.bfloat16)
    assert jax.eval_shape(mixer, x).dtype == jnp.bfloat16
    gates, exact = jax.jit(mixer.gates)(x), jax.jit(mixer.gates)(np.asarray(x, np.float32))
    for name, gate in gates._asdict().items():
        assert gate.dtype == jnp.float32
        np.testing.assert_allclose(gate, getattr(exact, name), atol=1e-6)


def test_attention_mixer_is_softmax_attention():
    mixer, x = (
        fill(lambda: AttentionMixer(VisionConfig(dim=DIM, heads=HEADS, dtype="float32"), nnx.Rngs(0))),
        normal(2, 5, DIM),
    )
    q, k, v = (heads_of(layer, x) for layer in (mixer.qkv.query, mixer.qkv.key, mixer.qkv.value))
    scores = np.einsum("bhqc,bhkc->bhqk", q, k) / np.sqrt(DIM // HEADS)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    hidden = np.concatenate(np.unstack(weights @ v, axis=1), axis=-1)
    np.testing.assert_allclose(jax.jit(mixer)(x), hidden @ mixer.out.kernel[...] + mixer.out.bias[...], atol=3e-5)
