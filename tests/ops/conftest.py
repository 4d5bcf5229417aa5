import functools

import jax
import numpy as np
import pytest


@pytest.fixture
def x64():
    """Runs the test in float64."""
    with jax.enable_x64(True):
        yield


@functools.partial(jax.jit, static_argnames="operator")
def _outputs_and_gradients(operator, arguments, cotangent):
    def loss(arguments):
        output = operator(**arguments)
        return (output * cotangent).sum(), output

    gradients, output = jax.grad(loss, has_aux=True)(arguments)
    return {"output": output, "gradients": gradients}


@pytest.fixture
def outputs_and_gradients():
    """Function of (operator, its arguments by name, cotangent): the output and the gradient for every argument.

    Compiled once for one operator and one set of shapes, so pass the same function object for the same operator.
    """
    return _outputs_and_gradients


def _assert_close(actual, expected, tolerance):
    actual, expected = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (actual, expected))
    assert [path for path, _ in actual] == [path for path, _ in expected]
    for (path, left), (_, right) in zip(actual, expected, strict=True):
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
        assert left.shape == right.shape, path
        assert np.isfinite(right).all(), path
        scale = np.abs(right).max(initial=1e-30)
        np.testing.assert_allclose(left / scale, right / scale, rtol=0, atol=tolerance, err_msg=str(path))


@pytest.fixture
def assert_close():
    """Function of (actual, expected, tolerance): compares two trees, errors relative to each leaf's largest entry."""
    return _assert_close
