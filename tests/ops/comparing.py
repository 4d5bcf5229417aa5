"""Operators compared by values and every gradient; random transitions and graphs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from plstm.ops.dag import Dag
from plstm.ops.grid import GridGates


@functools.partial(jax.jit, static_argnames="operator")
def outputs_and_gradients(operator, arguments: dict, cotangent):
    """Compiled once for one operator and one set of shapes, so pass the same function object for the same operator."""

    def loss(arguments):
        output = operator(**arguments)
        return (output * cotangent).sum(), output

    gradients, output = jax.grad(loss, has_aux=True)(arguments)
    return {"output": output, "gradients": gradients}


def assert_close(actual, expected, tolerance):
    """Compares two trees, errors relative to each leaf's largest entry."""
    actual, expected = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (actual, expected))
    assert [path for path, _ in actual] == [path for path, _ in expected]
    for (path, left), (_, right) in zip(actual, expected, strict=True):
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
        assert left.shape == right.shape, path
        assert np.isfinite(left).all() and np.isfinite(right).all(), path
        scale = np.abs(right).max(initial=1e-30)
        np.testing.assert_allclose(left / scale, right / scale, rtol=0, atol=tolerance, err_msg=str(path))


def run_on(device, operator, arguments: dict, cotangent):
    """`outputs_and_gradients` on a device; None: on the usual one."""
    return outputs_and_gradients(operator, *jax.device_put((arguments, cotangent), device))


def check(operator, oracle, arguments: dict, cotangent, tolerance, device=None):
    """device: the operator's; the oracle's is then a CPU."""
    expected = run_on(device and jax.devices("cpu")[0], oracle, arguments, cotangent)
    assert_close(run_on(device, operator, arguments, cotangent), expected, tolerance)


def check_bfloat16(operator, oracle, arguments: dict, cotangent, tolerance, device=None):
    """As `check`, the operator with its queries, keys and values in bfloat16 and the gates in float32."""
    half = arguments | {name: arguments[name].astype(jnp.bfloat16) for name in "qkv"}
    actual = run_on(device, operator, half, cotangent)
    assert actual["output"].dtype == actual["gradients"]["k"].dtype == jnp.bfloat16
    gates = [leaf for name, tree in actual["gradients"].items() if name not in "qkv" for leaf in jax.tree.leaves(tree)]
    assert {gate.dtype for gate in gates} == {jnp.dtype("float32")}
    rounded = arguments | {name: half[name].astype(jnp.float32) for name in "qkv"}
    assert_close(actual, run_on(device and jax.devices("cpu")[0], oracle, rounded, cotangent), tolerance)


def draw_transition(rng, shape, largest=1.0, special=0.4):
    """Some are zero, one, negative, or above one."""
    chosen = rng.choice([0.0, 1.0, -1.0, 1.3], size=shape)
    return np.where(rng.random(shape) < special, chosen, rng.uniform(-largest, largest, shape))


def draw_gates(height, width) -> GridGates:
    rng = np.random.default_rng(0)
    return GridGates(*(jnp.asarray(rng.uniform(-1, 1, (4, height, width))) for _ in GridGates._fields))


def draw_dag(nodes: int, share: float, seed: int = 0, double: bool = False) -> Dag:
    """A random DAG whose node numbers are not its order; each possible edge is there with probability `share`."""
    rng = np.random.default_rng(seed)
    name = rng.permutation(nodes)
    pairs = [(name[i], name[j]) for i in range(nodes) for j in range(i + 1, nodes) if rng.random() < share]
    pairs += pairs[:1] * double
    return Dag.from_edges(nodes, rng.permutation(pairs) if pairs else [])
