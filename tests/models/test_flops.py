"""The operation counts against counts by hand and published ones."""

import pytest

from plstm.models import VisionConfig
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
