"""2DMamba (Zhang et al., 2024) as the paper's Figure 2 ran it: the backbone of 2DVMamba with a linear head.

Feature maps are [height, width, images, channels]; see `plstm.nn.maps`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import Ge, MinLen
from flax import nnx
from jax import Array

from plstm.errors import require
from plstm.limits import OneOf, Rate, Size, check_limits
from plstm.models.mamba2d import MLP_RATIO
from plstm.nn.layers import (
    DTYPES,
    MLP,
    Dtype,
    dense,
    drop_path,
    exact,
    exact_gelu,
    inverse_softplus_steps,
    linear,
    log_of_states,
    norm,
    recomputes,
    run_block,
    uniform_within,
)
from plstm.nn.maps import depthwise, to_map, unfold
from plstm.ops.ss2d import ss2d

MAPS = 4
NORMAL = nnx.initializers.normal(0.02)


@dataclass
class SS2DConfig:
    """The whole architecture; the lists have an entry a stage."""

    family: str = "ss2d"  # of plstm.models.MODELS
    image_size: Size = 192  # pixels a side in training; others are accepted
    channels: Size = 3  # of an image
    classes: Size = 1000  # logits; the files of configs/model take the data's
    # As the runs had it; as_configured: overlapping convolutions and no gate, options that the runs ignored
    form: Annotated[str, OneOf("as_run", "as_configured")] = "as_run"
    # Channels.
    dims: Annotated[list[Annotated[Size, Ge(2)]], MinLen(1)] = field(default_factory=lambda: [192, 192, 192, 192])
    depths: list[Size] = field(default_factory=lambda: [2, 2, 5, 2])  # blocks
    states: Size = 1  # of a channel of the scan
    drop_path: Rate = 0.1  # of the last block, linear from 0 at the first
    dtype: Dtype = "float32"  # of the matrix products; the scan, parameters, norms and head are float32
    # Keep only the blocks' inputs for the backward pass and compute the rest again: less memory. null: on GPUs.
    remat: bool | None = None

    @property
    def stride(self) -> int:
        """Pixels a side of a cell of the last grid."""
        return 4 * 2 ** (len(self.dims) - 1)

    def down(self, stage: int) -> tuple[list[int], tuple[int, int, int]]:
        """Of the convolutions before a stage: the channels before, between and after them; kernel, stride, padding."""
        before, after = [self.channels, *self.dims][stage : stage + 2]
        if self.form == "as_run":
            return [before, after], ((2, 2, 0) if stage else (4, 4, 0))
        return ([before, after] if stage else [before, after // 2, after]), (3, 2, 1)

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check_limits(self, "model.")
        stages = len(self.dims)
        multiple = f"a multiple of {self.stride}, the stride of {stages} stages; or take model.form=as_configured"
        fits = self.form == "as_configured" or self.image_size % self.stride == 0
        require(
            self,
            ("depths", len(self.depths) == stages, f"give one for each of the {stages} stages of model.dims"),
            ("image_size", fits, f"must be {multiple}"),
            prefix="model.",
        )


class SS2D(nnx.Module):
    """Four 2-D selective scans between two linear maps: along the rows and down, down and along the rows, and both from
    the opposite corner."""

    def __init__(self, dim: int, states: int, gated: bool, *, dtype, rngs: nnx.Rngs, rank: int | None = None):
        inner = 2 * dim
        rank = rank or -(-dim // 16)
        self.splits = (rank, rank + states)
        self.gated = gated
        project = partial(linear, use_bias=False, kernel_init=NORMAL, dtype=dtype, rngs=rngs)

        def draw(bound: float, *shape: int) -> nnx.Param:
            return nnx.Param(uniform_within(bound)(rngs.params(), shape))

        self.enter = project(dim, inner * (1 + gated))
        self.out = project(inner, dim)
        self.kernel = draw(1 / 3, 3, 3, 1, inner)
        self.select_kernel = draw(inner**-0.5, MAPS, inner, rank + 2 * states)
        self.step_kernel = draw(rank**-0.5, MAPS, rank, inner)
        self.step_bias = nnx.Param(inverse_softplus_steps(rngs.params(), MAPS * inner).reshape(MAPS, inner))
        self.log_a = log_of_states(MAPS, inner, states)
        self.skip = nnx.Param(jnp.ones((MAPS, inner)))
        self.norm = norm("layernorm", inner, rngs)

    def __call__(self, x: Array) -> Array:
        """[H, W, B, dim] -> the same."""
        u, *z = jnp.split(self.enter(x), 1 + self.gated, axis=-1)
        y = self.norm(self.scan(jax.nn.silu(depthwise(u, self.kernel[...])))).astype(x.dtype)
        return self.out(y * jax.nn.silu(z[0]) if self.gated else y)

    def scan(self, u: Array) -> Array:
        """The sum of the four scans: [H, W, B, e] -> the same, float32."""
        y = jnp.zeros((), jnp.float32)
        step_kernel = self.step_kernel[...]
        for n in range(MAPS):
            lay = partial(_lay, number=n)
            selected = u @ self.select_kernel[n].astype(u.dtype)
            t, b, c = jnp.split(selected.astype(step_kernel.dtype), self.splits, axis=-1)
            delta = jax.nn.softplus(t @ step_kernel[n] + self.step_bias[n])
            scanned = ss2d(lay(u.astype(delta.dtype)), lay(delta), -jnp.exp(self.log_a[n]), lay(b), lay(c))
            y = y + lay(scanned, back=True) + self.skip[n] * u
        return y


def _lay(x: Array, number: int, back: bool = False) -> Array:
    """Cells [H, W, B, ...] as `ss2d` takes them, [B, H, W, ...], in the order of a map: odd ones with rows and columns
    exchanged, the last two turned by 180 degrees; or back."""
    x = x.transpose(1, 2, 0, 3) if back else x
    x = x[::-1, ::-1] if number >= 2 else x
    x = x.swapaxes(0, 1) if number % 2 else x
    return x if back else x.transpose(2, 0, 1, 3)


class Block(nnx.Module):
    """A pre-norm residual block: scans, then MLP, both with stochastic depth."""

    def __init__(self, dim: int, config: SS2DConfig, rate: float, rngs: nnx.Rngs):
        dtype = DTYPES[config.dtype]
        self.rate = rate
        self.mixer_norm, self.mlp_norm = (norm("layernorm", dim, rngs) for _ in range(2))
        self.mixer = SS2D(dim, config.states, config.form == "as_run", dtype=dtype, rngs=rngs)
        make = partial(linear, kernel_init=NORMAL)
        self.mlp = MLP(dim, MLP_RATIO, dtype=dtype, rngs=rngs, approximate=False, make=make)

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """[H, W, B, dim] -> the same; `key` turns stochastic depth on."""
        keys = (None, None) if key is None else jax.random.split(key)
        x = x + drop_path(self.mixer(self.mixer_norm(x)).astype(x.dtype), self.rate, keys[0], axis=2)
        return x + drop_path(self.mlp(self.mlp_norm(x)).astype(x.dtype), self.rate, keys[1], axis=2)


class Down(nnx.Module):
    """Convolutions with bias, a LayerNorm after each and a GELU between two."""

    def __init__(self, dims: list[int], kernel: int, stride: int, padding: int, *, dtype, rngs: nnx.Rngs):
        self.window = (kernel, stride, padding)
        self.convolutions: nnx.List[Any] = nnx.List()
        self.norms: nnx.List[Any] = nnx.List()
        for dim_in, dim_out in zip(dims, dims[1:], strict=False):
            self.convolutions.append(dense(kernel**2 * dim_in, dim_out, rngs, dtype=dtype))
            self.norms.append(norm("layernorm", dim_out, rngs))

    def __call__(self, x: Array) -> Array:
        """[height, width, B, channels] -> [H, W, B, dim]."""
        for n, (convolution, layer_norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = layer_norm(convolution(unfold(exact_gelu(x) if n else x, *self.window)))
        return x


class SS2DModel(nnx.Module):
    """Image classifier."""

    def __init__(self, config: SS2DConfig, rngs: nnx.Rngs):
        self.dtype = DTYPES[config.dtype]
        self.remat = recomputes(config.remat)
        make = partial(Down, dtype=self.dtype, rngs=rngs)
        blocks = sum(config.depths)
        rates = iter([config.drop_path * n / max(blocks - 1, 1) for n in range(blocks)])
        self.channels = config.channels
        self.down: nnx.List[Any] = nnx.List()
        self.stages: nnx.List[Any] = nnx.List()
        for n, (dim, depth) in enumerate(zip(config.dims, config.depths, strict=True)):
            channels, window = config.down(n)
            self.down.append(make(channels, *window))
            self.stages.append(nnx.List([Block(dim, config, next(rates), rngs) for _ in range(depth)]))
        self.norm = norm("layernorm", dim, rngs)
        self.head = linear(dim, config.classes, kernel_init=NORMAL, **exact(), rngs=rngs)

    def __call__(self, images: Array, *, key: Array | None = None) -> Array:
        """Normalised images [batch, height, width, channels] -> float32 logits [batch, classes]. `key` turns stochastic
        depth on. What a stride leaves over on the right and below is not seen: up to three pixels in "as_run", then a
        row or column of an odd grid."""
        x = to_map(images, self.channels)
        number = 0
        for down, blocks in zip(self.down, self.stages, strict=True):
            x = down(x).astype(self.dtype)
            for block in blocks:
                block_key = None if key is None else jax.random.fold_in(key, number)
                x = run_block(block, x, block_key, remat=self.remat)
                number += 1
        return self.head(self.norm(x).mean((0, 1)))
