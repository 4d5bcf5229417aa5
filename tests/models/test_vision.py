"""The vision models: starts, what goes where, finite gradients."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from plstm.models import VisionConfig, build_model
from plstm.training.steps import named_leaves
from tests.models.vision_models import MODELS, VIT, draw_images, filled, tiny


def test_starts():
    model = build_model(VisionConfig(image_size=64, depth=4, gate_init="normal", layer_scale=0.5, classes=100), 0)
    params = named_leaves(nnx.state(model, nnx.Param))
    kernels = {name: leaf for name, leaf in params.items() if name.endswith(("kernel", "weight"))}
    assert len(kernels) == 2 + 2 * 6 + 3  # embedding and head; q, k, v, out, up, down of P and D; gates
    assert {leaf.dtype for leaf in params.values()} == {jnp.dtype("float32")}
    for name, leaf in kernels.items():
        fan_in = 4 * 3 if name.endswith("weight") else leaf.shape[-2]
        deviation = math.sqrt((1 if name.startswith(("embedding", "head")) else 0.4) / fan_in)
        assert np.std(leaf) == pytest.approx(deviation, rel=0.08 if name.endswith("weight") else 0.03), name
        assert not name.endswith("up.kernel") or abs(leaf).max() > 3.5 * np.std(leaf), f"{name}: cut at two deviations"
        assert not name.startswith("groups") or np.all(leaf[0] != leaf[1]), f"{name}: two layers start alike"
    position = np.asarray(params["position"])
    assert abs(position).max() <= 0.04, "not cut at two deviations"
    assert position.std() == pytest.approx(0.02 * 0.8796, rel=0.03)
    wide = VisionConfig(depth=1, dim=3000, heads=1, image_size=16, **VIT)
    token = nnx.jit(lambda: build_model(wide, 0).class_token[...])()  # without drawing the rest
    assert np.std(token) == pytest.approx(math.sqrt(0.4 / 3000), rel=0.05)
    assert np.all(params["groups.blocks.0.mixer_scale.scale"] == 0.5)
    assert all(np.all(leaf == 0) for name, leaf in params.items() if "qkv" in name and name.endswith("bias"))


@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_other_resolutions_take_a_resized_position(name):
    model = filled(tiny(**MODELS[name]))
    for images in (draw_images(), draw_images(32, 24)):
        tokens = model.embedding(images)
        resized = jax.image.resize(model.position[...], (*tokens.shape[1:3], 16), "bicubic")
        tokens = tokens + (model.position[...] if tokens.shape[1:3] == (4, 4) else resized)
        if name == "ViT":
            token = jnp.broadcast_to(model.class_token[...], (3, 1, 16))  # without a position
            tokens = jnp.concatenate([token, tokens.reshape(3, -1, 16)], axis=1)
        np.testing.assert_allclose(model.embed(images), tokens, atol=1e-6)
    without = filled(tiny(position_embedding=False))
    np.testing.assert_array_equal(without.embed(images), without.embedding(images))


def normed(model, x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * model.norm.scale[...]


@pytest.mark.parametrize("modes", [["P", "D"], ["attention"]])
@pytest.mark.parametrize("grid", [(4, 4), (2, 8), (1, 3)])
def test_corner_pooling_takes_the_corners(modes, grid):
    model = filled(tiny(modes=modes))
    x = np.random.default_rng(0).normal(size=(2, *grid, 16)).astype(np.float32)
    tokens = x.reshape(2, -1, 16) if modes == ["attention"] else x
    corners = np.concatenate([x[:, 0, 0], x[:, 0, -1], x[:, -1, 0], x[:, -1, -1]], axis=-1).reshape(2, 4, 16)
    pooled = jax.jit(model.pool, static_argnums=1)(tokens, grid)
    np.testing.assert_allclose(pooled, normed(model, corners).reshape(2, -1), atol=1e-5)


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


@pytest.mark.parametrize("name", ["ViT", pytest.param("pLSTM", marks=pytest.mark.slow)])
def test_recomputed_blocks_give_the_same_gradients_in_less_memory(name):
    def gradients(remat):
        model = filled(tiny(depth=6, drop_path=0.2, remat=remat, **MODELS[name]))
        graphdef, params = nnx.split(model)

        def loss(params, images):
            return jnp.square(nnx.merge(graphdef, params)(images, key=jax.random.key(0))).sum()

        compiled = jax.jit(jax.grad(loss)).lower(params, draw_images(batch=32)).compile()
        return compiled(params, draw_images(batch=32)), compiled.memory_analysis().temp_size_in_bytes

    (kept, most), (recomputed, least) = gradients(False), gradients(True)
    for (name, expected), actual in zip(named_leaves(kept).items(), named_leaves(recomputed).values(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=name)
    assert least < 0.7 * most
