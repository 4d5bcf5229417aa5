from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.mamba2d import mamba2d, states_of
from tests.models.golden import check as check_golden
from tests.models.golden import waves

from .comparing import check

# Function objects that stay the same, so that each is compiled once.
OTHERS = {method: partial(mamba2d, method=method) for method in ("rows", "diagonals")}


def recurrent(**arguments):
    return mamba2d(**arguments, method="recurrent")


def draw(height: int, width: int, scale: float = 1.0, batch=(2,), dim=3, states=4) -> tuple[dict, jax.Array]:
    """Arguments and a cotangent; `scale` is that of A: large for decays at 0, tiny for decays at 1."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731
    cells = (*batch, height, width)
    deltas = {name: jnp.exp(normal(*cells, dim)) for name in ("delta_t", "delta_l")}
    decays = {name: -scale * jnp.exp(normal(dim, states)) for name in ("a_t", "a_l")}
    thin = {name: normal(*cells, states) for name in ("b", "c")}
    return {"u": normal(*cells, dim), **deltas, **decays, **thin}, normal(*cells, dim)


@pytest.mark.parametrize("method", OTHERS)
@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (7, 1), (5, 4), (12, 12)])
def test_fast_forms_are_the_definition_on_ragged_grids(x64, grid, method):
    check(OTHERS[method], recurrent, *draw(*grid), 1e-12)


@pytest.mark.parametrize("method", OTHERS)
@pytest.mark.parametrize("scale", [1e-300, 1e4])
def test_decays_at_zero_and_at_one(x64, scale, method):
    arguments, cotangent = draw(5, 4, scale)
    extreme = jnp.exp(arguments["delta_t"][..., None] * arguments["a_t"])
    assert (extreme == 1).all() if scale < 1 else (extreme < 1e-100).mean() > 0.9
    check(OTHERS[method], recurrent, arguments, cotangent, 1e-12)


@pytest.mark.parametrize(("method", "most"), [("rows", 3), ("diagonals", 4.5)])
def test_gradients_keep_one_array_of_states(method, most):
    arguments, _ = draw(24, 8, dim=32)
    loss = lambda arguments: OTHERS[method](**arguments).sum()  # noqa: E731
    plan = jax.jit(jax.grad(loss)).lower(arguments).compile().memory_analysis()
    states = arguments["u"].size * arguments["b"].shape[-1] * arguments["u"].dtype.itemsize
    assert states < plan.temp_size_in_bytes < most * states


@pytest.mark.parametrize(("backend", "steps"), [("cpu", 3), ("gpu", 7)])  # loops: over rows, or over diagonals
def test_other_devices_than_cpus_take_diagonals(backend, steps, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    loops = jax.make_jaxpr(lambda arguments: mamba2d(**arguments))(draw(3, 5)[0]).pretty_print()
    assert f"length={steps}" in loops


def test_several_batch_axes_and_bfloat16():
    arguments, cotangent = draw(5, 4, batch=(2, 1))
    arguments = {name: value.astype(jnp.float32) for name, value in arguments.items()}
    expected = recurrent(**arguments)
    half = arguments | {"u": arguments["u"].astype(jnp.bfloat16)}
    found = mamba2d(**half)
    assert found.shape == cotangent.shape and found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.02 * float(jnp.abs(expected).max()))


def test_the_definition_meets_the_golden_values(x64):
    shape = (1, 3, 4, 2, 2)
    inputs = {"at": 0.5 + 0.4 * waves(shape, 1.0), "al": 0.5 + 0.4 * waves(shape, 0.6, 1.0)}
    inputs |= {"bt": waves(shape, 0.7, 0.3), "bl": waves(shape, 0.9, 0.6)}
    check_golden("M1", lambda at, al, bt, bl: (states_of(at, al, bt, bl), None), **inputs)


def test_wrong_shapes_are_named():
    arguments, _ = draw(2, 3)
    with pytest.raises(ValueError, match=r"a_l must be \[e, N\] = \(3, 4\)"):
        mamba2d(**arguments | {"a_l": arguments["a_l"].T})
    with pytest.raises(ValueError, match="delta_t must be"):
        mamba2d(**arguments | {"delta_t": arguments["delta_t"][:, :1]})
    with pytest.raises(ValueError, match="method must be one of auto, rows, diagonals, recurrent; got 'fast'"):
        mamba2d(**arguments, method="fast")
