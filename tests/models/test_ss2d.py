from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.models import Mamba2DConfig, SS2DConfig, build_model
from plstm.models.ss2d import SS2D, Block, SS2DModel

from .golden import check, dense, fill, maps, norm, waves

TINY = SS2DConfig(drop_path=0.5, dims=[8], depths=[2])
TINY_MAMBA2D = Mamba2DConfig(dtype="float32", dims=[8, 8], depths=[1, 1], mixers=["m2d", "attention"], states=2)


def mixer_tensors(mixer: SS2D) -> list:
    """In the golden order."""
    kernels = [(mixer.enter.kernel, "K"), (mixer.kernel, "K"), (mixer.select_kernel, "K"), (mixer.step_kernel, "K")]
    rest = [(mixer.step_bias, "d"), (mixer.log_a, "a"), (mixer.skip, "g"), *norm(mixer.norm)]
    return [*kernels, *rest, (mixer.out.kernel, "K")]


def block_tensors(block: Block) -> list:
    mlp = [*dense(block.mlp.up), *dense(block.mlp.down)]
    return [*norm(block.mixer_norm), *mixer_tensors(block.mixer), *norm(block.mlp_norm), *mlp]


def model_tensors(model: SS2DModel) -> list:
    tensors = []
    for down, blocks in zip(model.down, model.stages, strict=True):
        for layer, layer_norm in zip(down.convolutions, down.norms, strict=True):
            tensors += [*dense(layer), *norm(layer_norm)]
        tensors += [tensor for block in blocks for tensor in block_tensors(block)]
    return [*tensors, *norm(model.norm), *dense(model.head)]


@pytest.mark.parametrize(("case", "gated"), [("T2", True), ("T2 without gate", False)])
def test_the_mixer_meets_its_golden_values(float64, case, gated):
    mixer = SS2D(6, 1, gated, dtype=jnp.float64, rngs=nnx.Rngs(0), rank=2)
    fill(mixer_tensors(mixer))
    check(case, lambda x: (maps(mixer, x), None), x=waves((2, 3, 4, 6)))


@pytest.mark.slow
def test_the_model_meets_its_golden_values(float64):
    model = build_model(SS2DConfig(image_size=32, classes=2, dims=[6, 6, 8, 8], depths=[1, 1, 1, 1]), 0)
    fill(model_tensors(model))
    check("T3", lambda x: (model(x), None), x=waves((2, 32, 32, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("config", [TINY, TINY_MAMBA2D])
def test_recomputed_blocks_give_the_same_gradients(config):
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 16, 16, 3)), jnp.float32)

    def gradients(remat):
        graphdef, weights = nnx.split(build_model(replace(config, remat=remat), 0))
        loss = lambda weights: jnp.square(nnx.merge(graphdef, weights)(images, key=jax.random.key(1))).sum()  # noqa: E731
        return jax.tree.leaves(jax.jit(jax.grad(loss))(weights))

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * float(jnp.abs(expected).max()))


def test_stochastic_depth_drops_branches_of_whole_images():
    block = Block(8, SS2DConfig(), 0.5, nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, 3, 16, 8))
    kept = np.asarray(jax.jit(lambda x, key: block(x, key))(x, jax.random.key(1)) != x).all(-1)
    assert np.all(kept == kept[0, 0]) and 0 < kept[0, 0].sum() < 16


def test_stochastic_depth_rises_from_nothing():
    model = nnx.eval_shape(lambda: build_model(SS2DConfig(drop_path=0.1), 0))
    rates = [block.rate for blocks in model.stages for block in blocks]
    np.testing.assert_allclose(rates, np.linspace(0, 0.1, 11))
