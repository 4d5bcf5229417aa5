"""Every form of every operator on an accelerator against the plain recurrence on the CPU: values and all gradients.

Errors are relative to the largest entry of each array. `make test-gpu ARGS=--on-cpu` runs all but `fused` without an
accelerator.
"""

import functools
import itertools

import jax.numpy as jnp
import pytest

from plstm.ops import grid
from plstm.ops.mamba2d import mamba2d
from plstm.ops.mlstm import mlstm
from plstm.ops.sequence import plstm1d
from plstm.ops.slstm import slstm
from plstm.ops.ss2d import ss2d
from tests.ops import test_dag, test_grid, test_recurrences, test_scans, test_sequence
from tests.ops.comparing import check, check_bfloat16
from tests.ops.test_grid import EXTREMES, STRUCTURE

pytestmark = pytest.mark.gpu
in_float32 = pytest.mark.usefixtures("float32")
FLOAT32 = 1e-4
LONG_FLOAT32 = 1e-3  # of chunks of the delta rule, of SSD and of state tracking, as on CPUs
BFLOAT16 = 3e-2
FORMS = ["parallel", "chunkwise", "fused"]
RAGGED = [(1, 1), (1, 7), (7, 1), (17, 3), (3, 18), (9, 64)]  # up to the widest that `fused` takes
TRAINED = [(2, 3, 12, 12), (2, 3, 14, 14), (1, 3, 24, 24)]  # at 192, 224 and 384 pixels


@pytest.fixture
def fast(device):
    """Function of method and structure: the operator, jitted once."""

    def form(method, kind):
        if method == "fused" and device.platform != "gpu":
            pytest.skip("the kernels need a GPU; tests/ops/test_kernels.py runs them as plain JAX")
        return test_grid.fast(method, STRUCTURE[kind])

    return form


@in_float32
@pytest.mark.parametrize(("method", "kind"), [*itertools.product(grid.METHODS, STRUCTURE)])
def test_grid_in_every_method(device, fast, method, kind):
    arguments, cotangent = test_grid.draw((2, 3, 5, 4), kind, jnp.float32)
    check(fast(method, kind), test_grid.oracle, arguments, cotangent, FLOAT32, device)


@in_float32
@pytest.mark.parametrize(("method", "kind", "shape"), [*itertools.product(FORMS, ["general", "d_mode"], RAGGED)])
def test_grid_of_ragged_sizes(device, fast, method, kind, shape):
    arguments, cotangent = test_grid.draw(shape, kind, jnp.float32)
    check(fast(method, kind), test_grid.oracle, arguments, cotangent, FLOAT32, device)


@pytest.mark.parametrize("shape", TRAINED, ids=str)
@pytest.mark.parametrize(("method", "kind"), [*itertools.product(FORMS, ["p_released", "d_mode"])])
def test_grid_as_trained_in_bfloat16(device, fast, method, kind, shape):
    arguments, cotangent = test_grid.draw(shape, kind, jnp.float32, sizes=(64, 64))
    check_bfloat16(fast(method, kind), test_grid.oracle, arguments, cotangent, BFLOAT16, device)


@in_float32
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize(("method", "kind"), [*itertools.product(FORMS, ["general", "d_mode", "p_printed"])])
def test_grid_at_extreme_gates(device, fast, method, kind, extreme):
    arguments, cotangent = test_grid.draw_extreme((2, 12, 12), kind, extreme)
    check(fast(method, kind), test_grid.oracle, arguments, cotangent, FLOAT32, device)


@in_float32
@pytest.mark.parametrize("name", test_dag.DAGS)
@pytest.mark.parametrize("method", test_dag.METHODS)
def test_dag_in_every_method(device, method, name):
    dag = test_dag.DAGS[name]
    arguments, cotangent = test_dag.draw(dag, jnp.float32)
    check(test_dag.fast(dag, method), test_dag.oracle(dag), arguments, cotangent, FLOAT32, device)


@in_float32
@pytest.mark.parametrize("length", [21, 65])
@pytest.mark.parametrize("method", ["chunkwise", "recurrent"])
@pytest.mark.parametrize("operator", test_recurrences.DRAWS, ids=lambda operator: operator.__name__)
def test_recurrences_in_every_method(device, operator, method, length):
    forms = {"chunkwise": test_recurrences.CHUNKS, "recurrent": test_recurrences.STEPS}
    arguments, cotangent = test_recurrences.DRAWS[operator](length, jnp.float32)
    tolerance = FLOAT32 if operator is mlstm else LONG_FLOAT32
    check(forms[method][operator], forms["recurrent"][operator], arguments, cotangent, tolerance, device)


@in_float32
@pytest.mark.parametrize("method", ["parallel", "recurrent"])
def test_sequences_in_every_method(device, method):
    form = functools.partial(plstm1d, method=method)
    check(form, test_sequence.recurrent, *test_sequence.draw(33), FLOAT32, device)


@in_float32
def test_slstm(device):
    check(slstm, slstm, *test_recurrences.draw_slstm(21, jnp.float32), FLOAT32, device)  # it has one form


SCANS = [(ss2d, "scans"), (ss2d, "recurrent"), (mamba2d, "rows"), (mamba2d, "diagonals"), (mamba2d, "recurrent")]


@in_float32
@pytest.mark.parametrize("shape", [(1, 7), (5, 4), (12, 12)], ids=str)
@pytest.mark.parametrize(("operator", "method"), SCANS, ids=lambda part: getattr(part, "__name__", part))
def test_scans_over_grids_in_every_method(device, operator, method, shape):
    form = functools.partial(operator, method=method)
    definition = test_scans.DEFINITION[operator.__name__]
    check(form, definition, *test_scans.draw(operator.__name__, *shape), FLOAT32, device)
