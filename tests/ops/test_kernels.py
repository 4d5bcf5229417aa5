"""The GPU kernels of the 2-D operator, run as plain JAX, against the recurrence: values and every gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.errors import UserError
from plstm.models import VisionConfig, build_model
from plstm.ops.grid import GridGates, plstm2d
from plstm.ops.grid import kernels as grid_kernels
from plstm.ops.grid.kernels import fused

from .comparing import check, check_bfloat16
from .test_grid import EXTREMES, STRUCTURE, assemble, draw, draw_extreme, fast, oracle


@functools.cache
def kernels(structure, **options):
    def operator(q, k, v, free, direct):
        return fused(q, k, v, assemble(free), direct, structure=structure, interpret=True, **options)

    return operator


FAST = [((5, 2), "d_mode", 16), ((2, 1, 3, 5), "general", 16)]
SLOW = [
    ((1, 4), "p_printed", 16),
    ((1, 1), "general", 16),
    ((2, 1, 3, 5), "p_released", 16),
    ((17, 3), "general", 16),
    ((17, 3), "d_mode", 16),
    ((3, 18), "p_printed", None),
]


@pytest.mark.parametrize(
    ("shape", "kind", "block"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_values_and_gradients_in_float64(x64, shape, kind, block):
    check(kernels(STRUCTURE[kind], block=block), oracle, *draw(shape, kind), 1e-10)


@pytest.mark.parametrize("extreme", list(EXTREMES))
@pytest.mark.parametrize("kind", ["general", pytest.param("d_mode", marks=pytest.mark.slow)])
def test_gradients_are_finite_at_extreme_gates(kind, extreme):
    check(kernels(STRUCTURE[kind], block=16), oracle, *draw_extreme((12, 4), kind, extreme), 1e-4)


@pytest.mark.parametrize("kind", ["d_mode", pytest.param("p_released", marks=pytest.mark.slow)])
def test_bfloat16_inputs_with_float32_gates(kind):
    check_bfloat16(kernels(STRUCTURE[kind]), oracle, *draw((2, 5, 4), kind, jnp.float32), 3e-2)


def step(structure, q, k, v, gates, direct, cotangent):
    output, backward = jax.vjp(functools.partial(fused, structure=structure), q, k, v, gates, direct)
    return output, backward(cotangent)


@pytest.mark.skipif(jax.__version_info__[:3] > (0, 10, 2), reason="newer ones ask the GPU while they lower")
@pytest.mark.parametrize(
    ("structure", "dtype"), [("general", jnp.float32), ("shared_incoming", jnp.bfloat16), ("d_mode", jnp.bfloat16)]
)
def test_kernels_lower_for_gpus(structure, dtype):
    """As far as Triton's intermediate form, which a machine without a GPU can write."""
    grid = (2, 12, 12)
    x = jax.ShapeDtypeStruct((*grid, 64), dtype)
    gates = GridGates(*[jax.ShapeDtypeStruct((2, 4, 12, 12), jnp.float32)] * 8)
    arguments = (x, x, x, gates, jax.ShapeDtypeStruct(grid, jnp.float32), x)
    traced = jax.jit(functools.partial(step, structure)).trace(*arguments)
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("@__gpu$xla.gpu.triton") == 4


def test_a_backend_or_jax_without_the_kernels_says_so(monkeypatch):
    arguments, _ = draw((1, 1), dtype=jnp.float32)
    gates = assemble(arguments.pop("free"))
    with pytest.raises(ValueError, match='method="fused" runs on GPUs.*cpu'):
        plstm2d(**arguments, gates=gates, method="fused")
    with pytest.raises(UserError, match="model.method=fused"):
        build_model(VisionConfig(method="fused"), 0)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(grid_kernels, "pl", None)
    with pytest.raises(UserError, match='method="fused" needs Pallas.*use method="auto"'):
        plstm2d(**arguments, gates=gates, method="fused")


def test_grids_that_are_too_wide_are_named():
    arguments = jax.tree.map(np.asarray, draw((1, 65), dtype=jnp.float32)[0])
    with pytest.raises(ValueError, match="64 columns.*1 x 65"):
        fast("fused", "general")(**arguments)
