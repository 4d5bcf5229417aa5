"""The operation counts against counts by hand, published ones and the traced models' matrix products."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from plstm.models import (
    EfficientNetConfig,
    Mamba2DConfig,
    SS2DConfig,
    ViLConfig,
    VisionConfig,
    build_model,
)
from plstm.training.flops import M2D_SCAN, SS2D_SCAN, forward_flops

VIT = {"modes": ["attention"], "pooling": "class_token"}
TINY = {"image_size": 8, "patch_size": 4, "dim": 16, "heads": 1, "depth": 2, "classes": 5}  # 4 tokens


def test_hand_count_of_a_tiny_plstm():
    embedding, head = 4 * (4 * 4 * 3) * 16, (4 * 16) * 5
    linear = 4 * (4 * 16 * 16 + 2 * 16 * 64)  # q, k, v, out, up and down, for each of 4 tokens
    products = 2 * 4 * 4 * 16  # queries with keys, weights with values
    p_mode = 3 * 4 * 16 + 4 * 16 * 4 + 3 * 4 * 4  # source, transition, mark; orientation; gating matrix
    d_mode = 7 * 4 * 16 + 4 * 4
    expected = 2 * (embedding + 2 * (linear + products) + p_mode + d_mode + head)
    assert forward_flops(VisionConfig(**TINY)) == expected == 59_904
    bias_only = forward_flops(VisionConfig(**TINY, stm_bias_only=True))
    assert bias_only == expected - 2 * (3 + 7) * 4 * 16
    assert forward_flops(VisionConfig(**TINY, direct_weight=True)) == expected + 2 * 2 * 4 * 16
    assert forward_flops(VisionConfig(**TINY, modes=["D"])) == expected + 2 * (d_mode - p_mode)


def test_hand_count_of_a_tiny_vit():
    linear, products = 5 * (4 * 16 * 16 + 2 * 16 * 64), 2 * 5 * 5 * 16  # the class token is the fifth
    assert forward_flops(VisionConfig(**TINY, **VIT)) == 2 * (4 * 48 * 16 + 2 * (linear + products) + 16 * 5)


@pytest.mark.parametrize(
    ("config", "giga"),
    [
        (VisionConfig(image_size=224, **VIT), 1.26),
        (VisionConfig(image_size=224, dim=384, heads=6, **VIT), 4.6),  # DeiT-S
        (EfficientNetConfig(image_size=224), 0.39),
    ],
)
def test_models_at_224_cost_what_is_published(config, giga):
    assert forward_flops(config) == pytest.approx(2e9 * giga, rel=0.02)


# ---------------------------------------------------------------------- the other models of the paper's Figure 2
def logits_of(config: Any) -> tuple:
    """The function (weights, images) -> logits of a model, and the shapes of its weights and of one image."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: build_model(config, 0)))
    image = jax.ShapeDtypeStruct((1, config.image_size, config.image_size, 3), jnp.float32)
    return lambda state, images: nnx.merge(graphdef, state)(images), state, image


def product_flops(jaxpr: Any) -> int:
    """Operations of all matrix products of a jaxpr, as often as its loops run."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            axes = equation.params["dimension_numbers"][0][0]
            summed = [equation.invars[0].aval.shape[axis] for axis in axes]
            total += 2 * equation.outvars[0].aval.size * math.prod(summed)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(map(product_flops, inner_jaxprs(equation)))
    return total


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    for value in jax.tree.leaves(list(equation.params.values())):
        value = getattr(value, "jaxpr", value)
        if hasattr(value, "eqns"):
            yield value


STAGES = {"dims": [24, 40], "depths": [1, 2], "classes": 5}
SS2D_CHANNEL = 9 + 4 * SS2D_SCAN * 2  # depthwise convolution and four scans of two states


@pytest.mark.parametrize(
    ("config", "elementwise"),
    [
        pytest.param(
            EfficientNetConfig(image_size=17, stem=8, stages=[[3, 1, 1, 1, 8], [5, 2, 2, 3, 12]], features=24),
            9 * 9 * 3 * 3 * 8 + 5 * 5 * 5 * 5 * (24 + 36),  # depthwise convolutions
            id="efficientnet",
        ),
        pytest.param(
            ViLConfig(image_size=64, patch_size=8, dim=48, depth=2),  # 64 tokens: two chunks of 32
            2 * (64 * 9 * 96 + 2 * 4 * 24 * 25),  # depthwise convolution; the state's decay, by chunks and heads
            id="vil",
        ),
        pytest.param(
            Mamba2DConfig(image_size=50, mixers=["m2d", "attention"], states=4, **STAGES),
            12 * 12 * 48 * 4 * M2D_SCAN,
            id="mamba2d",
        ),
        pytest.param(
            SS2DConfig(image_size=48, states=2, **STAGES), (12 * 12 * 48 + 2 * 6 * 6 * 80) * SS2D_CHANNEL, id="ss2d"
        ),
        pytest.param(
            SS2DConfig(image_size=50, states=2, form="as_configured", **STAGES),
            (13 * 13 * 48 + 2 * 7 * 7 * 80) * SS2D_CHANNEL,
            id="ss2d as configured",
        ),
    ],
)
def test_matrix_products_are_those_of_the_traced_model(config, elementwise):
    function, *shapes = logits_of(config)
    assert forward_flops(config) - 2 * elementwise == product_flops(jax.make_jaxpr(function)(*shapes).jaxpr)
