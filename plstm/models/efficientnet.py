"""EfficientNet (Tan and Le, 2019) as the paper's Figure 2 ran it: NVIDIA's B0, without stochastic depth.

Feature maps are [height, width, images, channels]; see `plstm.nn.maps`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import MinLen
from flax import nnx
from jax import Array

from plstm.errors import require
from plstm.limits import Rate, Size, check_limits
from plstm.nn.layers import DTYPES, Dtype, dense, drop, linear, spread
from plstm.nn.maps import BatchNorm, depthwise, to_map, unfold
from plstm.ops.common import HIGHEST

B0 = [[3, 1, 1, 1, 16], [3, 2, 2, 6, 24], [5, 2, 2, 6, 40], [3, 2, 3, 6, 80]]
B0 += [[5, 1, 3, 6, 112], [5, 2, 4, 6, 192], [3, 1, 1, 6, 320]]
HE = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")


@dataclass
class EfficientNetConfig:
    """The whole architecture; its defaults are B0."""

    family: str = "efficientnet"  # of plstm.models.MODELS
    image_size: Size = 192  # pixels a side in training; others are accepted
    channels: Size = 3  # of an image
    classes: Size = 1000  # logits; the files of configs/model take the data's
    stem: Size = 32  # channels of the first convolution, of stride 2
    # A stage: odd kernel size, stride of its first block, blocks, expansion, channels.
    stages: Annotated[list[list[Size]], MinLen(1)] = field(default_factory=lambda: [list(stage) for stage in B0])
    features: Size = 1280  # channels before the mean over the grid
    dropout: Rate = 0.2  # before the head
    dtype: Dtype = "float32"  # of the feature maps; parameters, statistics and head are float32

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check_limits(self, "model.")
        fit = all(len(stage) == 5 and stage[0] % 2 for stage in self.stages)
        row = "give a list of [odd kernel size, stride, blocks, expansion, channels]"
        require(self, ("stages", fit, row), prefix="model.")


class SqueezeExcite(nnx.Module):
    """Scales each channel of an image by a function of all channels' means."""

    def __init__(self, channels: int, hidden: int, *, dtype, rngs: nnx.Rngs):
        make = partial(dense, rngs=rngs, dtype=dtype)
        self.squeeze = make(channels, hidden)
        self.excite = make(hidden, channels)

    def __call__(self, x: Array) -> Array:
        """[H, W, B, C] -> the same."""
        weights = jax.nn.sigmoid(self.excite(jax.nn.silu(self.squeeze(x.mean((0, 1))))))
        return x * spread(weights, x.shape, x.dtype)


class MBConv(nnx.Module):
    """An inverted bottleneck: expand, filter each channel, squeeze and excite, project."""

    def __init__(self, dim_in: int, dim_out: int, kernel: int, stride: int, expansion: int, *, dtype, rngs: nnx.Rngs):
        hidden = dim_in * expansion
        self.stride = stride
        project = partial(linear, kernel_init=HE, use_bias=False, dtype=dtype, rngs=rngs)
        self.expand = project(dim_in, hidden) if expansion > 1 else None
        self.expand_norm = BatchNorm(hidden) if expansion > 1 else None
        self.kernel = nnx.Param(HE(rngs.params(), (kernel, kernel, 1, hidden), jnp.float32))
        self.norm = BatchNorm(hidden)
        self.excite = SqueezeExcite(hidden, max(1, dim_in // 4), dtype=dtype, rngs=rngs)
        self.project = project(hidden, dim_out)
        self.project_norm = BatchNorm(dim_out)

    def __call__(self, x: Array, train: bool) -> Array:
        """[H, W, B, dim_in] -> [ceil(H / stride), ceil(W / stride), B, dim_out]."""
        y = x
        if self.expand is not None and self.expand_norm is not None:
            y = jax.nn.silu(self.expand_norm(self.expand(x), train))
        y = jax.nn.silu(self.norm(depthwise(y, self.kernel[...], self.stride), train))
        y = self.project_norm(self.project(self.excite(y)), train)
        return x + y if y.shape == x.shape and self.stride == 1 else y


class EfficientNet(nnx.Module):
    """Image classifier; running statistics change in training passes alone."""

    def __init__(self, config: EfficientNetConfig, rngs: nnx.Rngs):
        self.channels = config.channels
        self.dropout = config.dropout
        self.dtype = DTYPES[config.dtype]
        dim = config.stem
        project = partial(linear, kernel_init=HE, use_bias=False, dtype=self.dtype, rngs=rngs)
        self.stem = project(9 * config.channels, dim)
        self.stem_norm = BatchNorm(dim)
        self.blocks: nnx.List[MBConv] = nnx.List()
        for kernel, stride, repeats, expansion, dim_out in config.stages:
            for n in range(repeats):
                block = partial(MBConv, dim, dim_out, kernel, 1 if n else stride, expansion)
                self.blocks.append(block(dtype=self.dtype, rngs=rngs))
                dim = dim_out
        self.features = project(dim, config.features)
        self.features_norm = BatchNorm(config.features)
        self.head = dense(config.features, config.classes, rngs, precision=HIGHEST)

    def __call__(self, images: Array, *, key: Array | None = None) -> Array:
        """Normalised images [batch, height, width, channels] of any size -> float32 logits [batch, classes]. `key`
        makes it a training pass: batch statistics, which enter the running ones, and dropout."""
        train = key is not None
        x = to_map(images, self.channels).astype(self.dtype)
        x = jax.nn.silu(self.stem_norm(self.stem(unfold(x, 3, 2, 1)), train))
        for block in self.blocks:
            x = block(x, train)
        x = jax.nn.silu(self.features_norm(self.features(x), train))
        x = x.mean((0, 1), dtype=jnp.promote_types(x.dtype, jnp.float32))
        return self.head(drop(x, self.dropout, key))
