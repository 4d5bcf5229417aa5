"""Small layers that models share: initialisers, norms, patch embedding, MLP, LayerScale, stochastic depth."""

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.limits import OneOf
from plstm.ops.common import HIGHEST, accumulate, accumulation_dtype, matmul

NORM_EPSILON = 1e-5
KERNEL_INIT = nnx.initializers.variance_scaling(0.4, "fan_in", "normal")  # std sqrt(2 / (5 fan_in))
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
Dtype = Annotated[str, OneOf(*DTYPES)]  # of a config
NORMS = {"rmsnorm": nnx.RMSNorm, "layernorm": nnx.LayerNorm}


def norm(kind: str, dim: int, rngs: nnx.Rngs) -> nnx.Module:
    """RMSNorm or LayerNorm over channels, computed in float32, which it returns."""
    return NORMS[kind](dim, epsilon=NORM_EPSILON, dtype=DTYPES["float32"], rngs=rngs)


def exact() -> dict[str, Any]:
    """Options of a head: computed in float32, on GPUs as well."""
    return {"dtype": DTYPES["float32"], "precision": HIGHEST}


def check_grid(x: jax.Array, dim: int) -> None:
    """Raises ValueError unless x is [batch, Y, X, dim]; with fewer axes some shapes would be mixed wrongly."""
    if x.ndim != 4 or x.shape[-1] != dim:
        raise ValueError(f"x must be [batch, Y, X, {dim}]; got {x.shape}")


def check_images(images: jax.Array, channels: int) -> None:
    """Raises ValueError unless images are [batch, height, width, channels] and floats: whole numbers are pictures that
    were not normalised, and would be classified wrongly."""
    if images.ndim != 4 or images.shape[3] != channels:
        raise ValueError(f"images must be [batch, height, width, {channels}]; got {images.shape}")
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ValueError(f"images must be normalised floats; got {images.dtype}, see plstm.preprocessing")


def check_heads(dim: int, heads: int, each: int = 1, name: str = "dim") -> None:
    """Raises ValueError unless `dim` channels make `heads` heads of a multiple of `each`."""
    if heads < 1 or dim % (each * heads):
        raise ValueError(f"{name}={dim} must be a multiple of heads={heads}" + f" x {each}" * (each > 1))


def divide_heads(x: jax.Array, heads: int) -> jax.Array:
    """[..., heads x d] -> [..., heads, d]. Raises ValueError where the heads do not divide the channels."""
    if heads < 1 or x.shape[-1] % heads:
        raise ValueError(f"{heads} heads do not divide {x.shape[-1]} channels")
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def sinusoids(number: jax.Array, dim: int) -> jax.Array:
    """A code of positions or degrees: int [...] -> float32 [..., dim], sines, then cosines, of the number times
    10000^(-2k / dim)."""
    angle = number[..., None] * 10_000.0 ** (-jnp.arange(0, dim, 2) / dim)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def softmax_attention(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array | None = None) -> jax.Array:
    """softmax(q k^T / sqrt(d)) v over the pairs that are seen: q [..., T, d], k, v [..., S, d], seen bool, which
    broadcasts to [..., T, S], None: all -> as v; the softmax is taken in float32 or more.

    On CPUs a gradient takes half the time of JAX's own attention, which has the heads between tokens and channels."""
    dtype = accumulation_dtype(q, k, v)
    scores = accumulate("...td,...sd->...ts", q, k, dtype) / math.sqrt(q.shape[-1])
    if seen is not None:
        scores = jnp.where(seen, scores, jnp.finfo(dtype).min)  # finite, for a padded row that sees nothing
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    hidden = accumulate("...ts,...sd->...td", weights.astype(v.dtype), v, dtype)
    return (hidden / weights.sum(-1, keepdims=True)).astype(v.dtype)  # divided last: d numbers a token, not S


def head_norm(hidden: jax.Array, centred: bool = False) -> jax.Array:
    """RMSNorm, or LayerNorm where `centred`, without a scale, over each head's channels:
    [..., heads, dim / heads] -> [..., dim], float32 or more."""
    shape = hidden.shape
    # Without axes of one entry, as in `plstm.ops.scans.join_axes`.
    hidden = jax.lax.collapse(hidden, 0, -1).astype(jnp.promote_types(hidden.dtype, jnp.float32))
    hidden = hidden - hidden.mean(-1, keepdims=True) if centred else hidden
    hidden = hidden * jax.lax.rsqrt(jnp.mean(jnp.square(hidden), axis=-1, keepdims=True) + NORM_EPSILON)
    return hidden.reshape(*shape[:-2], shape[-2] * shape[-1])


def uniform_within(bound: float) -> nnx.Initializer:
    """An initialiser that draws uniformly from [-bound, bound)."""
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


def spread(x: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An array, broadcast and then cast, so that its gradient is summed in float32 or more: a sum in bfloat16 over
    batch and tokens loses what is under a 256th of it."""
    return jnp.broadcast_to(x.astype(jnp.result_type(x, dtype, jnp.float32)), shape).astype(dtype)


class Linear(nnx.Linear):
    """With the sums of `spread` and `plstm.ops.common.matmul`, and without `out_sharding`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        """[..., in] -> [..., out]"""
        x, kernel = self.promote_dtype((x, self.kernel[...]), dtype=self.dtype)
        if jax.device_count() > 1:  # with its axes merged, XLA would gather a map whose images are not on the first one
            y = jnp.matmul(x, kernel, precision=self.precision)
        else:
            y = matmul(jax.lax.collapse(x, 0, -1), kernel, self.precision).reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + spread(self.bias[...], y.shape, y.dtype)


def linear(dim_in: int, dim_out: int, *, kernel_init=KERNEL_INIT, **options) -> Linear:
    """A linear layer with float32 parameters and a bias that starts at zero; options are those of `nnx.Linear`."""
    return Linear(dim_in, dim_out, kernel_init=kernel_init, **options)


def dense(dim_in: int, dim_out: int, rngs: nnx.Rngs, use_bias: bool = True, **options) -> nnx.Linear:
    """A linear layer whose kernel and bias start uniform within 1 / sqrt(dim_in), as PyTorch's do."""
    start = uniform_within(1 / math.sqrt(dim_in))
    return linear(dim_in, dim_out, use_bias=use_bias, kernel_init=start, bias_init=start, rngs=rngs, **options)


def forget_biases(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    """An initialiser of the mLSTM's forget gates: from 3 to 6 over the heads [heads]."""
    return jnp.linspace(3.0, 6.0, shape[0], dtype=dtype)


def log_of_states(*shape: int) -> nnx.Param:
    """The logarithms [..., states] of 1 .. states, of which decays of a state-space model start."""
    return nnx.Param(jnp.broadcast_to(jnp.log(jnp.arange(1.0, shape[-1] + 1)), shape))


def inverse_softplus_steps(key: jax.Array, dim: int) -> jax.Array:
    """Biases [dim] whose softplus is a step of a state-space model, drawn log-uniformly from [0.001, 0.1]."""
    step = jnp.exp(jax.random.uniform(key, (dim,), minval=math.log(1e-3), maxval=math.log(0.1)))
    return step + jnp.log(-jnp.expm1(-step))


class PatchEmbedding(nnx.Module):
    """Cuts an image into squares and maps each linearly to a token; kernel [patch patch channels, dim]."""

    def __init__(self, patch_size: int, channels: int, dim: int, *, dtype, rngs: nnx.Rngs, kernel_init=None):
        self.patch_size = patch_size
        start = kernel_init or nnx.initializers.lecun_normal()
        self.project = linear(patch_size**2 * channels, dim, dtype=dtype, rngs=rngs, kernel_init=start)

    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, channels] -> tokens [batch, height / patch, width / patch, dim]; ValueError for other
        axes, for whole numbers, and where a side is no multiple of the patch size."""
        p = self.patch_size
        channels = self.project.in_features // p**2
        check_images(images, channels)
        batch, height, width, _ = images.shape
        if height % p or width % p:
            raise ValueError(f"images of {height} x {width} pixels do not divide into patches of {p} x {p}")
        patches = images.reshape(batch, height // p, p, width // p, p, channels).swapaxes(2, 3)
        return self.project(patches.reshape(batch, height // p, width // p, p * p * channels))


@jax.custom_vjp
def exact_gelu(x: jax.Array) -> jax.Array:
    """x Phi(x), Phi the standard normal distribution function; `jax.nn.gelu` takes it from erfc, slower on CPUs."""
    return _exact_gelu_and_slope(x)[0]


def _exact_gelu_and_slope(x):
    dtype = x.dtype  # 1 + erf cancels, in bfloat16 to nothing
    x = x.astype(accumulation_dtype(x))
    phi = 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))
    return (x * phi).astype(dtype), (phi + x * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)).astype(dtype)


@jax.custom_vjp
def tanh_gelu(x: jax.Array) -> jax.Array:
    """The tanh approximation of `exact_gelu`. JAX's own keeps five arrays for its gradient, this one keeps one."""
    return _tanh_gelu_and_slope(x)[0]


def _tanh_gelu_and_slope(x):
    dtype = x.dtype
    x = x.astype(accumulation_dtype(x))
    factor = math.sqrt(2 / math.pi)
    phi = 0.5 * (1 + jnp.tanh(factor * (x + 0.044715 * x**3)))
    slope = phi + 2 * x * phi * (1 - phi) * factor * (1 + 3 * 0.044715 * x**2)
    return (x * phi).astype(dtype), slope.astype(dtype)


def _times_slope(slope, cotangent):
    return (slope * cotangent,)


exact_gelu.defvjp(_exact_gelu_and_slope, _times_slope)
tanh_gelu.defvjp(_tanh_gelu_and_slope, _times_slope)


class MLP(nnx.Module):
    """[..., dim] -> the same: two layers made by `make`, between them a GELU, by its tanh approximation or exact."""

    def __init__(self, dim: int, ratio: int, *, dtype, rngs: nnx.Rngs, approximate: bool = True, make=linear):
        self.approximate = approximate
        self.up = make(dim, ratio * dim, dtype=dtype, rngs=rngs)
        self.down = make(ratio * dim, dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down((tanh_gelu if self.approximate else exact_gelu)(self.up(x)))


class LayerScale(nnx.Module):
    """A learned factor a channel on a residual branch (Touvron et al., 2021): [..., dim] -> the same."""

    def __init__(self, dim: int, start: float):
        self.scale = nnx.Param(jnp.full((dim,), start, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * spread(self.scale[...], x.shape, x.dtype)


def resize(cells: jax.Array, grid: tuple[int, ...]) -> jax.Array:
    """[Y, X, dim] -> [*grid, dim], bicubic, as JAX resizes."""
    return jax.image.resize(cells, (*grid, cells.shape[-1]), "bicubic")


def recomputes(remat: bool | None) -> bool:
    """Whether the backward pass computes the blocks again, by `model.remat`, where null means on GPUs only."""
    return jax.default_backend() == "gpu" if remat is None else remat


def run_block(block: Any, *arguments: Any, remat: bool, static: tuple[int, ...] = ()) -> Any:
    """block(*arguments). remat: keep only the arguments for the backward pass and compute the rest again.
    static: the numbers of arguments, from 1, that are no arrays."""
    call = type(block).__call__
    return (nnx.remat(call, static_argnums=static) if remat else call)(block, *arguments)


def bias_of(layer: nnx.Linear) -> jax.Array:
    """The bias of a layer that has one."""
    assert layer.bias is not None
    return layer.bias[...]


def drop_path(branch: jax.Array, rate: float, key: jax.Array | None, axis: int = 0) -> jax.Array:
    """Drops each sample's branch with probability `rate` and rescales the rest; no-op without a key. `axis` is the
    batch axis."""
    return drop(branch, rate, key, tuple(n for n in range(branch.ndim) if n != axis))


def drop(x: jax.Array, rate: float, key: jax.Array | None, alike: tuple[int, ...] = ()) -> jax.Array:
    """Dropout; no-op without a key. Entries along the axes `alike` are dropped together."""
    return x if key is None else nnx.Dropout(rate, broadcast_dims=alike, deterministic=False)(x, rngs=key)
