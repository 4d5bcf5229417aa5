"""Mamba2D (Baty et al., 2024) as the paper's Figure 2 ran it: the first release's backbone with a linear head.

Feature maps are [height, width, images, channels]; see `plstm.nn.maps`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import MinLen
from flax import nnx
from jax import Array

from plstm.errors import require
from plstm.limits import OneOf, Size, check_limits
from plstm.nn.layers import (
    DTYPES,
    MLP,
    Dtype,
    dense,
    divide_heads,
    exact,
    exact_gelu,
    inverse_softplus_steps,
    log_of_states,
    norm,
    recomputes,
    run_block,
    softmax_attention,
    spread,
    uniform_within,
)
from plstm.nn.maps import to_map, unfold
from plstm.ops.mamba2d import mamba2d

Mixer = Annotated[str, OneOf("m2d", "attention")]
HEAD_DIM = 32
MLP_RATIO = 4
STEM = (7, 4, 2)  # kernel, stride and padding of the convolutions before the first and other stages
STEP = (3, 2, 1)


@dataclass
class Mamba2DConfig:
    """The whole architecture; the lists have an entry a stage."""

    family: str = "mamba2d"  # of plstm.models.MODELS
    image_size: Size = 192  # pixels a side in training; others are accepted
    channels: Size = 3  # of an image
    classes: Size = 1000  # logits; the files of configs/model take the data's
    dims: Annotated[list[Size], MinLen(1)] = field(default_factory=lambda: [96, 192, 192, 192])  # channels
    depths: list[Size] = field(default_factory=lambda: [3, 3, 9, 3])  # blocks
    mixers: list[Mixer] = field(default_factory=lambda: ["m2d", "m2d", "attention", "attention"])  # of the blocks
    states: Size = 16  # of a channel of the 2-D recurrence
    dtype: Dtype = "bfloat16"  # of the matrix products; the recurrence, parameters, norms and head are float32
    # Keep only the blocks' inputs for the backward pass and compute the rest again: less memory. null: on GPUs.
    remat: bool | None = None

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check_limits(self, "model.")
        stages = len(self.dims)
        description = f"give one for each of the {stages} stages of model.dims"
        require(
            self,
            ("depths", len(self.depths) == stages, description),
            ("mixers", len(self.mixers) == stages, description),
            prefix="model.",
        )


class M2DMixer(nnx.Module):
    """The 2-D state space with input-dependent step sizes between two linear maps."""

    def __init__(self, dim: int, states: int, *, dtype, rngs: nnx.Rngs, rank: int | None = None):
        inner = 2 * dim
        rank = rank or -(-dim // 16)
        self.enter = dense(dim, inner, rngs, dtype=dtype)
        self.out = dense(inner, dim, rngs, dtype=dtype)
        self.select = dense(inner, 2 * rank + 2 * states, rngs, dtype=dtype)
        self.splits = rank, 2 * rank, 2 * rank + states
        start = inverse_softplus_steps(rngs.params(), inner)
        step = partial(nnx.Linear, rank, inner, kernel_init=uniform_within(rank**-0.5), dtype=DTYPES["float32"])
        self.top, self.left = (step(bias_init=lambda *_: start.copy(), rngs=rngs) for _ in range(2))
        self.log_top = log_of_states(inner, states)
        self.log_left = log_of_states(inner, states)
        self.skip = nnx.Param(jnp.ones(inner))

    def __call__(self, x: Array) -> Array:
        """[H, W, B, dim] -> the same."""
        u = exact_gelu(self.enter(x))
        top, left, b, c = jnp.split(self.select(u), self.splits, axis=-1)
        cells = (u, jax.nn.softplus(self.top(top)), jax.nn.softplus(self.left(left)), b, c)
        images, delta_t, delta_l, b, c = (x.transpose(2, 0, 1, 3) for x in cells)
        y = mamba2d(images, delta_t, delta_l, -jnp.exp(self.log_top[...]), -jnp.exp(self.log_left[...]), b, c)
        return self.out(exact_gelu(y.transpose(1, 2, 0, 3) + spread(self.skip[...], u.shape, u.dtype) * u))


class Attention(nnx.Module):
    """Softmax attention among all cells, without positions."""

    def __init__(self, dim: int, *, dtype, rngs: nnx.Rngs, head_dim: int = HEAD_DIM):
        self.heads = max(1, dim // head_dim)
        self.qkv = dense(dim, 3 * self.heads * head_dim, rngs, use_bias=False, dtype=dtype)
        self.out = dense(self.heads * head_dim, dim, rngs, use_bias=False, dtype=dtype)

    def __call__(self, x: Array) -> Array:
        """[H, W, B, dim] -> the same."""
        qkv = divide_heads(divide_heads(jax.lax.collapse(self.qkv(x), 0, 2), 3), self.heads)
        hidden = softmax_attention(*qkv.transpose(2, 1, 3, 0, 4)).transpose(2, 0, 1, 3)
        return self.out(hidden.reshape(*x.shape[:-1], self.out.in_features))


class Block(nnx.Module):
    """A pre-norm residual block: mixer, then MLP. With attention, learned factors scale each skip connection."""

    def __init__(self, dim: int, mixer: str, states: int, *, dtype, rngs: nnx.Rngs):
        scaled = mixer == "attention"
        self.mixer_norm, self.mlp_norm = (norm("layernorm", dim, rngs) for _ in range(2))
        self.mixer = Attention(dim, dtype=dtype, rngs=rngs) if scaled else M2DMixer(dim, states, dtype=dtype, rngs=rngs)
        self.mlp = MLP(dim, MLP_RATIO, dtype=dtype, rngs=rngs, approximate=False, make=dense)
        self.mixer_scale, self.mlp_scale = (nnx.Param(jnp.ones(dim)) if scaled else None for _ in range(2))

    def __call__(self, x: Array) -> Array:
        """[H, W, B, dim] -> the same."""
        for scale, layer_norm, layer in (
            (self.mixer_scale, self.mixer_norm, self.mixer),
            (self.mlp_scale, self.mlp_norm, self.mlp),
        ):
            branch = layer(layer_norm(x)).astype(x.dtype)
            x = branch + (x if scale is None else x * spread(scale[...], x.shape, x.dtype))
        return x


class Mamba2D(nnx.Module):
    """Image classifier."""

    def __init__(self, config: Mamba2DConfig, rngs: nnx.Rngs):
        self.dtype = DTYPES[config.dtype]
        self.remat = recomputes(config.remat)
        self.channels = dim_in = config.channels
        self.down: nnx.List[Any] = nnx.List()
        self.norms: nnx.List[Any] = nnx.List()
        self.stages: nnx.List[Any] = nnx.List()
        for n, (dim, depth, mixer) in enumerate(zip(config.dims, config.depths, config.mixers, strict=True)):
            self.down.append(dense((STEP if n else STEM)[0] ** 2 * dim_in, dim, rngs, dtype=self.dtype))
            self.norms.append(norm("layernorm", dim_in if n else dim, rngs))
            make = partial(Block, dim, mixer, config.states, dtype=self.dtype, rngs=rngs)
            self.stages.append(nnx.List([make() for _ in range(depth)]))
            dim_in = dim
        self.norm = norm("layernorm", dim_in, rngs)
        self.head = dense(dim_in, config.classes, rngs, **exact())

    def __call__(self, images: Array, *, key: Array | None = None) -> Array:
        """Normalised images [batch, height, width, channels] -> float32 logits [batch, classes]. `key` has no effect: a
        training pass is the same. Raises ValueError for images too small for the last stage."""
        x = to_map(images, self.channels)
        stages = zip(self.down, self.norms, self.stages, strict=True)
        for n, (down, layer_norm, blocks) in enumerate(stages):
            x = down(unfold(layer_norm(x), *STEP)) if n else layer_norm(down(unfold(x, *STEM)))
            x = x.astype(self.dtype)
            for block in blocks:
                x = run_block(block, x, remat=self.remat)
        return self.head(self.norm(x.astype(DTYPES["float32"]).mean((0, 1))))
