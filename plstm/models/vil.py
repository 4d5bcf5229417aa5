"""Vision-LSTM (Alkin et al., 2024) as the paper's Figure 2 ran it: VisionLSTM2, mLSTMs that read an image's patches
forwards and backwards in turn.

Tokens are [S, B, dim], so that they become a grid, or change their order, without moving an image's numbers.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from plstm.errors import require
from plstm.limits import OneOf, Size, check_limits
from plstm.nn.layers import (
    DTYPES,
    Dtype,
    PatchEmbedding,
    divide_heads,
    exact,
    forget_biases,
    head_norm,
    linear,
    norm,
    recomputes,
    run_block,
    spread,
    uniform_within,
)
from plstm.nn.maps import bicubic, depthwise
from plstm.nn.sequence import QKV_BLOCK, BlockDiagonal
from plstm.ops.mlstm import mlstm

CHUNK = 48  # tokens of the mLSTM at a time, at most
HEAD_EPSILON = 1e-6  # of the norm before the head
MAX_UNROLLED = 4  # pairs of blocks


@dataclass
class ViLConfig:
    """The whole architecture; its defaults are those of the released runs but for `conv_grid`."""

    family: str = "vil"  # of plstm.models.MODELS
    image_size: Size = 192  # pixels a side in training; others are accepted, the position embedding is then resized
    channels: Size = 3  # of an image
    classes: Size = 1000  # logits; the files of configs/model take the data's
    patch_size: Size = 16  # pixels a side
    dim: Size = 192  # channels
    depth: Size = 24  # blocks, of which every second one reads backwards
    heads: Size = 4  # of the mLSTM
    # released: convolutions take any image for one with as many rows as in training.
    conv_grid: Annotated[bool | str, OneOf(True, "released")] = True
    dtype: Dtype = "bfloat16"  # of the linear maps; the mLSTM, parameters, norms and head are float32
    # Keep only the blocks' inputs for the backward pass and compute the rest again: less memory. null: on GPUs.
    remat: bool | None = None

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check_limits(self, "model.")
        require(
            self,
            ("patch_size", self.image_size % self.patch_size == 0, f"must divide model.image_size={self.image_size}"),
            ("depth", self.depth % 2 == 0, "must be even, as blocks come in pairs, forwards and backwards"),
            ("dim", 2 * self.dim % QKV_BLOCK == 0, f"must be a multiple of {QKV_BLOCK // 2}"),
            ("heads", 2 * self.dim % self.heads == 0, f"must divide 2 x model.dim={self.dim}"),
            prefix="model.",
        )


class ViLLayer(nnx.Module):
    """Up-projection, convolution on the grid, mLSTM, LayerNorm a head, learned skip, gate, down-projection; inner width
    2 dim."""

    def __init__(self, dim: int, heads: int, *, dtype, rngs: nnx.Rngs):
        self.heads = heads
        inner = 2 * dim

        def draw(*shape: int) -> nnx.Param:
            return nnx.Param(uniform_within(1 / 3)(rngs.params(), shape))

        self.up = linear(dim, 2 * inner, dtype=dtype, rngs=rngs)
        self.kernel = draw(3, 3, 1, inner)
        self.bias = draw(inner)
        blocks = inner // QKV_BLOCK
        self.q, self.k, self.v = (BlockDiagonal(blocks, QKV_BLOCK, dim, rngs, use_bias=True) for _ in range(3))
        gate = partial(linear, 3 * inner, heads, kernel_init=nnx.initializers.zeros, dtype=dtype, rngs=rngs)
        self.input_gate = gate(bias_init=nnx.initializers.normal(0.1))
        self.forget_gate = gate(bias_init=forget_biases)
        self.norm_scale = nnx.Param(jnp.ones(inner))
        self.norm_bias = nnx.Param(jnp.zeros(inner))
        self.skip = nnx.Param(jnp.ones(inner))
        self.down = linear(inner, dim, kernel_init=nnx.initializers.normal(2 / math.sqrt(dim)), dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, grid: tuple[int, int]) -> Array:
        """[S, B, dim] -> the same; the convolution takes the tokens for those of `grid`, row by row."""
        u, z = jnp.split(self.up(x), 2, axis=-1)
        c = depthwise(u.reshape(*grid, *u.shape[1:]), self.kernel[...]).reshape(u.shape)
        c = jax.nn.silu(c + spread(self.bias[...], c.shape, c.dtype))
        qkv = self.q(c), self.k(c), self.v(u)
        features = jnp.concatenate(qkv, axis=-1)
        gates = (gate(features).transpose(1, 2, 0) for gate in (self.input_gate, self.forget_gate))
        heads = (divide_heads(part, self.heads).transpose(1, 2, 0, 3) for part in qkv)
        hidden = mlstm(*heads, *gates, chunk=CHUNK).swapaxes(1, 2)  # [B, S, heads, channels of a head]
        hidden = head_norm(hidden, centred=True).swapaxes(0, 1)
        hidden = (hidden * self.norm_scale[...] + self.norm_bias[...]).astype(x.dtype)
        return self.down((hidden + spread(self.skip[...], c.shape, x.dtype) * c) * jax.nn.silu(z))


class Block(nnx.Module):
    """A pre-norm residual layer that reads from the first token on, or from the last."""

    def __init__(self, config: ViLConfig, backwards: bool, rngs: nnx.Rngs):
        self.backwards = backwards
        self.norm = norm("layernorm", config.dim, rngs)
        self.layer = ViLLayer(config.dim, config.heads, dtype=DTYPES[config.dtype], rngs=rngs)

    def __call__(self, x: Array, grid: tuple[int, int]) -> Array:
        """[S, B, dim] -> the same."""
        order = slice(None, None, -1 if self.backwards else 1)
        return x + self.layer(self.norm(x[order]).astype(x.dtype), grid)[order].astype(x.dtype)


class Pair(nnx.Module):
    """A block that reads forwards and one that reads backwards: the unit that repeats over the depth."""

    def __init__(self, config: ViLConfig, rngs: nnx.Rngs):
        self.blocks = nnx.List([Block(config, backwards, rngs) for backwards in (False, True)])
        self.remat = recomputes(config.remat)

    def __call__(self, x: Array, grid: tuple[int, int]) -> Array:
        """[S, B, dim] -> the same."""
        for block in self.blocks:
            x = run_block(block, x, grid, remat=self.remat, static=(2,))
        return x


class ViL(nnx.Module):
    """Image classifier. The pairs' parameters are stacked and scanned over, so compile time is flat in depth."""

    def __init__(self, config: ViLConfig, rngs: nnx.Rngs):
        self.pairs_count = config.depth // 2
        self.released = config.conv_grid == "released"
        side = config.image_size // config.patch_size
        normal = nnx.initializers.normal
        xavier = nnx.initializers.xavier_uniform()
        dtype = DTYPES[config.dtype]
        self.embedding = PatchEmbedding(
            config.patch_size, config.channels, config.dim, dtype=dtype, rngs=rngs, kernel_init=xavier
        )
        self.position = nnx.Param(normal(0.02)(rngs.params(), (side, side, config.dim), jnp.float32))
        make = nnx.vmap(lambda key: Pair(config, nnx.Rngs(key)), in_axes=0, out_axes=0)
        self.pairs = make(jax.random.split(rngs.params(), self.pairs_count))
        self.norm = nnx.LayerNorm(config.dim, epsilon=HEAD_EPSILON, dtype=DTYPES["float32"], rngs=rngs)
        self.head = linear(2 * config.dim, config.classes, kernel_init=normal(2e-5), **exact(), rngs=rngs)

    def __call__(self, images: Array, *, key: Array | None = None) -> Array:
        """Normalised images [batch, height, width, channels] of any size that the patch size divides -> float32 logits
        [batch, classes]. `key` has no effect: a training pass is the same. Raises ValueError as `convolved_grid`
        does."""
        x = self.embedding(images)
        x = x + spread(bicubic(self.position[...], x.shape[1:3]), x.shape, x.dtype)
        grid = self.convolved_grid(*x.shape[1:3])
        x = jax.lax.collapse(x.transpose(1, 2, 0, 3), 0, 2)
        graphdef, stacked = nnx.split(self.pairs)

        def step(x: Array, state: nnx.State) -> tuple[Array, None]:
            return nnx.merge(graphdef, state)(x, grid), None

        # A shallow stack compiles fast anyway, and runs faster on CPUs without the loop.
        x, _ = jax.lax.scan(step, x, stacked, unroll=self.pairs_count <= MAX_UNROLLED)
        return self.head(jnp.concatenate([self.norm(x[0]), self.norm(x[-1])], axis=-1))

    def convolved_grid(self, height: int, width: int) -> tuple[int, int]:
        """The grid that convolutions take an image's tokens for. Raises ValueError where model.conv_grid=released finds
        no whole rows in it."""
        if not self.released:
            return height, width
        rows = self.position.shape[0]
        if height * width % rows:
            raise ValueError(f"{height} x {width} tokens are no {rows} rows, as model.conv_grid=released takes them")
        return rows, height * width // rows
