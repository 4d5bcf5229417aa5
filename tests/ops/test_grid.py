"""The fast forms of the 2-D operator against the recurrence of Equations 1 and 2: values and every gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops import grid
from plstm.ops.grid import GridGates, gating_matrix, plstm2d
from plstm.ops.grid.chunkwise import chunkwise
from plstm.ops.grid.oracle import gating_matrix_oracle, plstm2d_oracle

WIDE = [(8, 1, 1), (8, 1, 7), (8, 7, 1), (2, 4, 5, 4)]
METHODS = ["parallel", "chunkwise"]  # "recurrent" is the oracle itself
STRUCTURE = {"general": "general", "d_mode": "no_ru", "p_printed": "rank_one", "p_released": "rank_one"}
SPECIAL_TRANSITIONS = [0.0, 1.0, -1.0, 1.3]


def draw_transition(rng, shape):
    special = rng.choice(SPECIAL_TRANSITIONS, size=shape)
    return np.where(rng.random(shape) < 0.4, special, rng.uniform(-0.6, 0.6, shape))


def draw_gates(rng, kind, shape):
    """The gates a caller is free to choose: all eight, seven in D-mode, the five that P-mode shares between edges."""
    if kind in ("general", "d_mode"):
        free = {name: rng.uniform(-1, 1, shape) for name in ("s_r", "s_d", "m_l", "m_u")}
        names = ("t_rl", "t_dl", "t_du") if kind == "d_mode" else ("t_rl", "t_ru", "t_dl", "t_du")
        return free | {name: draw_transition(rng, shape) for name in names}
    alpha = np.where(rng.random(shape) < 0.2, rng.choice([0.0, 1.0], shape), rng.random(shape))
    gamma, source = draw_transition(rng, shape), rng.random(shape)
    free = {"s_r": alpha * source, "t_r": gamma * alpha, "m": rng.random(shape)}
    if kind == "p_printed":  # Equation 5
        return free | {"s_d": (1 - alpha) * source, "t_d": gamma * (1 - alpha)}
    return free | {"s_d": 1 - alpha * source, "t_d": 1 - gamma * alpha}


def assemble(free):
    if "t_r" in free:
        shared = {"t_rl": "t_r", "t_ru": "t_r", "t_dl": "t_d", "t_du": "t_d", "m_l": "m", "m_u": "m"}
        return GridGates(s_r=free["s_r"], s_d=free["s_d"], **{name: free[kept] for name, kept in shared.items()})
    return GridGates(**({"t_ru": jnp.zeros_like(free["t_rl"])} | free))


def draw(shape, kind="general", dtype=jnp.float64):
    """Arguments and the output's cotangent; shape [..., Y, X]."""
    rng = np.random.default_rng(0)
    arguments = {
        "q": rng.normal(size=(*shape, 3)),
        "k": rng.normal(size=(*shape, 3)),
        "v": rng.normal(size=(*shape, 2)),
        "free": draw_gates(rng, kind, (*shape[:-2], 4, *shape[-2:])),
        "direct": rng.uniform(-1, 1, shape),
    }
    return jax.tree.map(lambda array: jnp.asarray(array, dtype), (arguments, rng.normal(size=(*shape, 2))))


def oracle(q, k, v, free, direct):
    return plstm2d_oracle(q, k, v, assemble(free), direct)


@functools.cache
def fast(method, structure):
    def operator(q, k, v, free, direct):
        return plstm2d(q, k, v, assemble(free), direct, method=method, structure=structure)

    return operator


SHAPES = [(1, 1), (1, 7), (7, 1), (2, 3, 5, 4), (2, 12, 12), (2, 14, 14)]


def is_slow(method, shape):
    """12 x 12 is checked in float32 by default, and chunkwise, which compiles for seconds, on two shapes."""
    return shape == (2, 12, 12) or (method == "chunkwise" and shape not in [(1, 7), (2, 3, 5, 4)])


@pytest.mark.parametrize(
    ("method", "shape"),
    [
        pytest.param(method, shape, marks=[pytest.mark.slow] * is_slow(method, shape))
        for method in ["auto", *METHODS]
        for shape in SHAPES
    ],
)
def test_any_transition_in_float64(x64, outputs_and_gradients, assert_close, method, shape):
    arguments, cotangent = draw(shape)
    expected = outputs_and_gradients(oracle, arguments, cotangent)
    assert_close(outputs_and_gradients(fast(method, "general"), arguments, cotangent), expected, 1e-10)


@pytest.mark.parametrize(
    ("method", "shape"),
    [*(("auto", shape) for shape in WIDE)]
    + [pytest.param(method, (2, 5, 4), id=f"{method}-5x4") for method in ["auto", "recurrent", *METHODS]]
    + [pytest.param(method, (2, 12, 12), marks=pytest.mark.slow) for method in METHODS],
)
@pytest.mark.parametrize("kind", ["d_mode", "p_printed", "p_released"])
def test_promised_structure_in_float64(x64, outputs_and_gradients, assert_close, method, kind, shape):
    arguments, cotangent = draw(shape, kind)
    expected = outputs_and_gradients(oracle, arguments, cotangent)
    assert_close(outputs_and_gradients(fast(method, STRUCTURE[kind]), arguments, cotangent), expected, 1e-10)


@pytest.mark.parametrize("kind", ["d_mode", "p_printed", "p_released"])
@pytest.mark.parametrize("method", METHODS)
def test_no_promise_is_needed_in_float64(x64, outputs_and_gradients, assert_close, method, kind):
    arguments, cotangent = draw((2, 3, 5, 4), kind)
    arguments["free"] = assemble(arguments["free"])._asdict()
    expected = outputs_and_gradients(oracle, arguments, cotangent)
    assert_close(outputs_and_gradients(fast(method, "general"), arguments, cotangent), expected, 1e-10)


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind, s in STRUCTURE.items() for form in grid.FORMS[s]])
def test_gating_matrix(x64, assert_close, kind, form):
    gates = assemble(draw((2, 5, 4), kind)[0]["free"])
    matrix = jax.jit(functools.partial(gating_matrix, structure=STRUCTURE[kind], form=form))(gates)
    assert matrix.shape == (2, 5, 4, 5, 4)
    assert_close(matrix, jax.jit(gating_matrix_oracle)(gates), 1e-12)


@pytest.mark.parametrize("kind", list(STRUCTURE))
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_float32(outputs_and_gradients, assert_close, method, kind):
    arguments, cotangent = draw((8 if method == "auto" else 2, 12, 12), kind, jnp.float32)
    expected = outputs_and_gradients(oracle, arguments, cotangent)
    assert_close(outputs_and_gradients(fast(method, STRUCTURE[kind]), arguments, cotangent), expected, 2e-5)


@pytest.mark.parametrize(
    ("method", "kind"), [*((method, "p_printed") for method in ["auto", "recurrent", *METHODS]), ("auto", "d_mode")]
)
def test_bfloat16_inputs_with_float32_gates(outputs_and_gradients, assert_close, method, kind):
    shape = (8 if method == "auto" else 2, 12, 12)
    check_bfloat16(fast(method, STRUCTURE[kind]), shape, kind, outputs_and_gradients, assert_close)


def check_bfloat16(operator, shape, kind, outputs_and_gradients, assert_close):
    arguments, cotangent = draw(shape, kind, jnp.float32)
    half = arguments | {name: arguments[name].astype(jnp.bfloat16) for name in "qkv"}
    actual = outputs_and_gradients(operator, half, cotangent)
    assert actual["output"].dtype == actual["gradients"]["k"].dtype == jnp.bfloat16
    assert {gate.dtype for gate in actual["gradients"]["free"].values()} == {jnp.dtype("float32")}
    rounded = arguments | {name: half[name].astype(jnp.float32) for name in "qkv"}
    assert_close(actual, outputs_and_gradients(oracle, rounded, cotangent), 3e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(STRUCTURE))
@pytest.mark.parametrize("method", grid.METHODS)
def test_values_and_gradients_on_a_gpu_or_tpu(outputs_and_gradients, assert_close, method, kind):
    """Whose products are rounded unless told otherwise."""
    assert jax.default_backend() != "cpu"
    if method == "fused" and jax.default_backend() != "gpu":
        pytest.skip("the kernels are for GPUs")
    arguments, cotangent = draw((2, 2, 12, 12), kind, jnp.float32)
    with jax.default_matmul_precision("highest"):
        expected = outputs_and_gradients(oracle, arguments, cotangent)
        assert_close(outputs_and_gradients(fast(method, STRUCTURE[kind]), arguments, cotangent), expected, 1e-4)


def test_chunkwise_by_chunks_and_other_blocks(x64, outputs_and_gradients, assert_close):
    arguments, cotangent = draw((3, 2, 3, 5), "d_mode")

    def by_chunks(q, k, v, free, direct):
        return chunkwise(q, k, v, assemble(free), direct, "no_ru", block=2, chunks=2)

    expected = outputs_and_gradients(oracle, arguments, cotangent)
    assert_close(outputs_and_gradients(by_chunks, arguments, cotangent), expected, 1e-10)


EXTREMES = {
    "closed": {"source": 0.0, "transition": 0.0, "mark": 0.0},
    "open": {"source": 1.0, "transition": 1.0, "mark": 1.0},
    "alternating": {"source": 1.0, "transition": -1.0, "mark": 1.0},
    "underflow": {"source": 1e-30, "transition": 1e-30, "mark": 1.0},
    "growth": {"source": 1.0, "transition": 10.0, "mark": 1.0},
}


@pytest.mark.parametrize("extreme", list(EXTREMES))
@pytest.mark.parametrize("kind", ["general", "d_mode", "p_printed"])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_gradients_are_finite_at_extreme_gates(outputs_and_gradients, assert_close, method, kind, extreme):
    shape = (8 if method == "auto" else 2, 12, 12)
    check_extreme(fast(method, STRUCTURE[kind]), shape, kind, extreme, outputs_and_gradients, assert_close)


def check_extreme(operator, shape, kind, extreme, outputs_and_gradients, assert_close):
    arguments, cotangent = draw(shape, kind, jnp.float32)
    level = {name[0]: value for name, value in EXTREMES[extreme].items()}  # s, t, m
    arguments["free"] = {name: jnp.full_like(gate, level[name[0]]) for name, gate in arguments["free"].items()}
    actual = outputs_and_gradients(operator, arguments, cotangent)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(actual))
    assert_close(actual, outputs_and_gradients(oracle, arguments, cotangent), 1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": (2, 5, 4, 2)}, r"\bk\b.*\(2, 5, 4, 2\)"),
        ({"v": (2, 4, 5, 2)}, r"\bv\b.*\(2, 4, 5, 2\)"),
        ({"direct": (2, 5, 5)}, r"direct.*\(2, 5, 5\)"),
        ({"t_du": (2, 5, 4)}, r"t_du.*\(2, 5, 4\)"),
        ({"s_r": (2, 4, 4, 5)}, r"s_r.*\(2, 4, 4, 5\)"),
    ],
)
def test_wrong_shapes_are_named(change, message):
    arguments, _ = draw((2, 5, 4), dtype=jnp.float32)
    gates = assemble(arguments.pop("free"))
    changed = {name: jnp.zeros(shape) for name, shape in change.items()}
    gates = gates._replace(**{name: array for name, array in changed.items() if name in gates._fields})
    arguments |= {name: array for name, array in changed.items() if name in arguments}
    with pytest.raises(ValueError, match=message):
        plstm2d(**arguments, gates=gates)


@pytest.mark.parametrize(
    ("form", "structure"), [("batch_minor", "general"), ("row_transfer", "no_ru"), ("x", "general")]
)
def test_forms_that_a_structure_does_not_have_are_named(form, structure):
    gates = assemble(draw((2, 5, 4), dtype=jnp.float32)[0]["free"])
    with pytest.raises(ValueError, match=f'{form}.*structure="{structure}".*auto, {next(iter(grid.FORMS[structure]))}'):
        gating_matrix(gates, structure=structure, form=form)


@pytest.mark.parametrize("option", ["method", "structure"])
def test_unknown_options_are_named(option):
    arguments, _ = draw((1, 1), dtype=jnp.float32)
    gates = assemble(arguments.pop("free"))
    with pytest.raises(ValueError, match=f"{option}.*'quick'"):
        plstm2d(**arguments, gates=gates, **{option: "quick"})


def test_auto_is_chunkwise_from_the_measured_size_on_and_where_the_matrix_would_be_huge(monkeypatch):
    measured = {"chunkwise_from": {"rank_one": {16: 100, 64: 400}, "no_ru": {64: None}}}
    monkeypatch.setitem(grid.TABLE, "cpu", measured)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for shape, structure, expected in (
        ((3, 19, 21, 64), "rank_one", False),
        ((3, 20, 20, 64), "rank_one", True),
        ((3, 10, 10, 20), "rank_one", True),  # the nearest head size that was measured
        ((3, 9, 11, 20), "rank_one", False),
        ((3, 40, 40, 64), "no_ru", False),  # never faster
        ((3, 40, 40, 64), "general", False),  # not measured
        ((64, 40, 40, 64), "no_ru", False),  # 64 matrices of 1,600 x 1,600, a lot at a time
        ((64, 91, 91, 64), "no_ru", True),  # two matrices of 8,281 x 8,281
    ):
        assert grid.prefers_chunkwise(shape, shape[-1], structure, itemsize=4) == expected, shape


def test_auto_takes_the_form_that_it_says(monkeypatch):
    arguments, _ = draw((2, 5, 4), "p_printed", jnp.float32)
    gates = assemble(arguments.pop("free"))
    for least, taken in ((21, 0), (20, 1)):
        calls = []
        monkeypatch.setitem(grid.TABLE["cpu"], "chunkwise_from", {"rank_one": {64: least}})
        counted = lambda *a, calls=calls: calls.append(1) or chunkwise(*a)  # noqa: E731
        monkeypatch.setattr(grid.chunkwise, "chunkwise", counted)
        found = plstm2d(**arguments, gates=gates, structure="rank_one")
        assert len(calls) == taken
        np.testing.assert_allclose(found, plstm2d_oracle(**arguments, gates=gates), atol=1e-5)
