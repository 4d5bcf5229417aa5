"""The 1-D operator: its forms against the recurrence, and the recursion of Equations 25-28."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.sequence import SequenceGates, gating_matrix_1d, plstm1d, segment_products

from .comparing import check, check_bfloat16, draw_transition


def draw(length, dtype=jnp.float32, lead=(2,)):
    """Arguments and the output's cotangent."""
    rng, shape = np.random.default_rng(0), (*lead, length)
    source, mark, direct = rng.uniform(-1, 1, (3, *shape))
    arguments = {name: rng.normal(size=(*shape, size)) for name, size in {"q": 3, "k": 3, "v": 4}.items()}
    arguments |= {"gates": SequenceGates(source, draw_transition(rng, shape, special=0.5), mark), "direct": direct}
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
    for method in ("parallel", "recurrent", "auto"):
        np.testing.assert_allclose(plstm1d(**arguments, method=method), loop(**arguments), rtol=1e-12, atol=1e-12)


LENGTHS = [*((length, 64, None) for length in (1, 2, 7, 12, 33)), (7, 32, None), (33, 32, None), (33, 32, 1e-30)]


@pytest.mark.parametrize(
    ("length", "bits", "transition"), [*LENGTHS, *((12, 64, value) for value in (0.0, 1.0, -1.0, 1e-30, 1e3))]
)
def test_values_and_gradients_also_at_constant_transitions(length, bits, transition):
    with jax.enable_x64(bits == 64):
        arguments, cotangent = draw(length, f"float{bits}")
        if transition is not None:
            constant = jnp.full_like(arguments["direct"], transition)
            arguments["gates"] = arguments["gates"]._replace(transition=constant)
        check(parallel, recurrent, arguments, cotangent, {64: 1e-12, 32: 1e-5}[bits])


def test_a_transition_that_is_not_read_cannot_overflow():
    grads = jax.grad(lambda transition: segment_products(transition).sum())(jnp.array([1.0, 1.0, 1e20, 1e20]))
    np.testing.assert_allclose(grads, [0, 1e20, 2, 0], rtol=1e-6)


@pytest.mark.parametrize("operator", [parallel, recurrent])
def test_bfloat16_inputs_with_float32_gates(operator):
    check_bfloat16(operator, recurrent, *draw(12), 2e-2)


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


def test_the_gating_matrix_is_at_least_float32():
    gates = SequenceGates(*jnp.full((3, 64), 0.992, jnp.bfloat16))
    expected = gating_matrix_1d(SequenceGates(*(gate.astype(jnp.float32) for gate in gates)))
    np.testing.assert_array_equal(gating_matrix_1d(gates), expected)
    with pytest.raises(ValueError, match=r"transition must be \[..., T\]"):
        gating_matrix_1d(gates._replace(transition=jnp.ones(63)))
