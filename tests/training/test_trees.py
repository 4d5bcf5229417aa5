"""Names of leaves."""

import jax
import numpy as np
import optax
from flax import nnx

from plstm.training.steps import init_state
from plstm.training.trees import named_leaves


def test_names_of_a_training_state_follow_its_leaves():
    model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 1, use_bias=False, rngs=nnx.Rngs(0)))
    _, state = init_state(model, optax.adam(1e-3))
    named = named_leaves(state)
    params = ["layers.0.bias", "layers.0.kernel", "layers.1.kernel"]
    moments = [f"opt_state.0.{moment}.{name}" for moment in ("mu", "nu") for name in params]
    assert list(named) == [
        "step", *(f"params.{name}" for name in params), "opt_state.0.count", *moments, "bad_step"
    ]  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, list(named.values()), jax.tree.leaves(state))


def test_variables_may_be_the_leaves():
    params = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    named = named_leaves(params, is_leaf=lambda node: isinstance(node, nnx.Variable))
    assert {name: type(leaf) for name, leaf in named.items()} == {"bias": nnx.Param, "kernel": nnx.Param}
    assert list(named_leaves({"qkv": {"value": 1, "key": 2}})) == ["qkv.key", "qkv.value"]
