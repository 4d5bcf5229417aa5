"""The input-dependent gates of pLSTM on grids (arXiv 2506.11997, Section 3.3.1, Table 2), in float32.

Gate n of the N = 4 x heads gates of a kind belongs to head n // 4 and direction n % 4. Its pre-activation is
`bias + weight . x` of the n-th of N equal groups of channels; the orientation reads all channels.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.ops.common import HIGHEST, matmul
from plstm.ops.grid import GridGates, cpu

SOURCE_BIAS = -4.0  # Table 2
MARK_BIAS = -4.0
DIRECT_BIAS = -6.0
TRANSITION_BIAS = 1.0
TRANSITION_SCALE = 5.0
ORIENTATION_BIASES = (-2.0, 2.0)
DIRECTIONS = 4


def squash_transition(pre: jax.Array, dtype=jnp.float32) -> jax.Array:
    """tanh(5 pre) as float32, rounded as in `dtype`. bfloat16, in which the released code computes it, rounds values
    above 0.998 to 1, where the gradient is 0: a transition that starts at tanh(5) stays at 1 until its input weights,
    if they do not start at zero, move it."""
    if dtype != jnp.bfloat16:
        return jnp.tanh(TRANSITION_SCALE * pre)
    return _rounded_tanh(_round(TRANSITION_SCALE * _round(pre)))


@jax.custom_jvp
def _rounded_tanh(x: jax.Array) -> jax.Array:
    return _round(jnp.tanh(x))


@_rounded_tanh.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    squashed = _rounded_tanh(*primals)
    return squashed, (1 - squashed) * (1 + squashed) * tangents[0]


def _round(x: jax.Array) -> jax.Array:
    """To a number of bfloat16. XLA leaves out a cast there and back, on GPUs at least, but not this."""
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


class GroupedGates(nnx.Module):
    """Several kinds of gates: weight [kinds, N, dim / N] (absent when `bias_only`), bias [kinds, N]."""

    def __init__(self, dim: int, heads: int, biases: list[float], *, bias_only: bool, weight_init, rngs: nnx.Rngs):
        gates = DIRECTIONS * heads
        self.bias_only = bias_only
        if not bias_only:
            self.weight = nnx.Param(weight_init(rngs.params(), (len(biases), gates, dim // gates), jnp.float32))
        self.bias = nnx.Param(jnp.broadcast_to(jnp.array(biases, jnp.float32)[:, None], (len(biases), gates)))

    def __call__(self, channels: jax.Array) -> list[jax.Array]:
        """Channels as of `_channels_first` -> pre-activations of each kind as of `_by_direction`."""
        kinds, gates = self.bias.shape
        pre = jnp.broadcast_to(self.bias[...].T[..., None], (gates, kinds, channels[0].size))
        if not self.bias_only:
            weight = self.weight[...].swapaxes(0, 1)
            pre = pre + matmul(weight, channels.reshape(gates, weight.shape[2], channels[0].size), HIGHEST)
        return [_by_direction(kind, channels) for kind in jnp.split(pre, kinds, axis=1)]


class Orientation(nnx.Module):
    """The P-mode's angle of propagation, alpha = sigma(bias + 0.5 weight . x / dim) in (0, 1); weight [dim, N]. The
    bias [N] starts at linspace(-2, 2, heads)[n mod heads] for gate n, as released: it varies within a head."""

    def __init__(self, dim: int, heads: int, *, weight_init, rngs: nnx.Rngs):
        self.weight = nnx.Param(weight_init(rngs.params(), (dim, DIRECTIONS * heads), jnp.float32))
        self.bias = nnx.Param(jnp.tile(jnp.linspace(*ORIENTATION_BIASES, heads), DIRECTIONS))

    def __call__(self, channels: jax.Array) -> jax.Array:
        """Channels as of `_channels_first` -> alpha as of `_by_direction`."""
        product = matmul(self.weight[...].T, jax.lax.collapse(channels, 1), HIGHEST)
        return _by_direction(jax.nn.sigmoid(self.bias[...][:, None] + 0.5 / len(channels) * product), channels)


class PModeGates(nnx.Module):
    """Directed propagation: both incoming edges feed the right edge by alpha, the lower one by 1 - alpha (Equation 5).

    In image coordinates; * stands for l and for u. released, the gates of the published numbers (that code calls down
    "right"): t_d* = gamma alpha, t_r* = 1 - t_d*, s_d = alpha source, s_r = 1 - s_d; nothing decays, and weights are
    unbounded for negative gamma. Not released, as the paper prints them: t_r* = gamma alpha, t_d* = gamma (1 - alpha),
    s_r = alpha source, s_d = (1 - alpha) source; no path weighs above 1.
    """

    structure = "shared_incoming"

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        released: bool = True,
        bias_only: bool = False,
        weight_init: nnx.Initializer = nnx.initializers.zeros,
        transition_dtype=jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.released = released
        self.transition_dtype = transition_dtype
        biases = [SOURCE_BIAS, TRANSITION_BIAS, MARK_BIAS]
        self.gates = GroupedGates(dim, heads, biases, bias_only=bias_only, weight_init=weight_init, rngs=rngs)
        self.orientation = Orientation(dim, heads, weight_init=weight_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> GridGates:
        """x [..., Y, X, dim] -> gates, each float32 [..., heads, 4, Y, X]."""
        channels = _channels_first(x)
        source, transition, mark = self.gates(channels)
        source = jax.nn.sigmoid(source)
        mark = jax.nn.sigmoid(mark)
        gamma = squash_transition(transition, self.transition_dtype)
        alpha = self.orientation(channels)
        s_r = alpha * source
        right = gamma * alpha
        s_d = (1 - alpha) * source
        down = gamma * (1 - alpha)
        if self.released:
            down = right
            right = 1 - right
            s_d = s_r
            s_r = 1 - s_r
        return _batch_first(GridGates(s_r, s_d, right, right, down, down, mark, mark))


class DModeGates(nnx.Module):
    """Diffusive distribution: t_ru is zero everywhere, so that any two edges are joined by at most one path."""

    structure = "d_mode"

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        bias_only: bool = False,
        weight_init: nnx.Initializer = nnx.initializers.zeros,
        transition_dtype=jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.transition_dtype = transition_dtype
        biases = [SOURCE_BIAS] * 2 + [TRANSITION_BIAS] * 3 + [MARK_BIAS] * 2
        self.gates = GroupedGates(dim, heads, biases, bias_only=bias_only, weight_init=weight_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> GridGates:
        """x [..., Y, X, dim] -> gates, each float32 [..., heads, 4, Y, X]."""
        s_r, s_d, t_rl, t_dl, t_du, m_l, m_u = self.gates(_channels_first(x))
        s_r, s_d, m_l, m_u = (jax.nn.sigmoid(pre) for pre in (s_r, s_d, m_l, m_u))
        t_rl, t_dl, t_du = (squash_transition(pre, self.transition_dtype) for pre in (t_rl, t_dl, t_du))
        return _batch_first(GridGates(s_r, s_d, t_rl, jnp.zeros_like(t_rl), t_dl, t_du, m_l, m_u))


def _channels_first(x: jax.Array) -> jax.Array:
    """[..., Y, X, dim] -> float32 [dim, ..., Y, X], on one CPU [dim, Y, X, ...]."""
    x = jnp.moveaxis(x.astype(jnp.float32), -1, 0)
    return cpu.fix_layout(jnp.moveaxis(x, (-2, -1), (1, 2))) if cpu.keeps_batch_last() else x


def _by_direction(gates: jax.Array, channels: jax.Array) -> jax.Array:
    """[N, ...] -> [heads, 4, ...] with the last axes those of `channels`; the direction is the fast index of N."""
    return gates.reshape(len(gates) // DIRECTIONS, DIRECTIONS, *channels.shape[1:])


def _batch_first(gates: GridGates) -> GridGates:
    """Of each, what `_by_direction` returns -> [..., heads, 4, Y, X]."""
    if cpu.keeps_batch_last():
        gates = jax.tree.map(lambda gate: jnp.moveaxis(gate, (2, 3), (-2, -1)), gates)
    return jax.tree.map(lambda gate: jnp.moveaxis(gate, (0, 1), (-4, -3)), gates)
