import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.models import ViLConfig, build_model
from plstm.models.vil import ViLLayer
from plstm.nn.maps import bicubic

from .golden import GOLDEN, check, dense, fill, norm, waves

SMALL = ViLConfig(image_size=48, classes=2, patch_size=8, dim=48, depth=6)


def layer_tensors(layer: ViLLayer) -> list:
    """In the golden order."""
    maps = [tensor for part in (layer.q, layer.k, layer.v) for tensor in ((part.weight, "K"), (part.bias, "b"))]
    gates = [*dense(layer.input_gate), (layer.forget_gate.kernel, "K"), (layer.forget_gate.bias, "F")]
    rest = [(layer.norm_scale, "g"), (layer.norm_bias, "b"), (layer.skip, "g"), *dense(layer.down)]
    return [*dense(layer.up), (layer.kernel, "K"), (layer.bias, "b"), *maps, *gates, *rest]


@pytest.mark.parametrize(("case", "step"), [("V2 from top left", 1), ("V2 from bottom right", -1)])
def test_the_layer_meets_its_golden_values(float64, case, step):
    layer = ViLLayer(8, 4, dtype=jnp.float64, rngs=nnx.Rngs(0))
    fill(layer_tensors(layer))
    check(case, lambda x: (layer(x.swapaxes(0, 1)[::step], (2, 3))[::step].swapaxes(0, 1), None), x=waves((2, 6, 8)))


@pytest.mark.parametrize(
    ("case", "conv_grid", "height", "width"),
    [
        pytest.param("V3 own size", True, 8, 12, marks=pytest.mark.slow),
        ("V3 twice the size, grid followed", True, 16, 24),
        ("V3 twice the size, as released", "released", 16, 24),
    ],
)
def test_the_model_meets_its_golden_values(float64, case, conv_grid, height, width):
    options = dict(conv_grid=conv_grid, remat=height == 8, dtype="float32")  # recomputed once, which changes nothing
    config = ViLConfig(image_size=8, classes=2, patch_size=4, dim=8, depth=2, **options)
    model = nnx.eval_shape(lambda: build_model(config, 0))
    model.position.set_value(jnp.zeros((2, 3, 8)))  # at home on 2 x 3 tokens
    blocks = [tensor for block in model.pairs.blocks for tensor in (*norm(block.norm), *layer_tensors(block.layer))]
    fill([*dense(model.embedding.project), (model.position, "p"), *blocks, *norm(model.norm), *dense(model.head)])
    check(case, lambda x: (model(x), None), x=waves((2, height, width, 3)))


def test_positions_are_resized_as_pytorch_does(x64):
    cells = jnp.sin(1.0 + jnp.arange(9)).reshape(3, 3, 1)
    found = bicubic(cells, (6, 6)).ravel()
    golden = GOLDEN["V4"]
    expected = [*golden["first"], golden["last"], golden["sum"], golden["abs"]]
    np.testing.assert_allclose([*found[:3], found[-1], found.sum(), jnp.abs(found).sum()], expected, rtol=1e-12)
    assert (bicubic(cells, (3, 3)) == cells).all() and bicubic(cells, (2, 5)).shape == (2, 5, 1)


def test_images_that_the_released_grid_cannot_take_are_named():
    model = nnx.eval_shape(lambda: build_model(dataclasses.replace(SMALL, conv_grid="released"), 0))
    with pytest.raises(ValueError, match="4 x 5 tokens are no 6 rows, .* model.conv_grid=released"):
        nnx.eval_shape(lambda model: model(jnp.zeros((1, 32, 40, 3))), model)
