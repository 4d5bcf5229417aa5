import jax.numpy as jnp
import pytest
from flax import nnx

from plstm.models import Mamba2DConfig, build_model
from plstm.models.mamba2d import Attention, Block, M2DMixer
from plstm.nn.maps import unfold

from .golden import check, dense, fill, maps, norm, waves


def mixer_tensors(mixer: M2DMixer) -> list:
    """In the golden order."""
    steps = [(mixer.top.kernel, "K"), (mixer.top.bias, "d"), (mixer.left.kernel, "K"), (mixer.left.bias, "d")]
    rest = [(mixer.log_top, "a"), (mixer.log_left, "a"), (mixer.skip, "g"), *dense(mixer.out)]
    return [*dense(mixer.enter), *dense(mixer.select), *steps, *rest]


def attention_tensors(mixer: Attention) -> list:
    return [(mixer.qkv.kernel, "K"), (mixer.out.kernel, "K")]


def block_tensors(block: Block) -> list:
    own = attention_tensors if isinstance(block.mixer, Attention) else mixer_tensors
    scales = [[(scale, "g")] if scale else [] for scale in (block.mixer_scale, block.mlp_scale)]
    mlp = [*dense(block.mlp.up), *dense(block.mlp.down)]
    return [*scales[0], *norm(block.mixer_norm), *own(block.mixer), *scales[1], *norm(block.mlp_norm), *mlp]


def test_layers_meet_their_golden_values(float64):
    mixer = M2DMixer(6, 3, dtype=jnp.float64, rngs=nnx.Rngs(0), rank=2)
    fill(mixer_tensors(mixer))
    check("M2", lambda x: (maps(mixer, x), None), x=waves((2, 3, 4, 6)))
    attention = Attention(8, dtype=jnp.float64, rngs=nnx.Rngs(0), head_dim=4)
    fill(attention_tensors(attention))
    check("M3", lambda x: (maps(attention, x), None), x=waves((2, 2, 3, 8)))


def test_a_map_under_the_kernel_is_refused():
    with pytest.raises(ValueError, match="images are too small: a map of 2 x 5 cells, a kernel of 3"):
        unfold(jnp.ones((2, 5, 1, 1)), 3, 2)


@pytest.mark.slow
def test_the_model_meets_its_golden_values(float64):
    config = Mamba2DConfig(classes=2, dims=[6, 8, 8, 8], depths=[1, 1, 1, 1], dtype="float32")
    model, tensors = build_model(config, 0), []
    for n, (down, layer_norm, blocks) in enumerate(zip(model.down, model.norms, model.stages, strict=True)):
        tensors += [*norm(layer_norm), *dense(down)] if n else [*dense(down), *norm(layer_norm)]
        tensors += [tensor for block in blocks for tensor in block_tensors(block)]
    fill([*tensors, *norm(model.norm), *dense(model.head)])
    check("M4", lambda x: (model(x), None), x=waves((2, 32, 40, 3)))
