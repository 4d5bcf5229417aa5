"""The vision models: published sizes, starts, what goes where, and that they learn from finite gradients."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from plstm.errors import UserError
from plstm.models import VisionConfig, build_model
from plstm.training.trees import named_leaves
from tests.models.vision_models import MODELS, VIT, draw_images, filled, tiny

SMALL, BASE = {"dim": 384, "heads": 6}, {"dim": 768, "heads": 12}


def parameters(config: VisionConfig) -> int:
    params = nnx.state(nnx.eval_shape(lambda: build_model(config, 0)), nnx.Param)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 6_304_420), ({"norm": "layernorm"} | VIT, 5_711_848), ({"norm": "layernorm"} | VIT | SMALL, 22_039_528),
     ({"norm": "layernorm"} | VIT | BASE, 86_545_384)],
)  # fmt: skip
def test_parameter_counts_on_imagenet_are_the_published_ones(changes, expected):
    """Those of the other published models are in tests/config/test_experiments.py."""
    assert parameters(VisionConfig(**changes)) == expected


def test_parameter_counts_on_arrow_pointing():
    arrow = {"classes": 2, "heads": 6}
    linear = lambda dim_in, dim_out: dim_in * dim_out + dim_out  # noqa: E731
    embedding = linear(16 * 16 * 3, 192) + 12 * 12 * 192
    block = 2 * 192 + linear(192, 768) + linear(768, 192) + 3 * linear(192, 192)
    gates = {"P": 3 * (192 + 24) + linear(192, 24), "D": 7 * (192 + 24)}
    mixer = {mode: gates[mode] + 6 + 192 + 192 * 192 for mode in gates}  # direct, multi-head norm, out
    outer = embedding + 192 + linear(4 * 192, 2)
    assert parameters(VisionConfig(**arrow)) == outer + 12 * block + 6 * (mixer["P"] + mixer["D"])
    for mode in gates:
        assert parameters(VisionConfig(**arrow, modes=[mode])) == outer + 12 * (block + mixer[mode])
    bias_only = 6 * (3 * 192 + 7 * 192)
    printed = {"gates": "printed", "stm_bias_only": True}
    assert parameters(VisionConfig(**arrow, **printed)) == parameters(VisionConfig(**arrow)) - bias_only
    vit = embedding + 192 + 12 * (block + linear(192, 192) + 2 * 192) + 192 + linear(192, 2)
    assert parameters(VisionConfig(**arrow, **VIT)) == vit


def test_starts():
    config = VisionConfig(image_size=64, depth=4, gate_init="normal", layer_scale=0.5, classes=100)
    model = nnx.jit(lambda: build_model(config, 0))()
    params = named_leaves(nnx.state(model, nnx.Param))
    for name, leaf in params.items():
        leaf = np.asarray(leaf)
        assert leaf.dtype == np.float32, name
        if name.endswith("weight"):
            expected = math.sqrt(0.4 / (4 * 3))
        elif name.endswith("kernel"):
            fan_in = leaf.shape[-2]
            expected = math.sqrt((1 if name.startswith(("embedding", "head")) else 0.4) / fan_in)
        elif name == "position":
            assert abs(leaf).max() <= 0.04  # cut at two deviations
            expected = 0.02 * 0.8796  # what the cut leaves
        else:
            continue
        assert leaf.std() == pytest.approx(expected, rel=0.08 if name.endswith("weight") else 0.03), name
        assert not name.startswith("groups") or np.all(leaf[0] != leaf[1]), f"{name}: two layers start alike"
    kernels = [name for name in params if name.endswith(("kernel", "weight"))]
    assert len(kernels) == 2 + 2 * 6 + 3  # embedding and head; q, k, v, out, up, down of P and D; gates
    assert np.all(params["groups.blocks.0.mixer_scale.scale"] == 0.5)
    assert all(np.all(leaf == 0) for name, leaf in params.items() if "qkv" in name and name.endswith("bias"))


def test_the_seed_alone_decides_the_start():
    build = nnx.jit(lambda seed: build_model(tiny(), seed))
    first, again, other = (named_leaves(nnx.state(build(jax.random.key(seed)), nnx.Param)) for seed in (0, 0, 1))
    for name, leaf in first.items():
        np.testing.assert_array_equal(leaf, again[name], err_msg=name)
        drawn = name.endswith("kernel") or name == "position"
        assert np.any(leaf != other[name]) == drawn, name


@pytest.mark.parametrize(("name", "depth"), [("pLSTM", 6), ("ViT", 2)])
def test_the_scan_visits_the_blocks_in_order(name, depth):
    model, images = filled(tiny(depth=depth, **MODELS[name])), draw_images()
    assert len(list(model.blocks())) == depth

    @jax.jit
    def one_by_one(images):
        x = model.embed(images)
        for block in model.blocks():
            x = block(x)
        return model.head(model.pool(x, (4, 4)))

    np.testing.assert_allclose(jax.jit(model)(images), one_by_one(images), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_block_adds_the_mixer_then_the_mlp(name):
    model = filled(tiny(**MODELS[name] | {"layer_scale": 0.5}))

    @jax.jit
    def both(images):
        x = model.embed(images)
        block = next(model.blocks())
        y = x + block.mixer_scale(block.mixer(block.mixer_norm(x)))
        return block(x), y + block.mlp_scale(block.mlp(block.mlp_norm(y)))

    np.testing.assert_allclose(*both(draw_images()), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_other_resolutions_take_a_resized_position(name):
    model = filled(tiny(**MODELS[name]))

    @jax.jit
    def expected(images):
        tokens = model.embedding(images)
        resized = jax.image.resize(model.position[...], (*tokens.shape[1:3], 16), "bicubic")
        tokens = tokens + (model.position[...] if tokens.shape[1:3] == (4, 4) else resized)
        if name == "pLSTM":
            return tokens
        token = jnp.broadcast_to(model.class_token[...], (3, 1, 16))  # without a position
        return jnp.concatenate([token, tokens.reshape(3, -1, 16)], axis=1)

    for images in (draw_images(), draw_images(32, 24)):
        np.testing.assert_array_equal(jax.jit(model.embed)(images), expected(images))


@pytest.mark.parametrize("name", [*MODELS, "ViT with corners"])
def test_other_resolutions_are_accepted(name):
    model = filled(tiny(**MODELS.get(name, {"modes": ["attention"]})))
    for height, width in ((32, 8), (8, 32)):
        logits = jax.eval_shape(model, jax.ShapeDtypeStruct((2, height, width, 3), jnp.float32))
        assert logits.shape == (2, 3)
    for height, width in ((16, 18), (18, 16)):
        with pytest.raises(ValueError, match=f"{height} x {width} pixels"):
            model(draw_images(height, width))


@pytest.mark.parametrize("modes", [["P", "D"], ["attention"]])
@pytest.mark.parametrize("grid", [(4, 4), (2, 8), (1, 3)])
def test_corner_pooling_takes_the_corners(modes, grid):
    model = filled(tiny(modes=modes))
    x = np.random.default_rng(0).normal(size=(2, *grid, 16)).astype(np.float32)
    tokens = x.reshape(2, -1, 16) if modes == ["attention"] else x
    corners = np.concatenate([x[:, 0, 0], x[:, 0, -1], x[:, -1, 0], x[:, -1, -1]], axis=-1).reshape(2, 4, 16)
    normed = corners / np.sqrt((corners**2).mean(-1, keepdims=True) + 1e-5) * model.norm.scale[...]
    np.testing.assert_allclose(jax.jit(model.pool, static_argnums=1)(tokens, grid), normed.reshape(2, -1), atol=1e-5)


def test_class_token_pooling_takes_the_first_token():
    model, x = filled(tiny(**VIT)), np.random.default_rng(0).normal(size=(2, 17, 16)).astype(np.float32)
    normed = x[:, 0] / np.sqrt((x[:, 0] ** 2).mean(-1, keepdims=True) + 1e-5) * model.norm.scale[...]
    np.testing.assert_allclose(jax.jit(model.pool, static_argnums=1)(x, (4, 4)), normed, atol=1e-5)


def test_position_embedding_can_be_left_out():
    config = tiny(position_embedding=False)
    model = filled(config)
    np.testing.assert_array_equal(jax.jit(model.embed)(draw_images()), jax.jit(model.embedding)(draw_images()))
    assert parameters(tiny()) - parameters(config) == 4 * 4 * 16


def test_every_branch_of_every_sample_is_dropped_by_itself():
    """Each of six branches adds to a channel of its own, so that the logits show which of them were kept."""
    config = tiny(depth=3, drop_path=0.5, classes=16, position_embedding=False, **VIT | {"layer_scale": None})
    graphdef, params = nnx.split(nnx.eval_shape(lambda: build_model(config, 0)))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), params)
    block = params["groups"]["blocks"][0]
    block["mixer"]["out"]["bias"][...] = np.eye(16, dtype=np.float32)[0:3]
    block["mlp"]["down"]["bias"][...] = np.eye(16, dtype=np.float32)[3:6]
    params["norm"]["scale"][...], params["head"]["kernel"][...] = np.ones(16, np.float32), np.eye(16, dtype=np.float32)
    apply = jax.jit(lambda images, key: nnx.merge(graphdef, params)(images, key=key))
    images = draw_images(batch=400)

    kept = np.asarray(apply(images, jax.random.key(0)))[:, :6] > 0
    np.testing.assert_array_equal(kept, np.asarray(apply(images, jax.random.key(0)))[:, :6] > 0)
    assert np.any(kept != (np.asarray(apply(images, jax.random.key(1)))[:, :6] > 0))
    assert np.all(np.abs(kept.mean(0) - 0.5) < 0.1)
    for one, other in itertools.combinations(kept.T, 2):
        assert abs((one == other).mean() - 0.5) < 0.1
    assert np.all(np.asarray(apply(images, None))[:, :6] > 0)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_gives_float32_logits_and_finite_gradients(name):
    model = filled(tiny(dtype="bfloat16", **MODELS[name]))
    graphdef, params = nnx.split(model)

    @jax.jit
    def gradients(params, images):
        def loss(params):
            logits = nnx.merge(graphdef, params)(images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array([0, 1, 2])).mean(), logits

        return jax.grad(loss, has_aux=True)(params)

    found, logits = gradients(params, draw_images())
    assert logits.dtype == jnp.float32 and np.all(np.isfinite(logits))
    for leaf, gradient in named_leaves(found).items():
        assert gradient.dtype == jnp.float32 and np.all(np.isfinite(gradient)), leaf
        assert np.any(np.asarray(gradient) != 0) or leaf.endswith("key.bias"), f"{leaf} takes no part"  # softmax: none
    exact = jax.jit(filled(tiny(**MODELS[name])))(draw_images())
    np.testing.assert_allclose(logits, exact, atol=0.1 * float(np.abs(exact).max()))


def test_recomputed_blocks_give_the_same_gradients_in_less_memory():
    def gradients(remat):
        model = filled(tiny(depth=6, drop_path=0.2, remat=remat, **MODELS["ViT"]))
        graphdef, params = nnx.split(model)

        def loss(params, images):
            return jnp.square(nnx.merge(graphdef, params)(images, key=jax.random.key(0))).sum()

        compiled = jax.jit(jax.grad(loss)).lower(params, draw_images(batch=32)).compile()
        return compiled(params, draw_images(batch=32)), compiled.memory_analysis().temp_size_in_bytes

    (kept, most), (recomputed, least) = gradients(False), gradients(True)
    for (name, expected), actual in zip(named_leaves(kept).items(), named_leaves(recomputed).values(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=name)
    assert least < 0.7 * most


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gates": "new"}, "model.gates=new: choose one of released, printed"),
        ({"gate_init": "ones"}, "model.gate_init=ones"),
        ({"pooling": "mean"}, "model.pooling=mean"),
        ({"norm": "batchnorm"}, "model.norm=batchnorm"),
        ({"dtype": "float16"}, "model.dtype=float16"),
        ({"method": "quick"}, "model.method=quick"),
        *(({key: 0}, f"model.{key}=0") for key in ("image_size", "channels", "classes", "patch_size", "dim", "depth")),
        ({"heads": 0}, "model.heads=0"),
        ({"mlp_ratio": 0}, "model.mlp_ratio=0"),
        ({"drop_path": 1.0}, "model.drop_path=1.0"),
        ({"drop_path": -0.1}, "model.drop_path=-0.1"),
        ({"modes": []}, "model.modes"),
        ({"modes": ["P", "Q"]}, "model.modes.*'Q'.*choose from P, D, attention"),
        ({"modes": ["P", "attention"]}, "model.modes.*cannot alternate"),
        ({"pooling": "class_token"}, "model.pooling=class_token"),
        ({"modes": ["attention"], "gates": "printed"}, "model.gates=printed: only P-mode has it"),
        ({"modes": ["D"], "gates": "printed"}, "model.gates=printed: only P-mode has it"),
        ({"modes": ["attention"], "stm_bias_only": True}, "model.stm_bias_only=true: attention has no such gates"),
        ({"depth": 3}, "model.depth=3.*2 model.modes"),
        ({"patch_size": 5}, "model.patch_size=5.*model.image_size=16"),
        ({"heads": 3}, "model.heads=3.*model.dim=16"),
        ({"heads": 8}, "model.heads=8.*model.dim=16"),
    ],
)
def test_what_does_not_fit_together_is_named(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        build_model(tiny(**changes), 0)
    assert "\n" not in str(caught.value)


def test_attention_needs_no_gates_to_divide_the_channels():
    tiny(heads=8, **VIT).check()
