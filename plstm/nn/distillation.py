"""Students of softmax attention: a window of it, mixed with linear attention to the same queries, keys and values
(arXiv 2606.12364, Section 2.2).

A student has its teacher's parameters under the same names, and those of its linear branch under `linear`.
"""

import functools
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.nn.layers import divide_heads, forget_biases, linear, softmax_attention
from plstm.nn.sequence import CausalAttention, rotate, unit_norm
from plstm.ops.common import HIGHEST
from plstm.ops.delta_rule import gated_delta_rule
from plstm.ops.linear_attention import linear_attention
from plstm.ops.mlstm import mlstm

LEAST_LOG_DECAY = -3.0  # of Gated DeltaNet in a student


def window_attention(q: jax.Array, k: jax.Array, v: jax.Array, window: int, sinks: int) -> jax.Array:
    """Softmax attention of each token to the last `window` up to itself, and to the first `sinks` of all: q, k, v
    [..., T, d] -> as v.

    Blocks of `window` tokens look at the sinks, the block before and themselves, so that no pair far apart is computed
    to be masked."""
    *lead, length, d = q.shape
    window = min(window, length)
    sinks = min(sinks, length)
    blocks = -(-length // window)
    padding = (*((0, 0),) * len(lead), (0, blocks * window - length), (0, 0))

    def in_blocks(x):
        return jnp.pad(x, padding).reshape(*lead, blocks, window, d)

    def seen(x):  # by each block: [..., blocks, sinks + 2 window, d]
        own = in_blocks(x)
        before = jnp.concatenate([jnp.zeros_like(own[..., :1, :, :]), own[..., :-1, :, :]], axis=-3)
        first = jnp.broadcast_to(x[..., None, :sinks, :], (*lead, blocks, sinks, d))
        return jnp.concatenate([first, before, own], axis=-2)

    start = window * jnp.arange(blocks)[:, None]
    i = (start + jnp.arange(window))[:, :, None]
    band = (start + jnp.arange(-window, window))[:, None, :]
    is_seen = [i - jnp.arange(sinks) >= window, (band >= 0) & (band <= i) & (i - band < window)]  # each token once
    hidden = softmax_attention(in_blocks(q), seen(k), seen(v), jnp.concatenate(is_seen, axis=-1))
    return hidden.reshape(*lead, blocks * window, d)[..., :length, :]


def gate(dim: int, heads: int, rngs: nnx.Rngs, **options) -> nnx.Linear:
    """A linear map from q, k and v of all heads before rotary positions, [..., T, 3 dim], to one number per head,
    [..., T, heads]; its kernel starts at 0, so that it first returns its bias."""
    return linear(3 * dim, heads, kernel_init=nnx.initializers.zeros, precision=HIGHEST, rngs=rngs, **options)


def forget_gate(dim: int, heads: int, rngs: nnx.Rngs) -> nnx.Linear:
    return gate(dim, heads, rngs, bias_init=forget_biases)


class Features(nnx.Module):
    """softmax(x W), W [heads, in, out] of each head, from x [..., heads, T, d]; W starts as the identity."""

    def __init__(self, dim: int, heads: int):
        self.weight = nnx.Param(jnp.tile(jnp.eye(dim // heads), (heads, 1, 1)))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.einsum("...hti,hio->...hto", x, self.weight[...]))


class LinearBranch(nnx.Module):
    """What a student has beside the window; `mix` sets its share. A subclass's call takes the gates' input
    [..., T, 3 dim] and q, k (rotated), v [..., heads, T, d], and returns as v."""

    def __init__(self, dim: int, heads: int, rngs: nnx.Rngs):
        self.mix = gate(dim, heads, rngs)

    def share(self, features: jax.Array) -> jax.Array:
        """[..., T, 3 dim] -> in (0, 1), [..., heads, T]."""
        return jax.nn.sigmoid(self.mix(features)).swapaxes(-1, -2)


class MLSTMBranch(LinearBranch):
    """The mLSTM on softmax features. It has no output gate but its share."""

    def __init__(self, dim: int, heads: int, rngs: nnx.Rngs):
        super().__init__(dim, heads, rngs)
        self.q, self.k = Features(dim, heads), Features(dim, heads)
        self.write = gate(dim, heads, rngs)  # starts at 0: below, the normaliser's lower bound would decide
        self.forget = forget_gate(dim, heads, rngs)

    def __call__(self, features: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        i, f = (part(features).swapaxes(-1, -2) for part in (self.write, self.forget))
        return mlstm(self.q(q), self.k(k), v, i, f)


class DeltaBranch(LinearBranch):
    """Gated DeltaNet; beta is up to `max_beta`."""

    def __init__(self, max_beta: float, dim: int, heads: int, rngs: nnx.Rngs):
        super().__init__(dim, heads, rngs)
        self.max_beta = max_beta
        self.write = gate(dim, heads, rngs)
        self.forget = forget_gate(dim, heads, rngs)

    def __call__(self, features: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (jax.nn.silu(part) for part in (q, k, v))
        log_alpha = jnp.maximum(jax.nn.log_sigmoid(self.forget(features)), LEAST_LOG_DECAY)
        beta = self.max_beta * jax.nn.sigmoid(self.write(features))
        return gated_delta_rule(unit_norm(q), unit_norm(k), v, log_alpha.swapaxes(-1, -2), beta.swapaxes(-1, -2))


class PlainBranch(LinearBranch):
    """Linear attention on softmax features, normalised, without gates."""

    def __init__(self, dim: int, heads: int, rngs: nnx.Rngs):
        super().__init__(dim, heads, rngs)
        self.q, self.k = Features(dim, heads), Features(dim, heads)

    def __call__(self, features: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k = self.q(q), self.k(k)
        zeros = jnp.zeros(v.shape[:-1], v.dtype)
        found = linear_attention(q, k, jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1), zeros, zeros + 1)
        # The sum is 0 where no key shares a query's features. Its square, by which the gradient divides, must not
        # underflow either.
        return found[..., :-1] / jnp.maximum(found[..., -1:], jnp.finfo(found.dtype).tiny ** 0.5)


# Blocks of `plstm.models.sequence`: the linear branch that each has, as a function of dim, heads and rngs.
BRANCHES: dict[str, Callable[[int, int, nnx.Rngs], LinearBranch] | None] = {
    "window": None,
    "window_mlstm": MLSTMBranch,
    "window_gdn": functools.partial(DeltaBranch, 1.0),
    "window_gdn_negative": functools.partial(DeltaBranch, 2.0),
    "window_linear": PlainBranch,
}


class Student(CausalAttention):
    """o * branch + (1 - o) * attention to a window and sinks, o a number in (0, 1) for each head and token; `block`
    names the branch, of `BRANCHES`. With rotary positions."""

    def __init__(self, block: str, dim: int, heads: int, window: int, sinks: int, rngs: nnx.Rngs):
        super().__init__(dim, heads, rngs)
        self.window = window
        self.sinks = sinks
        make = BRANCHES[block]
        self.linear = None if make is None else make(dim, heads, rngs)

    def hidden(self, x: jax.Array) -> jax.Array:
        """[..., T, dim] -> the same, before the output map."""
        features = self.qkv(x)
        q, k, v = (divide_heads(part, self.heads) for part in jnp.split(features, 3, axis=-1))
        q, k, v = (part.swapaxes(-2, -3) for part in (rotate(q), rotate(k), v))
        hidden = window_attention(q, k, v, self.window, self.sinks)
        if self.linear is not None:
            share = self.linear.share(features)[..., None]
            hidden = share * self.linear(features, q, k, v) + (1 - share) * hidden
        return hidden.swapaxes(-2, -3).reshape(x.shape)

    def teacher(self, x: jax.Array) -> jax.Array:
        """As `hidden`, of the teacher that has the same parameters: attention to all tokens up to each."""
        return super().hidden(x)


def student_inputs(
    norms: Iterable[nnx.Module], layers: Iterable[nnx.Module], x: jax.Array, as_teacher: bool
) -> Iterator[tuple[Student, jax.Array]]:
    """Yields each `Student` among a model's layers with its input, where x is the input of the first block. as_teacher:
    run the layers as the teacher's, so that each student gets its teacher's input."""
    for norm, layer in zip(norms, layers, strict=True):
        inputs = norm(x)
        if not isinstance(layer, Student):
            x = x + layer(inputs)
            continue
        yield layer, inputs
        x = x + (layer.out(layer.teacher(inputs)) if as_teacher else layer(inputs))


def alignment_loss(layer: Student, x: jax.Array) -> jax.Array:
    """The mean over tokens of the squared distance of student and teacher, before the output map."""
    distance = layer.hidden(x) - jax.lax.stop_gradient(layer.teacher(x))
    return jnp.square(distance).sum(-1).mean()
