"""pLSTM on grids with matrices as transitions, so that it can track states (arXiv 2506.11997, Appendices D.6, D.7)."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.nn.gates import DIRECT_BIAS, DIRECTIONS
from plstm.nn.layers import check_grid, divide_heads, head_norm, linear
from plstm.nn.sequence import MAX_TRACK, rotation
from plstm.ops.common import HIGHEST, check_choice, small_product
from plstm.ops.grid import GridGates, plstm2d_tracking

KEY_SIZE = 4


def reflections(a: jax.Array, size: int) -> jax.Array:
    """The product of the reflections 1 - 2 r r^T / |r|^2 of the rows r of A: [size^2, ...] -> [size, size, ...],
    orthogonal."""
    unit = jnp.eye(size).reshape(size, size, *(1,) * (a.ndim - 1))
    product = unit + jnp.zeros_like(a[:1])
    for row in a.reshape(size, size, *a.shape[1:]):
        product = small_product(product, one_direction(row, -2.0))
    return product


def one_direction(row: jax.Array, beta: jax.Array | float) -> jax.Array:
    """1 + beta k k^T, of k in the direction of the row: [size, ...] -> [size, size, ...]."""
    key = row * jax.lax.rsqrt(jnp.square(row).sum(0) + 1e-12)
    unit = jnp.eye(len(row)).reshape(len(row), len(row), *(1,) * (row.ndim - 1))
    return unit + beta * key[:, None] * key


def of_orthogonal(orthogonal, a: jax.Array, size: int) -> jax.Array:
    """U diag(l) W with orthogonal U and W: [2 size^2 + size, ...] -> [size, size, ...].

    l is in (-1, 1). Of numbers about 0 the first l has either sign, so that some transitions reflect and some rotate,
    and the others are memory, as in `plstm.nn.sequence.TrackingPLSTM`."""
    after, before, values = jnp.split(a, (size**2, 2 * size**2))
    values = jnp.concatenate([4 * values[:1], values[1:] + 2.5])
    return small_product(orthogonal(after, size) * jnp.tanh(values), orthogonal(before, size))


def delta(a: jax.Array, size: int) -> jax.Array:
    """1 - beta k k^T with beta in (0, 2): [size + 1, ...] -> [size, size, ...]."""
    return one_direction(a[:-1], -2 * jax.nn.sigmoid(a[-1]))


# How many numbers a transition of `size` rows is made of, and the function that makes it; no singular value is above 1.
TRANSITIONS: dict[str, tuple[Callable[[int], int], Callable[[jax.Array, int], jax.Array]]] = {
    "rotation": (lambda size: 2 * size**2 + size, functools.partial(of_orthogonal, rotation)),
    "householder": (lambda size: 2 * size**2 + size, functools.partial(of_orthogonal, reflections)),
    "delta": (lambda size: size + 1, delta),
}


class TrackingMixer(nnx.Module):
    """pLSTM on a grid with `track` x `track` transitions, J_V = J_O = J_T = track, then a multi-head RMSNorm and the
    output projection; all gates but the direct one read all channels, and are float32.

    P-mode: one transition T per node and direction; both incoming edges pass alpha T on to the right edge and
    (1 - alpha) T to the lower one, alpha a sigmoid, so the spectral norms of the two sum to at most 1. D-mode: three
    transitions, each of spectral norm at most 1; the fourth is zero. A node reads what enters it after its own
    transition (in D-mode the one straight on) is applied, as an RNN reads its new state. transitions: one of
    TRANSITIONS. dim: channels, a multiple of heads x track.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mode: str = "P",
        *,
        track: int = 2,
        transitions: str = "rotation",
        dtype=jnp.float32,
        rngs: nnx.Rngs,
    ):
        if mode not in ("P", "D") or not 1 <= track <= MAX_TRACK or heads < 1 or dim % (heads * track):
            sizes = f"track={track} from 1 to {MAX_TRACK}, and dim={dim} a multiple of heads x track"
            raise ValueError(f"mode={mode!r} must be P or D, {sizes}")
        check_choice("transitions", transitions, tuple(TRANSITIONS))
        self.mode = mode
        self.heads = heads
        self.track = track
        self.transitions = transitions
        make = functools.partial(linear, dim, kernel_init=nnx.initializers.normal(1 / math.sqrt(dim)), rngs=rngs)
        self.query, self.key = (make(heads * KEY_SIZE, dtype=dtype) for _ in range(2))
        self.value = make(dim, dtype=dtype)
        gates = DIRECTIONS * heads
        sides = 1 if mode == "P" else 2
        gate = functools.partial(make, precision=HIGHEST)
        self.source, self.mark = (gate(sides * gates) for _ in range(2))
        self.orientation = gate(gates) if mode == "P" else None
        self.transition = gate((1 if mode == "P" else 3) * gates * TRANSITIONS[transitions][0](track))
        self.direct_bias = nnx.Param(jnp.full((heads,), DIRECT_BIAS, jnp.float32))
        self.norm_scale = nnx.Param(jnp.ones((dim,), jnp.float32))
        self.out = make(dim, dtype=dtype, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, Y, X, dim] -> [batch, Y, X, dim]."""
        check_grid(x, self.norm_scale.size)
        q, k = (jnp.moveaxis(divide_heads(part(x), self.heads), -2, 1)[..., None] for part in (self.query, self.key))
        v = jnp.moveaxis(divide_heads(self.value(x), self.heads), -2, 1)
        v = v.reshape(*v.shape[:-1], v.shape[-1] // self.track, self.track)
        direct = jax.nn.sigmoid(self.direct_bias[...])[:, None, None, None, None, None, None]
        direct = direct * jnp.eye(self.track)[:, None, None] * jnp.ones((*v.shape[:-2], 1, 1, 1, 1))
        hidden = plstm2d_tracking(q, k, v, self.gates(x), direct)
        hidden = hidden.reshape(*hidden.shape[:-2], hidden.shape[-2] * self.track)
        return self.out(head_norm(jnp.moveaxis(hidden, 1, -2)) * self.norm_scale[...])

    def gates(self, x: jax.Array) -> GridGates:
        """x [batch, Y, X, dim] -> gates as of `plstm2d_tracking`, of [batch, heads, 4, Y, X]."""
        x = x.astype(jnp.float32)
        sources = [jax.nn.sigmoid(pre) for pre in self._split(self.source(x))]
        marks = [jax.nn.sigmoid(pre)[..., None, None, None] for pre in self._split(self.mark(x))]
        size, make = TRANSITIONS[self.transitions]
        numbers = (jnp.moveaxis(a, -1, 0) for a in self._split(self.transition(x), size(self.track)))
        transitions = [jnp.moveaxis(make(a, self.track), (0, 1), (-2, -1)) for a in numbers]
        if self.orientation is None:
            t_rl, t_dl, t_du = transitions
            s_r, s_d = map(self._square, sources)
            m_l, m_u = (mark * t[..., None, :] for mark, t in zip(marks, (t_rl, t_du), strict=True))
            return GridGates(s_r, s_d, t_rl, jnp.zeros_like(t_rl), t_dl, t_du, m_l, m_u)
        alpha = jax.nn.sigmoid(self._split(self.orientation(x))[0])
        s_r, s_d = (self._square(share * sources[0]) for share in (alpha, 1 - alpha))
        right, down = (share[..., None, None] * transitions[0] for share in (alpha, 1 - alpha))
        mark = marks[0] * transitions[0][..., None, :]
        return GridGates(s_r, s_d, right, right, down, down, mark, mark)

    def _split(self, pre: jax.Array, numbers: int | None = None) -> list[jax.Array]:
        """[batch, Y, X, kinds x heads x 4 (x numbers)] -> of each kind [batch, heads, 4, Y, X(, numbers)]."""
        last = () if numbers is None else (numbers,)
        pre = pre.reshape(*pre.shape[:3], -1, self.heads, DIRECTIONS, *last)
        return list(jnp.moveaxis(pre, (3, 4, 5), (0, 2, 3)))

    def _square(self, gate: jax.Array) -> jax.Array:
        """[...] -> [..., track, 1, track], a multiple of the identity."""
        return gate[..., None, None, None] * jnp.eye(self.track)[:, None]
