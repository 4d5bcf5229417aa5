"""Layers on feature maps [channels, height, width, images].

With the images along the fastest axis of memory a shift of a map moves whole vectors, and a 1 x 1 convolution is one
matrix product. On a CPU that trains a small EfficientNet twice as fast as XLA's convolutions of [images, height, width,
channels] do.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from plstm.nn.layers import uniform_within

MOMENTUM, BATCH_EPSILON = 0.99, 1e-3  # of EfficientNet's running statistics and batch norms


def to_maps(images: Array) -> Array:
    """[images, height, width, channels] -> [channels, height, width, images]."""
    return images.transpose(3, 1, 2, 0)


def over_map(values: Array) -> Array:
    """[channels] or [channels, images] -> with axes for height and width, and for images."""
    return values[:, None, None, None] if values.ndim == 1 else values[:, None, None]


def windows(x: Array, kernel: int, stride: int) -> list[Array]:
    """The cells under each of the kernel's entries, row by row, as the kernel moves over a padded map."""
    height, width = ((side - kernel) // stride + 1 for side in x.shape[1:3])
    cells = (slice(n, n + (count - 1) * stride + 1, stride) for count in (height, width) for n in range(kernel))
    rows, columns = (lambda both: (both[:kernel], both[kernel:]))(list(cells))
    return [x[:, row, column] for row in rows for column in columns]


def bicubic(cells: Array, grid: tuple[int, int]) -> Array:
    """[Y, X, C] -> [*grid, C] as PyTorch resizes: a = -0.75 and border cells repeated; `jax.image.resize` differs."""
    for axis, count in enumerate(grid):
        if cells.shape[axis] != count:
            weights = _bicubic_weights(cells.shape[axis], count).astype(cells.dtype)
            cells = jnp.moveaxis(jnp.tensordot(weights, cells, (1, axis), precision="highest"), 0, axis)
    return cells


def _bicubic_weights(cells: int, count: int, a: float = -0.75) -> np.ndarray:
    """[count, cells]: how much of each cell is in each of the `count` places that they are resized to."""
    places = (np.arange(count) + 0.5) * cells / count - 0.5
    near = np.floor(places).astype(int)[:, None] + np.arange(-1, 3)
    t = np.abs(places[:, None] - near)
    inner, outer = (a + 2) * t**3 - (a + 3) * t**2 + 1, a * (t**3 - 5 * t**2 + 8 * t - 4)
    weights = np.zeros((count, cells))
    np.add.at(weights, (np.arange(count)[:, None], near.clip(0, cells - 1)), np.where(t <= 1, inner, outer))
    return weights


# ---------------------------------------------------------------------- depthwise convolution
@partial(jax.custom_vjp, nondiff_argnums=(2,))
def depthwise(x: Array, kernel: Array, stride: int = 1) -> Array:
    """A filter a channel, padded by (k - 1) / 2 zeros on all sides: x [C, H, W, B], kernel [k, k, 1, C], k odd ->
    [C, ceil(H / stride), ceil(W / stride), B]. As shifted products, with gradients by hand: XLA's are slow on CPUs."""
    return _filter(_pad(x, kernel.shape[0] // 2), kernel, stride)


def _pad(x: Array, cells: int) -> Array:
    return jnp.pad(x, ((0, 0), (cells, cells), (cells, cells), (0, 0)))


def _filter(x: Array, kernel: Array, stride: int) -> Array:
    side, channels = kernel.shape[0], kernel.shape[-1]
    taps = kernel.reshape(side * side, channels).astype(x.dtype)
    return sum(cells * over_map(tap) for cells, tap in zip(windows(x, side, stride), taps, strict=True))


def _depthwise_forward(x: Array, kernel: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return depthwise(x, kernel, stride), (x, kernel)


def _depthwise_backward(stride: int, saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    """To the input: the mirrored kernel over the cotangent with zeros between its cells. To the kernel: products of
    whole rows of cells with whole rows of the cotangent, summed over images; only the pairs that meet are kept."""
    x, kernel = saved
    side, (height, width), (rows, columns) = kernel.shape[0], x.shape[1:3], cotangent.shape[1:3]
    pad = side // 2
    spread = [
        (pad, have + pad - stride * (count - 1) - 1, stride - 1) for have, count in ((height, rows), (width, columns))
    ]
    zero = jnp.zeros((), cotangent.dtype)
    spread = jax.lax.pad(cotangent, zero, [(0, 0, 0), *spread, (0, 0, 0)])
    padded, meet = _pad(x, pad), jnp.arange(width + 2 * pad)[:, None] - stride * jnp.arange(columns)
    meet = (meet == jnp.arange(side)[:, None, None]).astype(kernel.dtype)  # [tap, cell, column]
    of_rows = [padded[:, n : n + (rows - 1) * stride + 1 : stride] for n in range(side)]
    products = [jnp.einsum("chvb,chub->chvu", row, cotangent).sum(1) for row in of_rows]
    to_kernel = jnp.einsum("ncvu,jvu->njc", jnp.stack(products), meet)
    return _filter(spread, kernel[::-1, ::-1], 1), to_kernel[:, :, None].astype(kernel.dtype)


depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def depthwise_of_cells(x: Array, kernel: Array) -> Array:
    """The same on cells [H, W, B, C], with stride 1. Small matrices are transposed first and whole vectors moved then,
    and barriers keep the two apart: XLA's CPU backend is many times slower at both in one, or at shifts of either."""
    fixed = jax.lax.optimization_barrier
    maps = fixed(fixed(x.swapaxes(2, 3)).transpose(2, 0, 1, 3))
    return fixed(fixed(depthwise(maps, kernel).transpose(1, 2, 0, 3)).swapaxes(2, 3))


# ---------------------------------------------------------------------- layers
class Dense(nnx.Module):
    """A linear map of the channels: [dim_in, ...] -> [dim_out, ...]. Both parameters start uniform within
    1 / sqrt(dim_in), or the kernel as `kernel_init` says and the bias at zero."""

    def __init__(
        self, dim_in: int, dim_out: int, *, rngs: nnx.Rngs, kernel_init=None, use_bias: bool = True, precision=None
    ):
        self.precision, start = precision, kernel_init or uniform_within(1 / math.sqrt(dim_in))
        self.kernel = nnx.Param(start(rngs.params(), (dim_in, dim_out), jnp.float32))
        bias_start = nnx.initializers.zeros if kernel_init else start
        self.bias = nnx.Param(bias_start(rngs.params(), (dim_out,), jnp.float32)) if use_bias else None

    def __call__(self, x: Array) -> Array:
        y = jnp.tensordot(self.kernel[...].astype(x.dtype), x, (0, 0), precision=self.precision)
        return y if self.bias is None else y + self.bias[...].reshape(-1, *(1,) * (x.ndim - 1)).astype(x.dtype)


class BatchNorm(nnx.Module):
    """Batch norm with PyTorch's running statistics: their variance is the unbiased one."""

    def __init__(self, channels: int):
        self.scale, self.bias = nnx.Param(jnp.ones(channels)), nnx.Param(jnp.zeros(channels))
        self.mean, self.var = nnx.BatchStat(jnp.zeros(channels)), nnx.BatchStat(jnp.ones(channels))

    def __call__(self, x: Array, train: bool) -> Array:
        """[C, H, W, B] -> the same, by the batch's statistics in training, which enter the running ones."""
        (mean, var), dtype, x = (self.mean[...], self.var[...]), x.dtype, x.astype(self.scale.dtype)
        if train:
            count = x.size // x.shape[0]
            mean = x.mean((1, 2, 3))
            var = jnp.maximum(jnp.square(x).mean((1, 2, 3)) - jnp.square(mean), 0)
            self.mean[...] = MOMENTUM * self.mean[...] + (1 - MOMENTUM) * mean
            self.var[...] = MOMENTUM * self.var[...] + (1 - MOMENTUM) * var * count / max(count - 1, 1)
        factor = self.scale[...] * jax.lax.rsqrt(var + BATCH_EPSILON)
        return (x * over_map(factor) + over_map(self.bias[...] - mean * factor)).astype(dtype)
