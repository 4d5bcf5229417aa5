"""The gates against plain NumPy transcriptions of the paper's words, node by node where order matters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import expit

from plstm.nn import PLSTMMixer
from plstm.nn.gates import DModeGates, GroupedGates, Orientation, PModeGates, squash_transition
from tests.drawing import fill, normal

DIM, HEADS = 32, 2
GATES = 4 * HEADS
WIDTH = DIM // GATES  # channels a gate reads


def build(mode, bias_only=False):
    options = dict(bias_only=bias_only, weight_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    if mode == "D":
        return DModeGates(DIM, HEADS, **options)
    return PModeGates(DIM, HEADS, released=mode == "released", **options)


def split_gates(pre):
    """N of [..., Y, X] -> [..., heads, 4, Y, X]: gate n is head n // 4, direction n % 4."""
    return np.stack([np.stack(pre[4 * head : 4 * head + 4], axis=-3) for head in range(HEADS)], axis=-4)


def grouped_pre(gates: GroupedGates, x):
    """Pre-activations by kind, each gate from its own group of channels."""
    weight = np.zeros((7, GATES, WIDTH)) if gates.bias_only else np.asarray(gates.weight[...], np.float64)
    groups = [x[..., n * WIDTH : (n + 1) * WIDTH] for n in range(GATES)]
    kinds = zip(weight, np.asarray(gates.bias[...], np.float64), strict=False)
    return [split_gates([x @ w + b for x, w, b in zip(groups, *kind, strict=True)]) for kind in kinds]


def angle(orientation: Orientation, x):
    weighed = x @ np.asarray(orientation.weight[...], np.float64)
    return split_gates(list(np.moveaxis(expit(np.asarray(orientation.bias[...]) + 0.5 * weighed / DIM), -1, 0)))


def transcribed(gates, mode, x):
    """The gates as the paper, or its released code in image coordinates, computes them."""
    pre = grouped_pre(gates.gates, x)
    if mode == "D":
        s_r, s_d, t_rl, t_dl, t_du, m_l, m_u = pre
        found = {"s_r": expit(s_r), "s_d": expit(s_d), "m_l": expit(m_l), "m_u": expit(m_u)}
        found |= {"t_rl": np.tanh(5 * t_rl), "t_dl": np.tanh(5 * t_dl), "t_du": np.tanh(5 * t_du)}
        return found | {"t_ru": np.zeros_like(t_rl)}
    source, gamma, mark, alpha = expit(pre[0]), np.tanh(5 * pre[1]), expit(pre[2]), angle(gates.orientation, x)
    if mode == "printed":
        s_r, s_d, right, down = alpha * source, (1 - alpha) * source, gamma * alpha, gamma * (1 - alpha)
    else:
        s_d, down = alpha * source, gamma * alpha
        s_r, right = 1 - alpha * source, 1 - gamma * alpha
    shared = {"t_rl": right, "t_ru": right, "t_dl": down, "t_du": down, "m_l": mark, "m_u": mark}
    return {"s_r": s_r, "s_d": s_d} | shared


@pytest.mark.parametrize("bias_only", [False, True])
@pytest.mark.parametrize("mode", ["printed", "released", "D"])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])  # which lay memory out in another order
def test_gates_follow_the_transcription(backend, mode, bias_only, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    gates, x = fill(lambda: build(mode, bias_only)), normal(2, 3, 2, DIM)
    assert hasattr(gates.gates, "weight") != bias_only
    actual, expected = jax.jit(gates)(x)._asdict(), transcribed(gates, mode, x)
    assert actual.keys() == expected.keys()
    for name, gate in actual.items():
        assert gate.shape == (2, HEADS, 4, 3, 2) and gate.dtype == jnp.float32, name
        np.testing.assert_allclose(gate, expected[name], atol=2e-6, err_msg=name)
    assert mode != "D" or not actual["t_ru"].any()  # not even nearly open
    half = jnp.asarray(x, jnp.bfloat16)
    of_half, of_rounded = jax.jit(gates)(half), jax.jit(gates)(half.astype(jnp.float32))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), of_half, of_rounded)
    assert {gate.dtype for gate in of_half} == {jnp.dtype("float32")}


def test_biases_start_as_in_table_2():
    heads = 3
    options = dict(bias_only=False, weight_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    p_mode, d_mode = PModeGates(48, heads, released=False, **options), DModeGates(48, heads, **options)
    for gates, starts in ((p_mode, [-4, 1, -4]), (d_mode, [-4, -4, 1, 1, 1, -4, -4])):
        np.testing.assert_array_equal(gates.gates.bias[...], np.tile(np.array(starts)[:, None], 4 * heads))
    np.testing.assert_array_equal(p_mode.orientation.bias[...], [-2, 0, 2] * 4)  # gate n: n mod heads

    x = 100 * np.random.default_rng(0).normal(size=(1, 1, 2, 48)).astype(np.float32)  # changes nothing: weights are 0
    for name, gate in jax.jit(d_mode)(x)._asdict().items():
        start = {"s": expit(-4), "m": expit(-4), "t": 0 if name == "t_ru" else np.tanh(5)}[name[0]]
        np.testing.assert_allclose(gate, start, rtol=1e-6, err_msg=name)
    right = np.asarray(jax.jit(p_mode)(x).t_rl)[0, :, :, 0].reshape(12, 2)
    np.testing.assert_allclose(right, np.tanh(5) * expit([-2, 0, 2] * 4)[:, None] * np.ones(2), rtol=1e-6)


def test_transitions_in_bfloat16_are_what_that_type_gives():
    pre = jnp.linspace(-1, 1.2, 300)
    actual = jax.jit(lambda pre: jax.vjp(lambda x: squash_transition(x, jnp.bfloat16), pre)[1](jnp.ones(300))[0])(pre)
    values = squash_transition(pre, jnp.bfloat16)
    half, backward = jax.vjp(lambda x: jnp.tanh(5 * x), pre.astype(jnp.bfloat16))
    np.testing.assert_array_equal(values, half.astype(jnp.float32))
    np.testing.assert_allclose(
        actual, backward(jnp.ones_like(half))[0].astype(jnp.float32), rtol=0.05
    )  # several roundings
    assert values.dtype == jnp.float32 and 0 < (actual == 0).sum() < 150  # where the value is 1 or -1


@pytest.mark.parametrize("mode", ["P", "D"])
def test_transitions_in_bfloat16_stay_where_they_start(mode):
    """Of the released configurations of arrow pointing and the ablation, whose gates start with weights of zero."""

    def gradient(dtype):
        mixer = PLSTMMixer(DIM, HEADS, mode, transition_dtype=dtype, rngs=nnx.Rngs(0))
        return jax.jit(nnx.grad(lambda mixer: (mixer(normal(1, 3, 4, DIM)) ** 2).sum()))(mixer).gates.gates

    moves, stays = gradient(jnp.float32), gradient(jnp.bfloat16)
    rows = slice(1, 2) if mode == "P" else slice(2, 5)  # of source, transition and mark
    for name in ("weight", "bias"):
        of_float, of_half = (np.asarray(getattr(gates, name)[...]) for gates in (moves, stays))
        assert of_float[rows].any() and not of_half[rows].any() and of_half[0].any() and of_half[-1].any()


def test_the_direct_gate_reads_the_input_where_asked_to():
    x = normal(2, 3, 2, DIM)
    plain = fill(lambda: PLSTMMixer(DIM, HEADS, rngs=nnx.Rngs(0)))
    np.testing.assert_allclose(plain.direct(x)[:, 0, 0], expit(plain.direct_bias[...]), rtol=1e-6)
    reading = fill(lambda: PLSTMMixer(DIM, HEADS, direct_weight=True, rngs=nnx.Rngs(0)))
    pre = x @ np.asarray(reading.direct_weight[...], np.float64).T + np.asarray(reading.direct_bias[...])
    np.testing.assert_allclose(reading.direct(x), expit(np.moveaxis(pre, -1, 1)), atol=2e-6)
