from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.models import EfficientNetConfig, build_model
from plstm.models.efficientnet import MBConv
from plstm.nn.maps import depthwise

from .golden import GOLDEN, check, dense, fill, maps, norm, waves

SMALL = EfficientNetConfig(
    image_size=16, classes=2, stem=8, stages=[[3, 1, 1, 1, 8], [5, 2, 2, 3, 12]], features=24, dropout=0.0
)


def tensors(block: MBConv) -> list:
    """In the golden order."""
    first = [*dense(block.expand), *norm(block.expand_norm)] if block.expand else []
    excite = [*dense(block.excite.squeeze), *dense(block.excite.excite)]
    return [*first, (block.kernel, "K"), *norm(block.norm), *excite, *dense(block.project), *norm(block.project_norm)]


def applied(model: nnx.Module, call: Callable) -> Callable:
    """The function x -> what `call` makes of the model and x, and the running statistics afterwards."""
    graphdef, state = nnx.split(model)

    def apply(x):
        copied = nnx.merge(graphdef, state, copy=True)
        return call(copied, x), nnx.state(copied, nnx.BatchStat)

    return apply


def is_same(before: nnx.State, after: nnx.State) -> list[bool]:
    return [bool((one == other).all()) for one, other in zip(*map(jax.tree.leaves, (before, after)), strict=True)]


@pytest.mark.parametrize("case", ["E1", "E2"])
def test_a_block_meets_its_golden_values(float64, case):
    sizes, shape = {"E1": ((4, 6, 5, 2, 3), (2, 7, 8, 4)), "E2": ((4, 4, 3, 1, 1), (2, 5, 4, 4))}[case]
    block = MBConv(*sizes, dtype=jnp.float64, rngs=nnx.Rngs(0))
    fill(tensors(block))
    before = nnx.state(block, nnx.BatchStat)
    for mode, train in (("eval", False), ("train", True)):
        call = lambda block, x, train=train: maps(partial(block, train=train), x)  # noqa: E731
        after = check(f"{case} {mode}", applied(block, call), x=waves(shape))
        assert is_same(before, after) == [not train] * len(is_same(before, after))
    for name in ("mean", "var"):
        found = after["norm"][name][...].sum()
        np.testing.assert_allclose(found, GOLDEN[f"{case} train"][f"running_{name}_sum"], rtol=1e-6)


def test_the_model_meets_its_golden_values(float64):
    model = nnx.jit(lambda: build_model(SMALL, 0))()
    blocks = [entry for block in model.blocks for entry in tensors(block)]
    ends = [*dense(model.features), *norm(model.features_norm), *dense(model.head)]
    fill([*dense(model.stem), *norm(model.stem_norm), *blocks, *ends])
    for mode, key in (("eval", None), ("train", jax.random.key(0))):
        check(f"E3 {mode}", applied(model, lambda model, x, key=key: model(x, key=key)), x=waves((2, 16, 16, 3)))


def test_dropout_is_for_training():
    config = EfficientNetConfig(**vars(SMALL) | {"dropout": 0.9, "stages": [[3, 1, 1, 1, 4]]})
    graphdef, state = nnx.split(build_model(config, 0))
    images = jax.random.normal(jax.random.key(0), (4, 6, 6, 3))
    apply = jax.jit(lambda key: nnx.merge(graphdef, state, copy=True)(images, key=key))
    one, other, none = (apply(key) for key in (jax.random.key(0), jax.random.key(1), None))
    assert float(jnp.abs(one - other).max()) > 0 and np.isfinite(none).all()


@pytest.mark.parametrize(("side", "kernel", "stride"), [((1, 1), 3, 1), ((1, 7), 5, 2), ((6, 4), 3, 2)])
def test_depthwise_is_the_convolution(x64, side, kernel, stride):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (*side, 2, 3), jnp.float64)
    weights = jax.random.normal(keys[1], (kernel, kernel, 1, 3), jnp.float64)
    form = dict(padding=[(kernel // 2,) * 2] * 2, dimension_numbers=("HWNC", "HWIO", "HWNC"), feature_group_count=3)
    definition = partial(jax.lax.conv_general_dilated, window_strides=(stride, stride), **form)

    @jax.jit
    def compare(x, weights):
        both = []
        for function in (definition, partial(depthwise, stride=stride)):
            y, backward = jax.vjp(function, x, weights)
            both.append((y, *backward(jax.random.normal(keys[2], y.shape, y.dtype))))
        return both

    for expected, found in zip(*compare(x, weights), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_gradient_of_a_bfloat16_kernel_is_summed_in_float32():
    x, cotangent = (jax.random.uniform(jax.random.key(n), (1000, 2, 1, 1), jnp.bfloat16) for n in range(2))
    backward = jax.jit(lambda x: jax.vjp(depthwise, x, jnp.ones((1, 1, 1, 1)))[1](cotangent)[1])
    expected = (np.asarray(x, np.float64) * np.asarray(cotangent, np.float64)).sum()
    np.testing.assert_allclose(backward(x).item(), expected, rtol=2e-3)


def test_a_bfloat16_filter_is_summed_in_float32():
    x, kernel = jax.random.normal(jax.random.key(0), (9, 9, 4, 8)), jax.random.normal(jax.random.key(1), (5, 5, 1, 8))
    x = x.astype(jnp.bfloat16)
    expected = depthwise(x.astype(jnp.float32), kernel).astype(jnp.bfloat16)
    np.testing.assert_array_equal(depthwise(x, kernel), expected)
