"""The 2-D state space of Mamba2D (Baty et al., 2024), first release: one scan from the top left to the bottom right."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from plstm.ops.common import HIGHEST, accumulation_dtype, add_up, check_axes, check_choice, public_operator

METHODS = ("auto", "rows", "diagonals", "recurrent")


@public_operator
def mamba2d(
    u: Array, delta_t: Array, delta_l: Array, a_t: Array, a_l: Array, b: Array, c: Array, *, method: str = "auto"
) -> Array:
    """u and deltas [..., H, W, e], a_t, a_l < 0 [e, N], b, c [..., H, W, N] -> [..., H, W, e] in u's dtype: at cell
    (i, j), the sum over N of c h with

        from_t = exp(delta_t a_t) h[i-1, j] + delta_t b u          from_l = exp(delta_l a_l) h[i, j-1] + delta_l b u
        h[i, j] = (from_t + from_l) / 2, in the first row from_l, in the other cells of the first column from_t

    States and decays are float32 or more. "recurrent" is the definition on arrays of all cells and states. The others
    make decays and inputs of a cell where they are needed and keep one array of states: "rows" steps through H W cells,
    with gradients by hand, in reverse mode only; "diagonals" through H + W - 1 anti-diagonals, for devices where
    launching a step dominates, with more than twice the memory. "auto" is "rows" on CPUs, otherwise "diagonals".
    Raises ValueError where shapes disagree, an axis that is named is empty or the method is unknown.
    """
    check_choice("method", method, METHODS)
    axes = "u, delta_t, delta_l [..., H, W, e]; b, c [..., H, W, N]; a_t, a_l [e, N]"
    check_axes(axes, u, delta_t, delta_l, b, c, a_t, a_l)
    dtype = accumulation_dtype(u, delta_t, delta_l, a_t, a_l, b, c)
    cells = [lax.collapse(x.astype(dtype), 0, -3) for x in (u, delta_t, delta_l, b, c)]
    a_t = a_t.astype(dtype)
    a_l = a_l.astype(dtype)
    if method == "auto":
        method = "rows" if jax.default_backend() == "cpu" else "diagonals"
    methods: dict[str, Callable[..., Array]] = {"rows": _rows, "diagonals": _diagonals, "recurrent": _recurrent}
    y = methods[method](*cells, a_t, a_l)
    return y.reshape(u.shape).astype(u.dtype)


def _recurrent(u: Array, delta_t: Array, delta_l: Array, b: Array, c: Array, a_t: Array, a_l: Array) -> Array:
    """As `_rows`, by the definition."""
    new = b[..., None, :] * u[..., None]  # [B, H, W, e, N]
    decays = [jnp.exp(delta[..., None] * a) for delta, a in ((delta_t, a_t), (delta_l, a_l))]
    h = states_of(*decays, *(delta[..., None] * new for delta in (delta_t, delta_l)))
    return jnp.einsum("bhwen,bhwn->bhwe", h, c, precision=HIGHEST)


def states_of(a_t: Array, a_l: Array, x_t: Array, x_l: Array) -> Array:
    """h of decays and inputs from the top and from the left, all [B, H, W, ...]: from_t = a_t h[i-1, j] + x_t."""
    height, width = a_t.shape[1:3]
    arrays = [jnp.moveaxis(x, 0, 2) for x in (a_t, a_l, x_t, x_l)]
    first_row = jnp.broadcast_to((jnp.arange(height) == 0)[:, None], (height, width))
    first_column = jnp.broadcast_to(jnp.arange(width) == 0, (height, width))

    def cell(left: Array, inputs) -> tuple[Array, Array]:
        above, a_t, a_l, x_t, x_l, first_row, first_column = inputs
        from_t = a_t * above + x_t
        from_l = a_l * left + x_l
        h = jnp.where(first_row, from_l, jnp.where(first_column, from_t, (from_t + from_l) / 2))
        return h, h

    def row(above: Array, inputs) -> tuple[Array, Array]:
        return (lax.scan(cell, jnp.zeros_like(above[0]), (above, *inputs))[1],) * 2

    return jnp.moveaxis(lax.scan(row, jnp.zeros_like(arrays[0][0]), (*arrays, first_row, first_column))[1], 2, 0)


# ---------------------------------------------------------------------- without arrays of all decays
# States are [N, B, e], so that sums over N add up whole slices, which XLA's CPU backend does fast.
def _by_cells(u: Array, delta_t: Array, delta_l: Array, b: Array, c: Array) -> tuple[Array, ...]:
    """The scans' arrays: u and deltas [H, W, B, e], b and c [H, W, N, B], weights of `from_t` and `from_l` [H, W]."""
    wide = [x.transpose(1, 2, 0, 3) for x in (u, delta_t, delta_l)]
    thin = [x.transpose(1, 2, 3, 0) for x in (b, c)]
    first_row, first_column = (jnp.arange(side) == 0 for side in u.shape[1:3])
    weight_t = jnp.where(first_row[:, None], 0, jnp.where(first_column, 1, 0.5)).astype(u.dtype)
    return *wide, *thin, weight_t, 1 - weight_t


def _over_states(weights: Array, values: Array) -> Array:
    """Sum over N of weights [N, B, 1] or [N, 1, e] times values [N, B, e] -> [B, e]."""
    return add_up(weights[n] * values[n] for n in range(len(values)))


def _cell(a_t, a_l, left, above, u, delta_t, delta_l, b, c, weight_t, weight_l) -> tuple[Array, Array]:
    """The state [N, B, e] and the output [B, e] of a cell, from the states of its neighbours; a_t, a_l [N, 1, e]."""
    h = weight_t * jnp.exp(delta_t * a_t) * above + weight_l * jnp.exp(delta_l * a_l) * left
    h = h + b[..., None] * (u * (weight_t * delta_t + weight_l * delta_l))
    return h, _over_states(c[..., None], h)


def _diagonals(u: Array, delta_t: Array, delta_l: Array, b: Array, c: Array, a_t: Array, a_l: Array) -> Array:
    """As `_rows`. A cell's neighbours are on the anti-diagonal before: in its row the left one, in the row above the
    upper one. A diagonal has a place in every row; those outside the grid have no weight and no input, so state 0."""
    u, delta_t, delta_l, b, c, weight_t, weight_l = _by_cells(u, delta_t, delta_l, b, c)
    top = (delta_t, weight_t, a_t.T[:, None])
    left = (delta_l, weight_l, a_l.T[:, None])
    tall = u.shape[0] > u.shape[1]  # then columns are the rows, so that fewer places lie outside the grid
    turn = (lambda x: x.swapaxes(0, 1)) if tall else (lambda x: x)
    (delta_t, weight_t, a_t), (delta_l, weight_l, a_l) = (left, top) if tall else (top, left)

    @partial(jax.checkpoint, prevent_cse=False)
    def step(states: Array, inputs) -> tuple[Array, Array]:
        return jax.vmap(partial(_cell, a_t, a_l))(states, jnp.roll(states, 1, axis=0), *inputs)

    skewed = tuple(_skew(turn(x)) for x in (u, delta_t, delta_l, b, c, weight_t, weight_l))
    start = jnp.zeros_like(u, shape=(skewed[0].shape[1], *b.shape[2:], u.shape[-1]))
    _, y = lax.scan(step, start, skewed)
    return turn(_unskew(y, max(u.shape[:2]))).transpose(2, 0, 1, 3)


def _skew(x: Array) -> Array:
    """[H, W, ...] -> [H + W - 1, H, ...], diagonal and row: row i begins i places later, with zeros around it."""
    height, width, *rest = x.shape
    padded = lax.collapse(jnp.pad(x, [(0, 0), (0, height), *[(0, 0)] * len(rest)]), 0, 2)
    return padded[:-height].reshape(height, height + width - 1, *rest).swapaxes(0, 1)


def _unskew(x: Array, width: int) -> Array:
    """[H + W - 1, H, ...] -> [H, W, ...], the inverse of `_skew`."""
    height, *rest = x.shape[1:]
    padded = jnp.pad(lax.collapse(x.swapaxes(0, 1), 0, 2), [(0, height), *[(0, 0)] * len(rest)])
    return padded.reshape(height, height + width, *rest)[:, :width]


@jax.custom_vjp
def _rows(u: Array, delta_t: Array, delta_l: Array, b: Array, c: Array, a_t: Array, a_l: Array) -> Array:
    """u, deltas [B, H, W, e], b, c [B, H, W, N], a_t, a_l [e, N] -> [B, H, W, e]."""
    return _run(u, delta_t, delta_l, b, c, a_t, a_l, keep=False)[0]


def _run(u, delta_t, delta_l, b, c, a_t, a_l, keep: bool) -> tuple[Array, Array | None]:
    """The output and, if kept, the states [H, W, N, B, e]."""
    a_t = a_t.T[:, None]
    a_l = a_l.T[:, None]

    def cell(left, inputs):
        h, y = _cell(a_t, a_l, left, *inputs)
        return h, (h, y)

    def row(above, inputs):
        _, (states, y) = lax.scan(cell, jnp.zeros_like(above[0]), (above, *inputs))
        return states, (states if keep else None, y)

    zeros = jnp.zeros_like(u, shape=(u.shape[2], b.shape[-1], u.shape[0], u.shape[-1]))
    _, (states, y) = lax.scan(row, zeros, _by_cells(u, delta_t, delta_l, b, c))
    return y.transpose(2, 0, 1, 3), states


def _forward(*arguments):
    y, states = _run(*arguments, keep=True)
    return y, (*arguments, states)


def _backward(saved, cotangent):
    *cells, a_t, a_l, states = saved
    height, width = states.shape[:2]
    zeros = jnp.zeros_like(states[0, 0])
    a_t = a_t.T[:, None]
    a_l = a_l.T[:, None]

    # A product with ones is faster than a sum over the fastest axis.
    ones = jnp.ones(zeros.shape[-1], zeros.dtype)
    over_channels = partial(jnp.matmul, b=ones, precision=HIGHEST)

    def cell(carry, inputs):
        """Backwards: `to_left` is what flows to the cell on the left, `below` what comes from the one below."""
        to_left, grad_a_t, grad_a_l = carry
        below, i, j, u, delta_t, delta_l, b, c, weight_t, weight_l, out = inputs
        # In the first row and column, where there is no such cell, zeros: the first by its weight.
        above = states[jnp.maximum(i - 1, 0), j]
        left = jnp.where(j > 0, states[i, jnp.maximum(j - 1, 0)], 0)
        g = c[..., None] * out + below + to_left
        to_above = weight_t * jnp.exp(delta_t * a_t) * g
        to_left = weight_l * jnp.exp(delta_l * a_l) * g
        log_t = to_above * above  # gradients of the decays' logarithms
        log_l = to_left * left
        mixed = weight_t * delta_t + weight_l * delta_l
        source = _over_states(b[..., None], g)
        grads = (
            mixed * source,
            _over_states(a_t, log_t) + weight_t * u * source,
            _over_states(a_l, log_l) + weight_l * u * source,
            over_channels(g * (u * mixed)),
            over_channels(states[i, j] * out),
        )
        return (to_left, grad_a_t + delta_t * log_t, grad_a_l + delta_l * log_l), (to_above, grads)

    def row(carry, inputs):
        below, *grad_a = carry
        (_, *grad_a), (below, grads) = lax.scan(cell, (zeros, *grad_a), (below, *inputs), reverse=True)
        return (below, *grad_a), grads

    places = jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij")
    start = jnp.zeros_like(zeros, shape=(width, *zeros.shape)), zeros, zeros
    inputs = *places, *_by_cells(*cells), cotangent.transpose(1, 2, 0, 3)
    (_, *grad_a), grads = lax.scan(row, start, inputs, reverse=True)
    wide = [grad.transpose(2, 0, 1, 3) for grad in grads[:3]]
    thin = [grad.transpose(3, 0, 1, 2) for grad in grads[3:]]
    return *wide, *thin, *(grad.sum(1).T for grad in grad_a)


_rows.defvjp(_forward, _backward)
