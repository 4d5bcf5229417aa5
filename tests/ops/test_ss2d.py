import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.ss2d import ss2d
from tests.models.golden import check as check_golden
from tests.models.golden import waves

from .comparing import check


def recurrent(**arguments):
    return ss2d(**arguments, method="recurrent")


def draw(height: int, width: int, scale: float = 1.0, batch=(2,), dim=3, states=2) -> tuple[dict, jax.Array]:
    """Arguments and a cotangent; `scale` is that of A: large for decays at 0, tiny for decays at 1."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731
    cells = (*batch, height, width)
    own = {"u": normal(*cells, dim), "delta": jnp.exp(normal(*cells, dim))}
    own |= {"a": -scale * jnp.exp(normal(dim, states)), "b": normal(*cells, states), "c": normal(*cells, states)}
    return own, normal(*cells, dim)


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (5, 4), (12, 12)])
def test_scans_are_the_definition_on_ragged_grids(x64, grid):
    check(ss2d, recurrent, *draw(*grid), 1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e4])
def test_decays_at_zero_and_at_one(x64, scale):
    arguments, cotangent = draw(5, 4, scale)
    decays = jnp.exp(arguments["delta"][..., None] * arguments["a"])
    assert (decays == 1).all() if scale < 1 else (decays < 1e-100).mean() > 0.9
    check(ss2d, recurrent, arguments, cotangent, 1e-12)


def test_several_batch_axes_and_bfloat16():
    arguments, cotangent = draw(5, 4, batch=(2, 1))
    arguments = {name: value.astype(jnp.float32) for name, value in arguments.items()}
    expected = recurrent(**arguments)
    found = ss2d(**arguments | {"u": arguments["u"].astype(jnp.bfloat16)})
    assert found.shape == cotangent.shape and found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.02 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("method", ["scans", "recurrent"])
def test_one_map_meets_its_golden_values(x64, method):
    def one_map(u, delta, A, B, C, D, bias):
        by_cells = [x.transpose(0, 2, 3, 1) for x in (u, delta, B, C)]
        y = ss2d(by_cells[0], jax.nn.softplus(by_cells[1] + bias), A, *by_cells[2:], method=method)
        return (y.transpose(0, 3, 1, 2) + D[:, None, None] * u).reshape(1, 2, 12), None

    cells = (1, 2, 3, 4)
    inputs = {"u": waves(cells), "delta": -1 + waves(cells, 0.83, 0.5), "A": -jnp.exp(0.5 * waves((2, 2), 0.9, 0.1))}
    inputs |= {"B": waves(cells, 0.47, 0.7), "C": waves(cells, 0.61, 0.9)}
    inputs |= {"D": waves((2,), 1.1, 0.2), "bias": waves((2,), 1.7, 0.3)}
    check_golden("T1", one_map, **inputs)


def test_wrong_shapes_are_named():
    arguments, _ = draw(2, 4)
    with pytest.raises(ValueError, match=r"a must be \[e, N\] = \(3, 2\)"):
        ss2d(**arguments | {"a": arguments["a"].T})
    with pytest.raises(ValueError, match="method must be one of scans, recurrent; got 'fast'"):
        ss2d(**arguments, method="fast")
