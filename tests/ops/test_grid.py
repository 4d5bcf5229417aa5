"""The fast forms of the 2-D operator against the recurrence of Equations 1 and 2: values and every gradient."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Literal

from plstm.ops import grid
from plstm.ops.grid import GridGates, cpu, dispatch, gating_matrix, gating_matrix_oracle, plstm2d, plstm2d_oracle
from plstm.ops.grid.chunkwise import chunkwise

from .comparing import assert_close, check, check_bfloat16, draw_transition

METHODS = ["parallel", "chunkwise"]  # "recurrent" is the oracle itself
STRUCTURE = {"general": "general", "d_mode": "d_mode", "p_printed": "shared_incoming", "p_released": "shared_incoming"}
transitions = functools.partial(draw_transition, largest=0.6)


def draw_gates(rng, kind, shape):
    """The gates a caller is free to choose: all eight, seven in D-mode, the five that P-mode shares between edges."""
    if kind in ("general", "d_mode"):
        free = {name: rng.uniform(-1, 1, shape) for name in ("s_r", "s_d", "m_l", "m_u")}
        names = ("t_rl", "t_dl", "t_du") if kind == "d_mode" else ("t_rl", "t_ru", "t_dl", "t_du")
        return free | {name: transitions(rng, shape) for name in names}
    alpha = np.where(rng.random(shape) < 0.2, rng.choice([0.0, 1.0], shape), rng.random(shape))
    gamma, source = transitions(rng, shape), rng.random(shape)
    free = {"s_r": alpha * source, "t_r": gamma * alpha, "m": rng.random(shape)}
    if kind == "p_printed":  # Equation 5
        return free | {"s_d": (1 - alpha) * source, "t_d": gamma * (1 - alpha)}
    return free | {"s_d": 1 - alpha * source, "t_d": 1 - gamma * alpha}


def assemble(free):
    if "t_r" in free:
        shared = {"t_rl": "t_r", "t_ru": "t_r", "t_dl": "t_d", "t_du": "t_d", "m_l": "m", "m_u": "m"}
        return GridGates(s_r=free["s_r"], s_d=free["s_d"], **{name: free[kept] for name, kept in shared.items()})
    return GridGates(**({"t_ru": jnp.zeros_like(free["t_rl"])} | free))


def draw(shape, kind="general", dtype=jnp.float64, sizes=(3, 2)):
    """Arguments and the output's cotangent; shape [..., Y, X], sizes of keys and of values."""
    rng = np.random.default_rng(0)
    arguments = {
        "q": rng.normal(size=(*shape, sizes[0])),
        "k": rng.normal(size=(*shape, sizes[0])),
        "v": rng.normal(size=(*shape, sizes[1])),
        "free": draw_gates(rng, kind, (*shape[:-2], 4, *shape[-2:])),
        "direct": rng.uniform(-1, 1, shape),
    }
    return jax.tree.map(lambda array: jnp.asarray(array, dtype), (arguments, rng.normal(size=(*shape, sizes[1]))))


def oracle(q, k, v, free, direct):
    return plstm2d_oracle(q, k, v, assemble(free), direct)


@functools.cache
def fast(method, structure):
    def operator(q, k, v, free, direct):
        return plstm2d(q, k, v, assemble(free), direct, method=method, structure=structure)

    return operator


def cases():
    """(method, kind, promised structure, shape, bits). Slow tests: 12 x 12 in float64, in float32 of the
    methods that `auto` stands for, and most of chunkwise, which compiles for seconds."""
    for method, shape in itertools.product(["auto", *METHODS], [(1, 1), (1, 7), (7, 1), (2, 3, 5, 4), (2, 14, 14)]):
        slow = method == "chunkwise" and shape not in [(1, 7), (2, 3, 5, 4)]
        yield pytest.param(method, "general", "general", shape, 64, marks=[pytest.mark.slow] * slow)
    for kind, shape in [*itertools.product(STRUCTURE, [(2, 5, 4)]), ("general", (1, 7)), ("general", (7, 1))]:
        yield "hierarchical", kind, STRUCTURE[kind], shape, 64
    for kind in list(STRUCTURE)[1:]:
        for shape in [(8, 1, 1), (8, 1, 7), (8, 7, 1), (2, 4, 5, 4)]:
            yield "auto", kind, STRUCTURE[kind], shape, 64
        for method in ["auto", "recurrent", *METHODS]:
            yield method, kind, STRUCTURE[kind], (2, 5, 4), 64
    for kind, method in itertools.product(STRUCTURE, ["auto", *METHODS]):
        marks = [pytest.mark.slow] * (method in ("parallel", "chunkwise"))
        yield pytest.param(method, kind, STRUCTURE[kind], (8 if method == "auto" else 2, 12, 12), 32, marks=marks)
        if kind == "general" or method != "auto":
            yield pytest.param(method, kind, STRUCTURE[kind], (2, 12, 12), 64, marks=pytest.mark.slow)
        if kind != "general" and method != "auto":  # no promise is needed
            yield method, kind, "general", (2, 3, 5, 4), 64


@pytest.mark.parametrize(("method", "kind", "structure", "shape", "bits"), [*cases()])
def test_values_and_gradients(method, kind, structure, shape, bits):
    with jax.enable_x64(bits == 64):
        arguments, cotangent = draw(shape, kind, f"float{bits}")
        if structure != STRUCTURE[kind]:
            arguments["free"] = assemble(arguments["free"])._asdict()
        check(fast(method, structure), oracle, arguments, cotangent, {64: 1e-10, 32: 2e-5}[bits])


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind, s in STRUCTURE.items() for form in grid.FORMS[s]])
def test_gating_matrix(x64, kind, form):
    gates = assemble(draw((2, 5, 4), kind)[0]["free"])
    matrix = jax.jit(functools.partial(gating_matrix, structure=STRUCTURE[kind], form=form))(gates)
    assert matrix.shape == (2, 5, 4, 5, 4)
    assert_close(matrix, jax.jit(gating_matrix_oracle)(gates), 1e-12)


def longest_chain(jaxpr, before: list[int]) -> list[int]:
    """Matrix products in sequence up to each output, of a program without loops; before: up to its inputs."""
    depth = dict(zip(jaxpr.invars, before, strict=True))
    for equation in jaxpr.eqns:
        assert equation.primitive.name not in ("scan", "while")
        inputs = [0 if isinstance(x, Literal) else depth.get(x, 0) for x in equation.invars]
        inner = [value for value in equation.params.values() if isinstance(value, ClosedJaxpr)]
        if inner and equation.primitive.name != "scatter-add":  # whose program is the sum of two numbers
            outputs = longest_chain(inner[0].jaxpr, inputs)
        else:
            outputs = [max(inputs, default=0) + (equation.primitive.name == "dot_general")] * len(equation.outvars)
        depth |= zip(equation.outvars, outputs, strict=True)
    return [depth.get(variable, 0) for variable in jaxpr.outvars]


@pytest.mark.parametrize(("form", "products"), [("row_transfer", 12), ("hierarchical", 8)])
def test_products_in_sequence(form, products):
    """A row each, against a halving each of 16 rows and of 16 columns."""
    gates = jax.tree.map(lambda _: jnp.zeros((4, 12, 12)), GridGates(*range(8)))
    program = jax.make_jaxpr(functools.partial(gating_matrix, form=form))(gates)
    assert longest_chain(program.jaxpr, [0] * 8) == [products]


@pytest.mark.parametrize(
    ("method", "kind"), [*((method, "p_printed") for method in ["auto", "recurrent", *METHODS]), ("auto", "d_mode")]
)
def test_bfloat16_inputs_with_float32_gates(method, kind):
    shape = (8 if method == "auto" else 2, 12, 12)
    check_bfloat16(fast(method, STRUCTURE[kind]), oracle, *draw(shape, kind, jnp.float32), 3e-2)


def test_chunkwise_by_chunks_and_other_blocks(x64):
    def by_chunks(q, k, v, free, direct):
        return chunkwise(q, k, v, assemble(free), direct, "d_mode", block=2, chunks=2)

    check(by_chunks, oracle, *draw((3, 2, 3, 5), "d_mode"), 1e-10)


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
def test_gradients_are_finite_at_extreme_gates(method, kind, extreme):
    shape = (8 if method == "auto" else 2, 12, 12)
    check(fast(method, STRUCTURE[kind]), oracle, *draw_extreme(shape, kind, extreme), 1e-4)


def draw_extreme(shape, kind, extreme):
    arguments, cotangent = draw(shape, kind, jnp.float32)
    level = {name[0]: value for name, value in EXTREMES[extreme].items()}  # s, t, m
    arguments["free"] = {name: jnp.full_like(gate, level[name[0]]) for name, gate in arguments["free"].items()}
    return arguments, cotangent


@pytest.mark.parametrize(("form", "structure"), [("cpu", "general"), ("row_transfer", "d_mode"), ("x", "general")])
def test_forms_that_a_structure_does_not_have_are_named(form, structure):
    gates = assemble(draw((2, 5, 4), dtype=jnp.float32)[0]["free"])
    with pytest.raises(ValueError, match=f'{form}.*structure="{structure}".*auto, {next(iter(grid.FORMS[structure]))}'):
        gating_matrix(gates, structure=structure, form=form)


def test_auto_is_chunkwise_from_the_measured_size_on_and_where_the_matrix_would_be_huge(monkeypatch):
    monkeypatch.setitem(cpu.CHUNKWISE_FROM, "shared_incoming", 400)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    for shape, structure, expected in (
        ((3, 19, 21, 64), "shared_incoming", False),
        ((3, 20, 20, 64), "shared_incoming", True),
        ((64, 40, 40, 64), "d_mode", False),  # 64 matrices of 1,600 x 1,600, a chunk at a time
        ((64, 91, 91, 64), "d_mode", True),  # two matrices of 8,281 x 8,281
        ((1, 64, 64, 64), "d_mode", False),  # 64 MiB, half of it a core
        ((1, 64, 65, 64), "d_mode", True),
    ):
        chosen = dispatch.choose_method(shape, structure, itemsize=4)
        assert chosen == ("chunkwise" if expected else "parallel"), shape
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert dispatch.choose_method((1024, 3, 24, 24, 64), "d_mode", itemsize=4) == "parallel"
    assert dispatch.choose_method((1024, 3, 32, 32, 64), "d_mode", itemsize=4) == "chunkwise"  # 12 GiB of matrices


def test_auto_takes_the_form_that_it_says(monkeypatch):
    arguments, _ = draw((2, 5, 4), "p_printed", jnp.float32)
    arguments["gates"] = assemble(arguments.pop("free"))
    expected = jax.jit(plstm2d_oracle)(**arguments)
    for least, taken in ((21, 0), (20, 1)):
        calls = []
        monkeypatch.setitem(cpu.CHUNKWISE_FROM, "shared_incoming", least)
        counted = lambda *a, calls=calls: calls.append(1) or chunkwise(*a)  # noqa: E731
        monkeypatch.setattr(dispatch, "chunkwise", counted)
        found = jax.jit(functools.partial(plstm2d, structure="shared_incoming"))(**arguments)  # traced anew each round
        assert len(calls) == taken
        np.testing.assert_allclose(found, expected, atol=1e-5)
