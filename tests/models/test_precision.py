"""In which precision the programs of models multiply and add up, from their lowered text: bfloat16, or float32 in full.

GPUs multiply float32 in TF32 where no precision is asked for.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from plstm.models import EfficientNetConfig, Mamba2DConfig, SS2DConfig, ViLConfig, build_model
from tests.models.vision_models import tiny

CLASSES = 37  # no other size of these models
SMALL = {"classes": CLASSES, "image_size": 32}
STAGES = {"dims": [16, 16], "depths": [1, 1]}
PRODUCT = r"stablehlo\.dot_general [^\n]*?(?:precision = \[(\w+), \w+\])? : \(tensor<([^>]*)>, tensor<([^>]*)>\)"


SUM = r"stablehlo\.reduce\([^\n]*?applies stablehlo\.add across dimensions = \[([\d, ]+)\] : \(tensor<([^>]*)xbf16>"
FAMILIES = [
    tiny(**SMALL, dtype="bfloat16"),
    Mamba2DConfig(**SMALL, **STAGES, mixers=["m2d", "attention"]),
    SS2DConfig(**SMALL, **STAGES, dtype="bfloat16"),
    EfficientNetConfig(**SMALL, dtype="bfloat16", stages=[[3, 1, 1, 1, 8]]),
    ViLConfig(**SMALL, dim=32, depth=2),
]


def lowered(config) -> str:
    """A training pass and its gradients."""
    model = nnx.eval_shape(lambda: build_model(config, 0))
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, rest, images):
        logits = nnx.merge(graphdef, params, rest, copy=True)(images, key=jax.random.key(0))
        return (logits**2).sum()

    images = jax.ShapeDtypeStruct((8, config.image_size, config.image_size, 3), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(params, rest, images).as_text()


def products(config) -> list[tuple[str, set[str], str]]:
    """Precision, dtypes and text of each matrix product."""
    found = re.findall(PRODUCT, lowered(config))
    assert found
    return [(precision, {shape.split("x")[-1] for shape in shapes}, " ".join(shapes)) for precision, *shapes in found]


@pytest.mark.parametrize(("options", "count"), [({"method": "parallel"}, 8), ({"track": 2}, 6)])
@pytest.mark.parametrize("mode", ["P", "D"])
def test_a_bfloat16_plstm_multiplies_nothing_in_tf32(mode, options, count):
    found = products(tiny(dtype="bfloat16", classes=CLASSES, modes=[mode], **options))
    assert {precision for precision, kinds, _ in found if "f32" in kinds} == {"HIGHEST"}
    # Of a block six linear layers, and without tracking two products of the operator.
    assert [kinds for _, kinds, _ in found].count({"bf16"}) >= 3 * count
    assert all(len(kinds) == 1 for _, kinds, _ in found)


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.family)
def test_heads_are_float32(config):
    heads = [product for product in products(config) if f"{CLASSES}x" in product[2]]
    assert len(heads) == 3  # the logits, and the gradients of the kernel and of what it reads
    assert all(precision == "HIGHEST" and kinds == {"f32"} for precision, kinds, _ in heads)


@pytest.mark.parametrize(
    "config",
    [*FAMILIES, tiny(**SMALL, dtype="bfloat16", modes=["attention"], pooling="class_token", layer_scale=0.1)],
    ids=lambda config: f"{config.family}-{getattr(config, 'modes', '')}",
)
def test_nothing_is_summed_over_images_or_tokens_in_bfloat16(config):
    """Such a sum loses what is under a 256th of it: gradients of biases were half as large as they should be."""
    assert not re.findall(SUM, lowered(config))
