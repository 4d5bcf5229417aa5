"""Arguments of wrong shapes and unknown choices are named, whichever the operator."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.dag import DagGates
from plstm.ops.delta_rule import gated_delta_rule
from plstm.ops.grid import plstm2d
from plstm.ops.linear_attention import linear_attention
from plstm.ops.mamba2d import mamba2d
from plstm.ops.mlstm import mlstm
from plstm.ops.sequence import plstm1d, plstm1d_tracking
from plstm.ops.slstm import slstm
from plstm.ops.ss2d import ss2d
from plstm.ops.ssd import ssd

from .programs import BY_METHOD, CASES, on_dag

ARGUMENTS = {operator: arguments for _, operator, arguments, _ in BY_METHOD} | {slstm: CASES["slstm"][1]}
# A shape stands for zeros of that shape.
WRONG = [
    (mlstm, {"k": (2, 5, 5)}, r"k must .*\(2, 5, 4\).*\(2, 5, 5\)"),
    (mlstm, {"v": (2, 4, 3)}, r"v must .*\(2, 5, 3\).*\(2, 4, 3\)"),
    (mlstm, {"f": (2, 1)}, r"f must .*\(2, 5\).*\(2, 1\)"),
    (mlstm, {"method": "parallel"}, r"method .*chunkwise.*'parallel'"),
    (mlstm, {"chunk": 0}, "chunk must be at least 1; got 0"),
    (plstm1d, {"k": (2, 5, 4)}, r"k must .*\(2, 5, 3\).*\(2, 5, 4\)"),
    (plstm1d, {"v": (2, 4, 4)}, r"v must .*\(2, 5, 4\).*\(2, 4, 4\)"),
    (plstm1d, {"transition": (5,)}, r"transition .*\(5,\)"),
    (plstm1d, {"direct": (2, 1)}, r"direct .*\(2, 1\)"),
    (plstm1d, {"method": "fast"}, r"method .*parallel.*'fast'"),
    (ssd, {"b": (2, 4, 4)}, r"b must be \[..., T, N\] = \(2, 5, 4\); got \(2, 4, 4\)"),
    (ssd, {"a": (2,)}, r"a must be \[H\] = \(3,\)"),
    (gated_delta_rule, {"beta": (3, 1)}, r"beta must .*\(3, 5\).*\(3, 1\)"),
    (gated_delta_rule, {"chunk": 0}, "chunk must be at least 1; got 0"),
    (gated_delta_rule, {"method": "fast"}, "method must be one of auto, chunkwise, recurrent; got 'fast'"),
    (linear_attention, {"write": (2, 1)}, r"write must .*\(2, 5\).*\(2, 1\)"),
    (linear_attention, {"chunk": 0}, "chunk must be at least 1; got 0"),
    (plstm1d_tracking, {"source": (2, 5, 3, 2, 1)}, r"source must .*J_T, J_K, J_V\] = \(2, 5, 3, 2, 5\)"),
    (plstm1d_tracking, {"mark": (2, 5, 2, 4, 2)}, r"mark must .*J_O, J_Q, J_T\] = \(2, 5, 2, 4, 3\)"),
    (plstm1d_tracking, {"direct": (2, 5, 1, 1, 2, 2)}, r"direct must .*= \(2, 5, 2, 4, 2, 5\)"),
    (slstm, {"recurrent": (2, 4, 3, 3)}, r"recurrent must .*\(2, 3, 4, 3\)"),
    (ss2d, {"a": (2, 3)}, r"a must be \[e, N\] = \(3, 2\)"),
    (ss2d, {"method": "fast"}, "method must be one of scans, recurrent; got 'fast'"),
    (mamba2d, {"a_l": (4, 3)}, r"a_l must be \[e, N\] = \(3, 4\)"),
    (mamba2d, {"delta_t": (2, 1, 3, 3)}, "delta_t must be"),
    (mamba2d, {"method": "fast"}, "method must be one of auto, rows, diagonals, recurrent; got 'fast'"),
    (on_dag, {"k": (2, 12, 4)}, r"k must .*\(2, 12, 3\).*\(2, 12, 4\)"),
    (on_dag, dict.fromkeys("qkv", (2, 11, 3)) | {"direct": (2, 11)}, r"q must be .*N.*\(2, 12, 3\).*\(2, 11, 3\)"),
    (on_dag, {"v": (12, 2)}, r"v must .*\(2, 12, 2\).*\(12, 2\)"),
    (on_dag, {"direct": (2, 1)}, r"direct must be .*\(2, 12\).*\(2, 1\)"),
    (on_dag, {"method": "fast"}, r"method .*levels.*'fast'"),
    *((on_dag, {gate: (2, 99)}, rf"{gate} must be .*\(2, 99\)") for gate in DagGates._fields),
    (plstm2d, {"k": (1, 3, 2, 2)}, r"\bk\b.*\(1, 3, 2, 2\)"),
    (plstm2d, {"v": (1, 2, 3, 2)}, r"\bv\b.*\(1, 2, 3, 2\)"),
    (plstm2d, {"direct": (1, 3, 3)}, r"direct.*\(1, 3, 3\)"),
    (plstm2d, {"t_du": (1, 3, 2)}, r"t_du.*\(1, 3, 2\)"),
    (plstm2d, {"s_r": (1, 4, 2, 3)}, r"s_r.*\(1, 4, 2, 3\)"),
    (plstm2d, {"method": "quick"}, "method.*'quick'"),
    (plstm2d, {"structure": "quick"}, "structure.*'quick'"),
]


@pytest.mark.parametrize(("operator", "change", "message"), WRONG)
def test_wrong_arguments_are_named(operator, change, message):
    arguments = dict(ARGUMENTS[operator])
    changed = {name: jnp.zeros(value) if isinstance(value, tuple) else value for name, value in change.items()}
    if "gates" in arguments:
        gates = arguments["gates"]
        own = {name: changed.pop(name) for name in change if name in gates._fields}
        arguments["gates"] = gates._replace(**own)
    with pytest.raises(ValueError, match=message):
        operator(**arguments | changed)


@pytest.mark.parametrize("operator", ARGUMENTS)
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.complex64])
def test_numbers_that_are_not_real_are_refused(operator, dtype):
    arguments = {name: value for name, value in ARGUMENTS[operator].items() if name != "gates"}
    arrays = {name: value.astype(dtype) for name, value in arguments.items() if isinstance(value, jax.Array)}
    with pytest.raises(ValueError, match="must be of floating-point numbers; got"):
        operator(**ARGUMENTS[operator] | arrays)


@pytest.mark.parametrize("operator", [operator for operator in ARGUMENTS if operator is not on_dag])
def test_no_token_and_a_side_of_none_are_refused(operator):
    arguments = dict(ARGUMENTS[operator])
    for name in arguments.keys() - {"a", "a_t", "a_l", "recurrent"}:
        axis = 2 if operator is plstm2d and name == "gates" else 1
        arguments[name] = jax.tree.map(functools.partial(jnp.take, indices=jnp.arange(0), axis=axis), arguments[name])
    with pytest.raises(ValueError, match=r"must have at least one entry along [THY]; got"):
        operator(**arguments)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("operator", ARGUMENTS)
def test_float64_arrays_of_numpy_are_taken_as_float32(operator):
    def double(leaf):
        return np.float64(leaf) if isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 else leaf

    found = operator(**jax.tree.map(double, ARGUMENTS[operator]))
    for got, expected in zip(*map(jax.tree.leaves, (found, operator(**ARGUMENTS[operator]))), strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, expected)
