"""Causal layers on sequences, [..., T, dim] -> [..., T, dim]: mLSTM, sLSTM, Mamba-2, Gated DeltaNet, pLSTM with state
tracking, attention. Gates, states and norms are float32.

Parameters start as in the layers' released code; where that does not say, uniform within 1 / sqrt(inputs).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from plstm.nn.layers import (
    check_heads,
    dense,
    divide_heads,
    forget_biases,
    head_norm,
    inverse_softplus_steps,
    linear,
    softmax_attention,
    spread,
    uniform_within,
)
from plstm.ops.common import HIGHEST, add_up, product, small_product, vary_alike
from plstm.ops.delta_rule import gated_delta_rule
from plstm.ops.mlstm import mlstm
from plstm.ops.sequence import plstm1d_tracking
from plstm.ops.slstm import slstm
from plstm.ops.ssd import ssd

WIDTH = 4  # of causal convolutions
QKV_BLOCK = 4  # channels of a block of mLSTM's block-diagonal maps
KEY_EPSILON = 1e-6
GATE_LIMIT = 15.0  # of the gates of MLSTMLarge
ROPE_BASE = 10_000.0
QUERY_BLOCKS = 8  # of `causal_attention`, at most
FEWEST_QUERIES = 64  # of a block
MAX_TRACK = 4  # rows of a transition, as of `rotation`
# l x and x r of quaternions as matrices times the vector x: the sum over k of l[k] LEFT_UNITS[k].
LEFT_UNITS = np.array(
    [
        np.eye(4),
        [[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, -1], [0, 0, 1, 0]],
        [[0, 0, -1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, -1, 0, 0]],
        [[0, 0, 0, -1], [0, 0, -1, 0], [0, 1, 0, 0], [1, 0, 0, 0]],
    ],
    np.float32,
)
RIGHT_UNITS = np.array([np.diag([1, -1, -1, -1]) @ unit.T @ np.diag([1, -1, -1, -1]) for unit in LEFT_UNITS])


@jax.custom_vjp
def causal_conv(x: jax.Array, weight: jax.Array) -> jax.Array:
    """y_t = sum_j weight[j] x_(t - 3 + j), zeros before the first token: x [..., T, dim], weight [4, dim], of one
    dtype -> as x.

    Reverse-mode derivatives only: on CPUs JAX's own gradient takes several times as long."""
    return _sum_of_shifts(x, weight, (WIDTH - 1, 0))


def _sum_of_shifts(x: jax.Array, weight: jax.Array, padding: tuple[int, int]) -> jax.Array:
    return add_up(w * shifted for w, shifted in zip(weight, _shifts(x, padding), strict=True))


def _shifts(x: jax.Array, padding: tuple[int, int]) -> list[jax.Array]:
    """x [..., T, dim] padded along T, the T tokens from each of the first four places on."""
    padded = jnp.pad(x, (*((0, 0),) * (x.ndim - 2), padding, (0, 0)))
    return [padded[..., j : j + x.shape[-2], :] for j in range(WIDTH)]


def _causal_conv_backward(saved, cotangent):
    x, weight = saved
    d_weight = [jnp.einsum("...tc,...tc->c", shifted, cotangent) for shifted in _shifts(x, (WIDTH - 1, 0))]
    return _sum_of_shifts(cotangent, weight[::-1], (0, WIDTH - 1)), jnp.stack(d_weight)


causal_conv.defvjp(lambda x, weight: (causal_conv(x, weight), (x, weight)), _causal_conv_backward)


class CausalConv(nnx.Module):
    """Depthwise `causal_conv` (+ bias), then silu."""

    def __init__(self, dim: int, rngs: nnx.Rngs, use_bias: bool = True):
        start = uniform_within(1 / math.sqrt(WIDTH))
        self.weight = nnx.Param(start(rngs.params(), (WIDTH, dim)))
        self.bias = nnx.Param(start(rngs.params(), (dim,))) if use_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = causal_conv(*vary_alike((x, self.weight[...])))
        return jax.nn.silu(y if self.bias is None else y + self.bias[...])


class BlockDiagonal(nnx.Module):
    """A linear map within blocks of channels; weight [blocks, in, out], its variance 2 / (5 fan_in), and bias."""

    def __init__(self, blocks: int, size: int, fan_in: int, rngs: nnx.Rngs, use_bias: bool = False):
        start = nnx.initializers.normal(math.sqrt(0.4 / fan_in))
        self.weight = nnx.Param(start(rngs.params(), (blocks, size, size)))
        self.bias = nnx.Param(jnp.zeros(blocks * size)) if use_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        blocks = x.reshape(*x.shape[:-1], *self.weight.shape[:2])
        y = jnp.einsum("...bi,bio->...bo", blocks, self.weight[...].astype(x.dtype)).reshape(x.shape)
        return y if self.bias is None else y + spread(self.bias[...], x.shape, x.dtype)


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """[..., T, heads x d] -> [..., heads, T, d]."""
    return divide_heads(x, heads).swapaxes(-2, -3)


class MLSTM(nnx.Module):
    """Up-projection, convolution, mLSTM, LayerNorm a head, learned skip, gate, down-projection (xLSTM's released code);
    inner width 2 dim, `depth` the number of layers of the model, without MLPs."""

    def __init__(self, dim: int, heads: int, depth: int, rngs: nnx.Rngs):
        if dim % (QKV_BLOCK // 2):
            raise ValueError(f"dim={dim} must be a multiple of {QKV_BLOCK // 2}")
        inner = 2 * dim
        check_heads(inner, heads, name="inner width")
        self.heads = heads
        self.up = linear(dim, 2 * inner, use_bias=False, rngs=rngs)
        self.conv = CausalConv(inner, rngs)
        self.q, self.k, self.v = (BlockDiagonal(inner // QKV_BLOCK, QKV_BLOCK, dim, rngs) for _ in range(3))
        gate = functools.partial(
            linear, 3 * inner, heads, kernel_init=nnx.initializers.zeros, precision=HIGHEST, rngs=rngs
        )
        self.input_gate = gate(bias_init=nnx.initializers.normal(0.1))
        self.forget_gate = gate(bias_init=forget_biases)
        self.norm_scale = nnx.Param(jnp.ones(inner))
        self.skip = nnx.Param(jnp.ones(inner))
        start = nnx.initializers.normal(2 / depth / math.sqrt(dim))
        self.down = linear(inner, dim, use_bias=False, kernel_init=start, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x, z = jnp.split(self.up(x), 2, axis=-1)
        c = self.conv(x)
        qkv = self.q(c), self.k(c), self.v(x)
        features = jnp.concatenate(qkv, axis=-1)
        gates = (gate(features).swapaxes(-1, -2) for gate in (self.input_gate, self.forget_gate))
        hidden = mlstm(*(split_heads(part, self.heads) for part in qkv), *gates)
        hidden = head_norm(hidden.swapaxes(-2, -3), centred=True) * self.norm_scale[...]
        return self.down((hidden + self.skip[...] * c) * jax.nn.silu(z))


class MLSTMLarge(nnx.Module):
    """mLSTM from the input itself, LayerNorm a head, gate, projection (xLSTM's released code for language models): keys
    half as wide as values, input and forget gates within 15, no convolution."""

    def __init__(self, dim: int, heads: int, rngs: nnx.Rngs):
        check_heads(dim, heads, 2)
        self.heads = heads
        make = functools.partial(linear, dim, use_bias=False, rngs=rngs)
        self.q, self.k = (make(dim // 2) for _ in range(2))
        self.v, self.gate, self.out = (make(dim) for _ in range(3))
        gate = functools.partial(linear, dim, heads, kernel_init=nnx.initializers.zeros, precision=HIGHEST, rngs=rngs)
        self.input_gate = gate(bias_init=nnx.initializers.constant(-10.0))
        self.forget_gate = gate(bias_init=forget_biases)
        self.norm_scale = nnx.Param(jnp.ones(dim))

    def __call__(self, x: jax.Array) -> jax.Array:
        gates = (_within(gate(x)).swapaxes(-1, -2) for gate in (self.input_gate, self.forget_gate))
        hidden = mlstm(*(split_heads(part(x), self.heads) for part in (self.q, self.k, self.v)), *gates)
        hidden = head_norm(hidden.swapaxes(-2, -3), centred=True) * self.norm_scale[...]
        return self.out(jax.nn.sigmoid(self.gate(x)) * hidden)


def _within(gate: jax.Array) -> jax.Array:
    """In (-15, 15), with slope 1 at 0."""
    return GATE_LIMIT * jnp.tanh(gate / GATE_LIMIT)


class SLSTM(nnx.Module):
    """Convolution, sLSTM, LayerNorm per head (xLSTM's released code, without its feed-forward layer); the input and
    forget gates read the convolution. The forget biases start by the layer's place: number `layer`, from 0, of the
    model's `depth` layers, MLPs not counted."""

    def __init__(self, dim: int, heads: int, layer: int, depth: int, rngs: nnx.Rngs):
        check_heads(dim, heads)
        size = dim // heads
        self.conv = CausalConv(dim, rngs)
        self.gates = nnx.List([BlockDiagonal(heads, size, dim, rngs) for _ in range(4)])  # i, f, z, o
        self.weight = nnx.Param(jnp.zeros((heads, size, 4, size)))  # from the last output to the gates
        power = 0.3 + 1.3 * layer / max(depth - 1, 1)
        forget = 5 - 12 * (jnp.arange(size) / max(size - 1, 1)) ** power
        self.bias = nnx.Param(jnp.zeros((heads, 4, size)).at[:, 1].set(forget))
        self.norm_scale = nnx.Param(jnp.ones(dim))

    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.conv(x)
        heads = self.bias.shape[0]
        maps = zip(self.gates, (c, c, x, x), strict=True)
        i, f, z, o = (divide_heads(gate(h), heads) + self.bias[:, n] for n, (gate, h) in enumerate(maps))
        return head_norm(slstm(i, f, z, o, self.weight[...]), centred=True) * self.norm_scale[...]


class Mamba2(nnx.Module):
    """Projection, convolution, state space, gate, then RMSNorm over all channels (Mamba-2's reference code); `inner`
    channels in heads of `head_dim`, `state_dim` numbers of B and C."""

    def __init__(self, dim: int, inner: int, head_dim: int, state_dim: int, rngs: nnx.Rngs):
        if head_dim < 1 or inner % head_dim:
            raise ValueError(f"inner={inner} must be a multiple of head_dim={head_dim}")
        heads = inner // head_dim
        convolved = inner + 2 * state_dim
        self.parts = inner, inner + convolved  # where z ends, and where x, B and C do
        self.state_dim = state_dim
        self.project = dense(dim, inner + convolved + heads, rngs, use_bias=False)
        self.conv = CausalConv(convolved, rngs)
        self.step_bias = nnx.Param(inverse_softplus_steps(rngs.params(), heads))
        self.a_log = nnx.Param(jnp.log(jax.random.uniform(rngs.params(), (heads,), minval=1.0, maxval=16.0)))
        self.skip = nnx.Param(jnp.ones(heads))
        self.norm_scale = nnx.Param(jnp.ones(inner))
        self.out = dense(inner, dim, rngs, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        z, convolved, step = jnp.split(self.project(x), self.parts, axis=-1)
        convolved = self.conv(convolved)
        inner = z.shape[-1]
        x, b, c = jnp.split(convolved, (inner, inner + self.state_dim), axis=-1)
        x = divide_heads(x, self.skip.shape[0])
        y = ssd(x, jax.nn.softplus(step + self.step_bias[...]), jnp.exp(self.a_log[...]), b, c)
        y = (y + self.skip[..., None] * x).reshape(z.shape) * jax.nn.silu(z)
        return self.out(head_norm(y[..., None, :]) * self.norm_scale[...])


def unit_norm(x: jax.Array) -> jax.Array:
    """[..., d], each of norm 1 but for those near 0."""
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + KEY_EPSILON)


class GatedDeltaNet(nnx.Module):
    """Convolved q, k, v, gated delta rule, RMSNorm a head, then gate (Gated DeltaNet's reference code); d_k =
    key_dim / heads, d_v = 2 d_k. negative: beta is up to 2, so the eigenvalue along a key is in [-1, 1], not in
    [0, 1]."""

    def __init__(self, dim: int, heads: int, key_dim: int, negative: bool, rngs: nnx.Rngs):
        check_heads(key_dim, heads, name="key_dim")
        self.heads = heads
        self.max_beta = 2.0 if negative else 1.0
        make = functools.partial(dense, rngs=rngs, use_bias=False)
        self.q = make(dim, key_dim)
        self.k = make(dim, key_dim)
        self.v = make(dim, 2 * key_dim)
        self.decay, self.beta = (make(dim, heads, precision=HIGHEST) for _ in range(2))
        self.a_log = nnx.Param(jnp.log(jax.random.uniform(rngs.params(), (heads,), minval=1e-3, maxval=16.0)))
        self.step_bias = nnx.Param(inverse_softplus_steps(rngs.params(), heads))
        self.convs = nnx.List([CausalConv(size, rngs, use_bias=False) for size in (key_dim, key_dim, 2 * key_dim)])
        self.gate = make(dim, 2 * key_dim)
        self.norm_scale = nnx.Param(jnp.ones(2 * key_dim // heads))
        self.out = make(2 * key_dim, dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        projected = (conv(part(x)) for conv, part in zip(self.convs, (self.q, self.k, self.v), strict=True))
        q, k, v = (split_heads(part, self.heads) for part in projected)
        log_alpha = -jnp.exp(self.a_log[...]) * jax.nn.softplus(self.decay(x) + self.step_bias[...])
        beta = self.max_beta * jax.nn.sigmoid(self.beta(x))
        y = gated_delta_rule(unit_norm(q), unit_norm(k), v, log_alpha.swapaxes(-1, -2), beta.swapaxes(-1, -2))
        scale = jnp.tile(self.norm_scale[...], self.heads)
        return self.out(head_norm(y.swapaxes(-2, -3)) * scale * jax.nn.silu(self.gate(x)))


class TrackingPLSTM(nnx.Module):
    """pLSTM-1D with a `track` x `track` transition U diag(lambda) W, lambda in (-1, 1), U and W rotations: one head,
    J_V = J_O = J_T = track. Unlike in the released code, rotations stay orthogonal (`rotation`); lambda = tanh(w x + b)
    starts with random w (there lambda = tanh(5 (w x + 1)) with w = 0, whose sign cannot change); and source and mark
    start near the identity (with equal entries a state would be written and read along one direction only, where a
    small rotation does not show)."""

    def __init__(self, dim: int, track: int, rngs: nnx.Rngs):
        if not 1 <= track <= MAX_TRACK or dim % track:
            raise ValueError(f"track={track} must be from 1 to {MAX_TRACK}, and dim={dim} a multiple of it")
        self.track = track
        start = nnx.initializers.normal(1 / math.sqrt(dim))
        make = functools.partial(linear, dim, use_bias=False, kernel_init=start, rngs=rngs)
        self.conv = CausalConv(dim, rngs)
        self.q = make(dim)
        self.k = make(dim)
        self.v = make(dim)
        gate = functools.partial(make, use_bias=True, precision=HIGHEST)
        self.before, self.after = (gate(track**2) for _ in range(2))
        # At the start the first eigenvalue's sign differs from token to token, so that some transitions reflect and
        # some rotate; the others are memory.
        is_first = jnp.arange(track) == 0
        self.eigenvalues = gate(track, bias_init=lambda *_: jnp.where(is_first, 0.0, 2.5))
        self.eigenvalues.kernel[...] *= jnp.where(is_first, 4.0, 1.0)
        near_identity = nnx.initializers.constant(6 * jnp.eye(track).reshape(-1) - 3)  # sigmoid: .95, elsewhere .05
        self.source, self.mark = (gate(track**2, bias_init=near_identity) for _ in range(2))
        self.direct = nnx.Param(jnp.zeros(track**2))
        self.norm_scale = nnx.Param(jnp.ones(dim))
        self.gate = make(dim)
        self.out = make(dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.conv(x)

        def as_squares(gate):
            return gate.reshape(*gate.shape[:-1], self.track, self.track)

        v = divide_heads(self.v(x), x.shape[-1] // self.track)
        source, mark = (as_squares(jax.nn.sigmoid(gate(c))) for gate in (self.source, self.mark))
        direct = jnp.broadcast_to(as_squares(jax.nn.sigmoid(self.direct[...])), source.shape)
        gates = source[..., :, None, :], self.transition(c), mark[..., :, None, :], direct[..., :, None, None, :]
        hidden = plstm1d_tracking(self.q(c)[..., None], self.k(c)[..., None], v, *gates).reshape(x.shape)
        return self.out(head_norm(hidden[..., None, :]) * self.norm_scale[...] * jax.nn.silu(self.gate(x)))

    def transition(self, c: jax.Array) -> jax.Array:
        """[..., T, dim] -> [..., T, track, track]."""
        values = jnp.moveaxis(jnp.tanh(self.eigenvalues(c)), -1, 0)
        if self.track == 1:
            return values[0][..., None, None]
        after, before = (rotation(jnp.moveaxis(turn(c), -1, 0), self.track) for turn in (self.after, self.before))
        return jnp.moveaxis(small_product(after * values, before), (0, 1), (-2, -1))


def rotation(a: jax.Array, size: int) -> jax.Array:
    """exp(A - A^T) of matrices A: [size^2, ...] -> [size, size, ...], for sizes up to 4, orthogonal whatever A is.

    A rotation of four dimensions is x -> l x r with unit quaternions l and r; one of fewer leaves the first ones alone.
    """
    a = a.reshape(size, size, *a.shape[1:])
    sides = []
    last = slice(4 - size, None)
    for units in (LEFT_UNITS, RIGHT_UNITS):
        imaginary = product("kij,ij...->k...", units[1:, last, last] / 2, a)
        angle = jnp.sqrt(jnp.maximum(jnp.square(imaginary).sum(0), 1e-12))  # at 0 a root has no slope
        quaternion = jnp.concatenate([jnp.cos(angle)[None], jnp.sin(angle) / angle * imaginary])
        sides.append(product("kij,k...->ij...", units, quaternion))
    return small_product(sides[0][last], sides[1][:, last])


class CausalAttention(nnx.Module):
    """Softmax attention of a token to itself and earlier ones, with rotary positions (Su et al., 2021) or none; dim: a
    multiple of heads, with rotary positions of 2 x heads."""

    def __init__(self, dim: int, heads: int, rngs: nnx.Rngs, rotary: bool = True):
        check_heads(dim, heads, 2 if rotary else 1)
        self.heads = heads
        self.rotary = rotary
        self.qkv, self.out = (linear(dim, size, use_bias=False, rngs=rngs) for size in (3 * dim, dim))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.hidden(x))

    def hidden(self, x: jax.Array) -> jax.Array:
        """What the output map reads: [..., T, dim] -> the same."""
        q, k, v = (divide_heads(part, self.heads) for part in jnp.split(self.qkv(x), 3, axis=-1))
        q, k = (rotate(q), rotate(k)) if self.rotary else (q, k)
        return causal_attention(q, k, v).reshape(x.shape)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Softmax attention of a token to itself and earlier ones: float32 q, k, v [..., T, heads, d] -> as v.

    At most QUERY_BLOCKS blocks of queries, each with the keys up to its end alone: nearly half the pairs are never
    computed.
    The backward pass computes the weights again."""
    length = q.shape[-3]
    size = max(FEWEST_QUERIES, -(-length // QUERY_BLOCKS))
    q, k, v = (x.swapaxes(-2, -3) for x in (q, k, v))
    attend = jax.checkpoint(softmax_attention)
    parts = []
    for start in range(0, length, size):
        end = min(start + size, length)
        seen = jnp.tri(end - start, end, start, dtype=bool)
        parts.append(attend(q[..., start:end, :], k[..., :end, :], v[..., :end, :], seen))
    return jnp.concatenate(parts, axis=-2).swapaxes(-2, -3)


class GatedMLP(nnx.Module):
    """SwiGLU (Shazeer, 2020), without biases."""

    def __init__(self, dim: int, width: int, rngs: nnx.Rngs):
        self.up = linear(dim, 2 * width, use_bias=False, rngs=rngs)
        self.down = linear(width, dim, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(self.up(x), 2, axis=-1)
        return self.down(jax.nn.silu(gate) * up)


def rotate(x: jax.Array) -> jax.Array:
    """Rotary positions: [..., T, heads, d] turned, in d / 2 planes, by angles proportional to the position."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[-3])[:, None] * ROPE_BASE ** (-jnp.arange(half) / half)
    cos = jnp.cos(angle)[:, None]
    sin = jnp.sin(angle)[:, None]
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
