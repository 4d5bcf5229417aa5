"""The scans of 2DMamba and Mamba2D over grids against their definitions: values and every gradient."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.mamba2d import mamba2d, states_of
from plstm.ops.ss2d import ss2d
from tests.models.golden import check as check_golden
from tests.models.golden import waves

from .comparing import check

# Function objects that stay the same, so that each is compiled once.
DEFINITION = {"ss2d": partial(ss2d, method="recurrent"), "mamba2d": partial(mamba2d, method="recurrent")}
ROWS = partial(mamba2d, method="rows")
DIAGONALS = partial(mamba2d, method="diagonals")
fast_forms = pytest.mark.parametrize(
    ("name", "form"), [("ss2d", ss2d), ("mamba2d", ROWS), ("mamba2d", DIAGONALS)], ids=["ss2d", "rows", "diagonals"]
)


def draw(name: str, height: int, width: int, scale: float = 1.0, batch=(2,), dim=3) -> tuple[dict, jax.Array]:
    """Arguments and a cotangent; `scale` is that of A: large for decays at 0, tiny for decays at 1."""
    rng = np.random.default_rng(0)
    cells, states = (*batch, height, width), {"ss2d": 2, "mamba2d": 4}[name]
    arguments = {"u": (*cells, dim), "b": (*cells, states), "c": (*cells, states)}
    arguments = {key: jnp.asarray(rng.normal(size=shape)) for key, shape in arguments.items()}
    for ending in {"ss2d": ("",), "mamba2d": ("_t", "_l")}[name]:
        arguments[f"delta{ending}"] = jnp.exp(rng.normal(size=(*cells, dim)))
        arguments[f"a{ending}"] = -scale * jnp.exp(rng.normal(size=(dim, states)))
    return arguments, jnp.asarray(rng.normal(size=(*cells, dim)))


@fast_forms
@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (7, 1), (5, 4), (12, 12)])
def test_scans_are_the_definition_on_ragged_grids(x64, grid, name, form):
    check(form, DEFINITION[name], *draw(name, *grid), 1e-12)


@fast_forms
@pytest.mark.parametrize("scale", [1e-300, 1e4])
def test_decays_at_zero_and_at_one(x64, scale, name, form):
    arguments, cotangent = draw(name, 5, 4, scale)
    delta, a = (arguments[key] for key in (("delta", "a") if name == "ss2d" else ("delta_t", "a_t")))
    decays = jnp.exp(delta[..., None] * a)
    assert (decays == 1).all() if scale < 1 else (decays < 1e-100).mean() > 0.9
    check(form, DEFINITION[name], arguments, cotangent, 1e-12)


@pytest.mark.parametrize(("form", "most"), [(ROWS, 3), (DIAGONALS, 4.5)], ids=["rows", "diagonals"])
def test_gradients_keep_one_array_of_states(form, most):
    arguments, _ = draw("mamba2d", 24, 8, dim=32)

    def loss(arguments):
        return form(**arguments).sum()

    plan = jax.jit(jax.grad(loss)).lower(arguments).compile().memory_analysis()
    states = arguments["u"].size * arguments["b"].shape[-1] * arguments["u"].dtype.itemsize
    assert states < plan.temp_size_in_bytes < most * states


@pytest.mark.parametrize(("backend", "steps"), [("cpu", 3), ("gpu", 7)])  # loops: over rows, or over diagonals
def test_other_devices_than_cpus_take_diagonals(backend, steps, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    loops = jax.make_jaxpr(lambda arguments: mamba2d(**arguments))(draw("mamba2d", 3, 5)[0]).pretty_print()
    assert f"length={steps}" in loops


@pytest.mark.parametrize("operator", [ss2d, mamba2d])
def test_several_batch_axes_and_bfloat16(operator):
    arguments, cotangent = draw(operator.__name__, 5, 4, batch=(2, 1))
    arguments = {name: value.astype(jnp.float32) for name, value in arguments.items()}
    expected = DEFINITION[operator.__name__](**arguments)
    found = operator(**arguments | {"u": arguments["u"].astype(jnp.bfloat16)})
    assert found.shape == cotangent.shape and found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.02 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("method", ["scans", "recurrent"])
def test_ss2d_meets_its_golden_values(x64, method):
    def one_map(u, delta, A, B, C, D, bias):
        by_cells = [x.transpose(0, 2, 3, 1) for x in (u, delta, B, C)]
        y = ss2d(by_cells[0], jax.nn.softplus(by_cells[1] + bias), A, *by_cells[2:], method=method)
        return (y.transpose(0, 3, 1, 2) + D[:, None, None] * u).reshape(1, 2, 12), None

    cells = (1, 2, 3, 4)
    inputs = {"u": waves(cells), "delta": -1 + waves(cells, 0.83, 0.5), "A": -jnp.exp(0.5 * waves((2, 2), 0.9, 0.1))}
    inputs |= {"B": waves(cells, 0.47, 0.7), "C": waves(cells, 0.61, 0.9)}
    inputs |= {"D": waves((2,), 1.1, 0.2), "bias": waves((2,), 1.7, 0.3)}
    check_golden("T1", one_map, **inputs)


def test_mamba2d_meets_its_golden_values(x64):
    shape = (1, 3, 4, 2, 2)
    inputs = {"at": 0.5 + 0.4 * waves(shape, 1.0), "al": 0.5 + 0.4 * waves(shape, 0.6, 1.0)}
    inputs |= {"bt": waves(shape, 0.7, 0.3), "bl": waves(shape, 0.9, 0.6)}
    check_golden("M1", lambda at, al, bt, bl: (states_of(at, al, bt, bl), None), **inputs)
