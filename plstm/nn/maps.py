"""Layers on feature maps [height, width, images, channels].

With images and channels along the fastest axes of memory a shift of a map moves whole blocks, and a 1 x 1 convolution
is one matrix product. On a CPU that trains a small EfficientNet more than twice as fast as XLA's convolutions of
[images, height, width, channels] do.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from plstm.nn.layers import check_images
from plstm.ops.common import accumulation_dtype, add_up, vary_alike

MOMENTUM = 0.99  # of a batch norm's running statistics
BATCH_EPSILON = 1e-3


def to_map(images: Array, channels: int) -> Array:
    """Normalised images [batch, height, width, channels] -> [height, width, batch, channels]. Raises ValueError as
    `check_images`."""
    check_images(images, channels)
    return images.transpose(1, 2, 0, 3)


def windows(x: Array, kernel: int, stride: int) -> list[Array]:
    """The cells under each of the kernel's entries, row by row, as the kernel moves over a padded map. ValueError for
    a map that is smaller than the kernel."""
    if min(x.shape[:2]) < kernel:
        raise ValueError(f"images are too small: a map of {x.shape[0]} x {x.shape[1]} cells, a kernel of {kernel}")
    height, width = ((side - kernel) // stride + 1 for side in x.shape[:2])

    def every(first: int, count: int) -> slice:
        return slice(first, first + (count - 1) * stride + 1, stride)

    return [x[every(row, height), every(column, width)] for row in range(kernel) for column in range(kernel)]


def unfold(x: Array, kernel: int, stride: int, padding: int = 0) -> Array:
    """[H, W, B, C] -> [H', W', B, kernel kernel C]: what a convolution's kernel [kernel kernel C, dim] multiplies."""
    return jnp.concatenate(windows(pad(x, padding) if padding else x, kernel, stride), axis=-1)


def pad(x: Array, cells: int) -> Array:
    """With `cells` zeros on all sides, and kept: XLA would compute x again for each of the `windows`."""
    return lax.optimization_barrier(jnp.pad(x, ((cells, cells), (cells, cells), (0, 0), (0, 0))))


def bicubic(cells: Array, grid: tuple[int, ...]) -> Array:
    """[Y, X, C] -> [*grid, C] as PyTorch resizes: a = -0.75 and border cells repeated; `jax.image.resize` differs."""
    for axis, count in enumerate(grid):
        if cells.shape[axis] != count:
            weights = _bicubic_weights(cells.shape[axis], count).astype(cells.dtype)
            cells = jnp.moveaxis(jnp.tensordot(weights, cells, (1, axis), precision="highest"), 0, axis)
    return cells


def _bicubic_weights(cells: int, count: int) -> np.ndarray:
    """[count, cells]: how much of each cell is in each of the `count` places that they are resized to."""
    places = (np.arange(count) + 0.5) * cells / count - 0.5
    near = np.floor(places).astype(int)[:, None] + np.arange(-1, 3)
    t = np.abs(places[:, None] - near)
    a = -0.75
    inner = (a + 2) * t**3 - (a + 3) * t**2 + 1
    outer = a * (t**3 - 5 * t**2 + 8 * t - 4)
    weights = np.zeros((count, cells))
    np.add.at(weights, (np.arange(count)[:, None], near.clip(0, cells - 1)), np.where(t <= 1, inner, outer))
    return weights


# ---------------------------------------------------------------------- depthwise convolution
def depthwise(x: Array, kernel: Array, stride: int = 1) -> Array:
    """A filter a channel, padded by (k - 1) / 2 zeros on all sides: x [H, W, B, C], kernel [k, k, 1, C], k odd ->
    [ceil(H / stride), ceil(W / stride), B, C]. As shifted products, with gradients by hand: XLA's are slow on CPUs."""
    return _depthwise(*vary_alike((x, kernel)), stride)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _depthwise(x: Array, kernel: Array, stride: int) -> Array:
    return _filter(pad(x, kernel.shape[0] // 2), kernel, stride)


def _filter(x: Array, kernel: Array, stride: int) -> Array:
    side = kernel.shape[0]
    channels = kernel.shape[-1]
    taps = kernel.reshape(side * side, channels).astype(accumulation_dtype(x))
    return add_up(cells * tap for cells, tap in zip(windows(x, side, stride), taps, strict=True)).astype(x.dtype)


def _depthwise_forward(x: Array, kernel: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return _depthwise(x, kernel, stride), (x, kernel)


def _depthwise_backward(stride: int, saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    """To the input: the mirrored kernel over the cotangent with zeros between its cells. To an entry of the kernel: the
    cells under it times the cotangent, row by row, so that they stay in the cache."""
    x, kernel = saved
    dtype = accumulation_dtype(x)
    side = kernel.shape[0]
    margin = kernel.shape[0] // 2
    edges = [
        (margin, have + margin - stride * (count - 1) - 1, stride - 1)
        for have, count in zip(x.shape[:2], cotangent.shape[:2], strict=True)
    ]
    spread = lax.pad(cotangent, jnp.zeros((), cotangent.dtype), [*edges, (0, 0, 0), (0, 0, 0)])
    to_x = _filter(lax.optimization_barrier(spread), kernel[::-1, ::-1], 1)
    padded = pad(x, margin)

    def add_row(total, inputs):
        number, row = inputs
        cells = windows(lax.dynamic_slice_in_dim(padded, stride * number, side), side, stride)
        return total + jnp.stack([(under * row).sum((0, 1, 2), dtype=dtype) for under in cells]), None

    start = jnp.zeros_like(cotangent, dtype, shape=(side * side, kernel.shape[-1]))
    to_kernel, _ = lax.scan(add_row, start, (jnp.arange(len(cotangent)), cotangent))
    return to_x, to_kernel.reshape(kernel.shape).astype(kernel.dtype)


_depthwise.defvjp(_depthwise_forward, _depthwise_backward)


# ---------------------------------------------------------------------- batch norm
class BatchNorm(nnx.Module):
    """Batch norm with PyTorch's running statistics: their variance is the unbiased one."""

    def __init__(self, channels: int):
        self.scale = nnx.Param(jnp.ones(channels))
        self.bias = nnx.Param(jnp.zeros(channels))
        self.mean = nnx.BatchStat(jnp.zeros(channels))
        self.var = nnx.BatchStat(jnp.ones(channels))

    def __call__(self, x: Array, train: bool) -> Array:
        """[H, W, B, C] -> the same, by the batch's statistics in training, which enter the running ones."""
        mean = self.mean[...]
        var = self.var[...]
        dtype = x.dtype
        x = x.astype(self.scale.dtype)
        if train:
            count = x.size // x.shape[-1]
            mean = x.mean((0, 1, 2))
            var = jnp.maximum(jnp.square(x).mean((0, 1, 2)) - jnp.square(mean), 0)
            self.mean[...] = MOMENTUM * self.mean[...] + (1 - MOMENTUM) * mean
            self.var[...] = MOMENTUM * self.var[...] + (1 - MOMENTUM) * var * count / max(count - 1, 1)
        factor = self.scale[...] * jax.lax.rsqrt(var + BATCH_EPSILON)
        return (x * factor + (self.bias[...] - mean * factor)).astype(dtype)
