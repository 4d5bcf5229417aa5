import jax
import numpy as np
import pytest
from flax import nnx


@pytest.fixture
def filled():
    """Function of (build, scale=0.5): the module that `build()` makes, every parameter drawn from a normal.

    So no gate can read another's parameter unnoticed; and nothing is compiled to draw them.
    """

    def fill(build, scale=0.5):
        rng = np.random.default_rng(0)
        graphdef, params = nnx.split(nnx.eval_shape(build))
        drawn = jax.tree.map(lambda leaf: (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype), params)
        return nnx.merge(graphdef, drawn)

    return fill
