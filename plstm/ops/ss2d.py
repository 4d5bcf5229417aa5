"""The selective scan of 2DMamba (Zhang et al., 2024): along the rows, then down the columns, with one set of decays."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from plstm.ops.common import accumulation_dtype, add_up, check_axes, check_choice, public_operator

METHODS = ("scans", "recurrent")


@public_operator
def ss2d(u: Array, delta: Array, a: Array, b: Array, c: Array, *, method: str = "scans") -> Array:
    """u, delta [..., H, W, e], a < 0 [e, N], b, c [..., H, W, N] -> [..., H, W, e] in u's dtype: at cell (i, j), the
    sum over N of c h with

        g[i, j] = exp(delta a) g[i, j-1] + delta b u          h[i, j] = exp(delta a) h[i-1, j] + g[i, j]

    States and decays are float32 or more. "recurrent" is the definition, cell by cell; "scans" steps through all rows
    at once and then through all columns, with gradients by hand, in reverse mode only.
    Raises ValueError where shapes disagree, an axis that is named is empty or the method is unknown.
    """
    check_choice("method", method, METHODS)
    check_axes("u, delta [..., H, W, e]; b, c [..., H, W, N]; a [e, N]", u, delta, b, c, a)
    dtype = accumulation_dtype(u, delta, a, b, c)

    def by_cells(x: Array) -> Array:
        return lax.collapse(x.astype(dtype), 0, -3).transpose(1, 2, 0, 3)

    run = _scans if method == "scans" else _recurrent
    y = run(by_cells(u), by_cells(delta), by_cells(b), by_cells(c), a.astype(dtype))
    return y.transpose(2, 0, 1, 3).reshape(u.shape).astype(u.dtype)


def _recurrent(u: Array, delta: Array, b: Array, c: Array, a: Array) -> Array:
    """u, delta [H, W, B, e], b, c [H, W, B, N], a [e, N] -> [H, W, B, e], by the definition."""

    def cell(left: Array, inputs) -> tuple[Array, tuple[Array, Array]]:
        above, u, delta, b, c = inputs
        decay = jnp.exp(delta[..., None] * a)
        g = decay * left + (delta * u)[..., None] * b[..., None, :]
        h = decay * above + g
        return g, (h, (c[..., None, :] * h).sum(-1))

    def row(above: Array, inputs) -> tuple[Array, Array]:
        return lax.scan(cell, jnp.zeros_like(above[0]), (above, *inputs))[1]

    start = jnp.zeros_like(u, shape=(*u.shape[1:], a.shape[1]))
    return lax.scan(row, start, (u, delta, b, c))[1]


def _scans(u: Array, delta: Array, b: Array, c: Array, a: Array) -> Array:
    """As `_recurrent`. Each state by itself: the few there are share nothing, and so the arrays stay [H, W, B, e]."""

    def of_state(n: int) -> Array:
        decay = jnp.exp(delta * a[:, n])
        new = delta * u * b[..., n, None]
        g = _recurrence(decay.swapaxes(0, 1), new.swapaxes(0, 1)).swapaxes(0, 1)
        return c[..., n, None] * _recurrence(decay, g)

    return add_up(of_state(n) for n in range(a.shape[1]))


@jax.custom_vjp
def _recurrence(a: Array, x: Array) -> Array:
    """y[t] = a[t] y[t - 1] + x[t] from zero, along axis 0 of two arrays of one shape."""

    def step(y, inputs):
        a, x = inputs
        return (a * y + x,) * 2

    return lax.scan(step, jnp.zeros_like(x[0]), (a, x))[1]


def _forward(a: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
    y = _recurrence(a, x)
    return y, (a, y)


def _backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    """The same recurrence backwards, with the decays of the step after."""
    a, y = saved

    def step(carried, inputs):
        a, cotangent = inputs
        total = carried + cotangent
        return a * total, total

    _, to_x = lax.scan(step, jnp.zeros_like(y[0]), (a, cotangent), reverse=True)
    before = jnp.concatenate([jnp.zeros_like(y[:1]), y[:-1]])
    return to_x * before, to_x


_recurrence.defvjp(_forward, _backward)
