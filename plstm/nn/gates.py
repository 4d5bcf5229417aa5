"""The input-dependent gates of pLSTM on grids (arXiv 2506.11997, Section 3.3.1, Table 2), in float32.

Gate n of the N = 4 x heads gates of a kind belongs to head n // 4 and direction n % 4. Its pre-activation is
`bias + weight . x` of the n-th of N equal groups of channels; the orientation reads all channels.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.ops.grid import GridGates

SOURCE_BIAS, MARK_BIAS, DIRECT_BIAS, TRANSITION_BIAS = -4.0, -4.0, -6.0, 1.0  # Table 2
TRANSITION_SCALE, ORIENTATION_BIASES = 5.0, (-2.0, 2.0)
DIRECTIONS = 4
HIGHEST = jax.lax.Precision.HIGHEST  # by default accelerators multiply float32 in fewer bits


class GroupedGates(nnx.Module):
    """Several kinds of gates: weight [kinds, N, dim / N] (absent when `bias_only`), bias [kinds, N]."""

    def __init__(self, dim: int, heads: int, biases: list[float], *, bias_only: bool, weight_init, rngs: nnx.Rngs):
        gates = DIRECTIONS * heads
        self.heads, self.bias_only = heads, bias_only
        if not bias_only:
            self.weight = nnx.Param(weight_init(rngs.params(), (len(biases), gates, dim // gates), jnp.float32))
        self.bias = nnx.Param(jnp.broadcast_to(jnp.array(biases, jnp.float32)[:, None], (len(biases), gates)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x float32 [..., Y, X, dim] -> pre-activations [kinds, ..., heads, 4, Y, X]."""
        pre = jnp.broadcast_to(self.bias[...], (*x.shape[:-1], *self.bias.shape))
        if not self.bias_only:
            groups = x.reshape(*x.shape[:-1], self.bias.shape[-1], -1)
            pre = pre + jnp.einsum("...nc,knc->...kn", groups, self.weight[...], precision=HIGHEST)
        return _heads_first(jnp.moveaxis(pre, -2, 0), self.heads)


class Orientation(nnx.Module):
    """The P-mode's angle of propagation, alpha = sigma(bias + 0.5 weight . x / dim) in (0, 1); weight [dim, N]. The
    bias [N] runs over [-2, 2] with n mod heads, as released: it varies within a head."""

    def __init__(self, dim: int, heads: int, *, weight_init, rngs: nnx.Rngs):
        self.heads = heads
        self.weight = nnx.Param(weight_init(rngs.params(), (dim, DIRECTIONS * heads), jnp.float32))
        self.bias = nnx.Param(jnp.tile(jnp.linspace(*ORIENTATION_BIASES, heads), DIRECTIONS))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x float32 [..., Y, X, dim] -> alpha [..., heads, 4, Y, X]."""
        pre = self.bias[...] + 0.5 / x.shape[-1] * jnp.matmul(x, self.weight[...], precision=HIGHEST)
        return _heads_first(jax.nn.sigmoid(pre), self.heads)


class PModeGates(nnx.Module):
    """Directed propagation: both incoming edges feed the right edge by alpha, the lower one by 1 - alpha (Equation 5).

    released (the published numbers): t_d* = gamma alpha, t_r* = 1 - t_d*, s_d = alpha source, s_r = 1 - s_d in image
    coordinates (the released code calls down "right"); no decay, unbounded for negative gamma. Otherwise as printed:
    t_r* = gamma alpha, t_d* = gamma (1 - alpha), s_r = alpha source, s_d = (1 - alpha) source; no path weighs above 1.
    """

    mode, structure = "P", "rank_one"

    def __init__(self, dim: int, heads: int, *, released: bool, bias_only: bool, weight_init, rngs: nnx.Rngs):
        self.released, biases = released, [SOURCE_BIAS, TRANSITION_BIAS, MARK_BIAS]
        self.gates = GroupedGates(dim, heads, biases, bias_only=bias_only, weight_init=weight_init, rngs=rngs)
        self.orientation = Orientation(dim, heads, weight_init=weight_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> GridGates:
        """x [..., Y, X, dim] -> gates, each float32 [..., heads, 4, Y, X]."""
        x = x.astype(jnp.float32)
        source, transition, mark = self.gates(x)
        source, mark, gamma = jax.nn.sigmoid(source), jax.nn.sigmoid(mark), jnp.tanh(TRANSITION_SCALE * transition)
        alpha = self.orientation(x)
        s_r, right = alpha * source, gamma * alpha
        s_d, down = (1 - alpha) * source, gamma * (1 - alpha)
        if self.released:
            s_r, s_d, right, down = 1 - s_r, s_r, 1 - right, right
        return GridGates(s_r, s_d, right, right, down, down, mark, mark)


class DModeGates(nnx.Module):
    """Diffusive distribution: t_ru is zero everywhere, so that any two edges are joined by at most one path."""

    mode, structure = "D", "no_ru"

    def __init__(self, dim: int, heads: int, *, bias_only: bool, weight_init, rngs: nnx.Rngs):
        biases = [SOURCE_BIAS] * 2 + [TRANSITION_BIAS] * 3 + [MARK_BIAS] * 2
        self.gates = GroupedGates(dim, heads, biases, bias_only=bias_only, weight_init=weight_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> GridGates:
        """x [..., Y, X, dim] -> gates, each float32 [..., heads, 4, Y, X]."""
        pre = self.gates(x.astype(jnp.float32))
        s_r, s_d, m_l, m_u = jax.nn.sigmoid(pre[jnp.array([0, 1, 5, 6])])
        t_rl, t_dl, t_du = jnp.tanh(TRANSITION_SCALE * pre[2:5])
        return GridGates(s_r, s_d, t_rl, jnp.zeros_like(t_rl), t_dl, t_du, m_l, m_u)


def _heads_first(gates: jax.Array, heads: int) -> jax.Array:
    """[..., Y, X, N] -> [..., heads, 4, Y, X]; the direction is the fast index."""
    gates = gates.reshape(*gates.shape[:-1], heads, DIRECTIONS)
    return jnp.moveaxis(gates, (-2, -1), (-4, -3))
