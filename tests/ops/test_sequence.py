"""The 1-D operator: the parallel form against the recurrence, and the recursion of Equations 25-28."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.sequence import SequenceGates, gating_matrix_1d, plstm1d, segment_products

SPECIAL_TRANSITIONS = [0.0, 1.0, -1.0, 1.3]


def draw(length, dtype=jnp.float32, lead=(2,), seed=0):
    rng = np.random.default_rng(seed)
    shape = (*lead, length)
    special = rng.choice(SPECIAL_TRANSITIONS, size=shape)
    transition = np.where(rng.random(shape) < 0.5, special, rng.uniform(-1, 1, shape))
    gates = SequenceGates(rng.uniform(-1, 1, shape), transition, rng.uniform(-1, 1, shape))
    arguments = {
        "q": rng.normal(size=(*shape, 3)),
        "k": rng.normal(size=(*shape, 3)),
        "v": rng.normal(size=(*shape, 4)),
        "gates": gates,
        "direct": rng.uniform(-1, 1, shape),
    }
    return jax.tree.map(lambda array: jnp.asarray(array, dtype), (arguments, rng.normal(size=(*shape, 4))))


parallel = functools.partial(plstm1d, method="parallel")
recurrent = functools.partial(plstm1d, method="recurrent")


def loop(q, k, v, gates, direct):
    """Equations 1 and 2 on a line, in NumPy."""
    outputs, cell = np.zeros(v.shape), np.zeros((*v.shape[:-2], q.shape[-1], v.shape[-1]))
    for t in range(v.shape[-2]):
        source, transition, mark, own = (np.asarray(gate)[..., t, None, None] for gate in (*gates, direct))
        outer = k[..., t, :, None] * v[..., t, None, :]
        outputs[..., t, :] = np.einsum("...k,...kv->...v", q[..., t, :], mark * cell + own * outer) / q.shape[-1] ** 0.5
        cell = transition * cell + source * outer
    return outputs


def test_both_forms_are_the_recurrence(x64):
    arguments, _ = draw(12, jnp.float64, lead=(2, 3))
    expected = loop(**arguments)
    for method in ("parallel", "recurrent", "auto"):
        np.testing.assert_allclose(plstm1d(**arguments, method=method), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("length", "bits"), [*((length, 64) for length in (1, 2, 7, 12, 33)), *((length, 32) for length in (7, 33))]
)
def test_values_and_gradients(outputs_and_gradients, assert_close, length, bits):
    with jax.enable_x64(bits == 64):
        arguments, cotangent = draw(length, f"float{bits}")
        expected = outputs_and_gradients(recurrent, arguments, cotangent)
        found = outputs_and_gradients(parallel, arguments, cotangent)
    assert_close(found, expected, {64: 1e-12, 32: 1e-5}[bits])


@pytest.mark.parametrize("method", ["parallel", "recurrent"])
def test_bfloat16_inputs_with_float32_gates(outputs_and_gradients, assert_close, method):
    arguments, cotangent = draw(12)
    for name in "qkv":
        arguments[name] = arguments[name].astype(jnp.bfloat16)
    wide = arguments | {name: arguments[name].astype(jnp.float32) for name in "qkv"}
    actual = outputs_and_gradients({"parallel": parallel, "recurrent": recurrent}[method], arguments, cotangent)
    assert actual["output"].dtype == jnp.bfloat16
    assert actual["gradients"]["gates"].transition.dtype == jnp.float32
    assert_close(actual, outputs_and_gradients(recurrent, wide, cotangent), 2e-2)


@pytest.mark.parametrize(("value", "bits"), [*((value, 64) for value in (0.0, 1.0, -1.0, 1e-30, 1e3)), (1e-30, 32)])
def test_gradients_are_finite_at_constant_transitions(outputs_and_gradients, assert_close, value, bits):
    with jax.enable_x64(bits == 64):
        arguments, cotangent = draw({64: 12, 32: 33}[bits], f"float{bits}")
        arguments["gates"] = arguments["gates"]._replace(transition=jnp.full_like(arguments["direct"], value))
        expected = outputs_and_gradients(recurrent, arguments, cotangent)
        found = outputs_and_gradients(parallel, arguments, cotangent)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((expected, found)))
    assert_close(found, expected, {64: 1e-12, 32: 1e-5}[bits])


def test_segment_products_are_exact_at_zero_and_negative_transitions():
    products = segment_products(jnp.array([3.0, -2.0, 0.0, 5.0, -1.0]))
    expected = [[0, 1, -2, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 5], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(products, expected)


def test_combining_halves_gives_the_whole(x64):
    """Equations 25-28: one level of the recursion, at every level, from nodes to the whole sequence."""
    gates = jax.tree.map(np.asarray, draw(16, jnp.float64, lead=())[0]["gates"])
    source, transition, mark = gates.source[:, None], gates.transition, gates.mark[:, None]
    gating = np.zeros((16, 1, 1))
    while len(transition) > 1:
        left, right = slice(0, None, 2), slice(1, None, 2)
        crossing = source[left, :, None] * mark[right, None, :]
        gating = np.block([[gating[left], crossing], [np.zeros_like(crossing), gating[right]]])  # 28
        source = np.concatenate([source[left] * transition[right, None], source[right]], axis=1)  # 25
        mark = np.concatenate([mark[left], transition[left, None] * mark[right]], axis=1)  # 27
        transition = transition[left] * transition[right]  # 26
    np.testing.assert_allclose(gating_matrix_1d(gates), gating[0], rtol=1e-13, atol=1e-13)


def test_two_passes_cover_a_sequence_without_an_order(x64):
    """Appendix D.4: the second pass, reversed, fills the other triangle of the gating matrix."""
    arguments, _ = draw(7, jnp.float64, lead=())
    backward_gates = draw(7, jnp.float64, lead=(), seed=1)[0]["gates"]
    turned = jax.tree.map(lambda tensor: tensor[::-1], arguments | {"gates": backward_gates})
    turned["direct"] = jnp.zeros(7)
    both = plstm1d(**arguments) + plstm1d(**turned)[::-1]

    reversed_gates = jax.tree.map(lambda gate: gate[::-1], backward_gates)
    gating = gating_matrix_1d(arguments["gates"]) + gating_matrix_1d(reversed_gates)[::-1, ::-1]
    similarity = arguments["k"] @ arguments["q"].T / 3**0.5
    expected = ((gating + jnp.diag(arguments["direct"])) * similarity).T @ arguments["v"]
    np.testing.assert_allclose(both, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": jnp.zeros((2, 7, 4))}, r"q and k .*\(2, 7, 3\).*\(2, 7, 4\)"),
        ({"v": jnp.zeros((2, 6, 4))}, r"v must .*\(2, 7, 4\).*\(2, 6, 4\)"),
        ({"gates": SequenceGates(jnp.zeros((2, 7)), jnp.zeros((7,)), jnp.zeros((2, 7)))}, r"transition .*\(7,\)"),
        ({"direct": jnp.zeros((2, 1))}, r"direct .*\(2, 1\)"),
        ({"method": "fast"}, r"method .*parallel.*'fast'"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments, _ = draw(7)
    with pytest.raises(ValueError, match=message):
        plstm1d(**(arguments | change))
