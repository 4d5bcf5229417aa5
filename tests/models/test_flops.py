"""The operation counts against counts by hand and against what the compiler counts."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from plstm.models import VisionConfig, build_model
from plstm.models.flops import forward_flops

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
    assert forward_flops(VisionConfig(**TINY, modes=["D"])) == expected + 2 * (d_mode - p_mode)


def test_hand_count_of_a_tiny_vit():
    linear, products = 5 * (4 * 16 * 16 + 2 * 16 * 64), 2 * 5 * 5 * 16  # the class token is the fifth
    assert forward_flops(VisionConfig(**TINY, **VIT)) == 2 * (4 * 48 * 16 + 2 * (linear + products) + 16 * 5)


def test_vit_t_and_deit_s_at_224_are_as_published():
    assert forward_flops(VisionConfig(image_size=224, **VIT)) == pytest.approx(2 * 1.26e9, rel=0.01)
    assert forward_flops(VisionConfig(image_size=224, dim=384, heads=6, **VIT)) == pytest.approx(2 * 4.6e9, rel=0.01)


def test_another_resolution_counts_its_own_tokens():
    assert forward_flops(VisionConfig(image_size=192), 224) == forward_flops(VisionConfig(image_size=224))


def test_the_compiler_counts_about_the_same_for_a_vit():
    config = VisionConfig(image_size=64, patch_size=8, dim=128, heads=2, depth=2, classes=10, dtype="float32", **VIT)
    graphdef, params = nnx.split(nnx.eval_shape(lambda: build_model(config, 0)))
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    lowered = jax.jit(lambda params, images: nnx.merge(graphdef, params)(images)).lower(params, images)
    counted = lowered.cost_analysis()["flops"]
    assert forward_flops(config) < counted < 1.1 * forward_flops(config)  # it counts norms and activations, too
