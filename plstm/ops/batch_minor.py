"""Gating matrices for CPUs, with the batch along the fastest axis of memory.

XLA's CPU backend computes along the fastest axis in vectors, adds up slices of it fast and anything else slowly, and
picks the layout of a loop's state by what reads it last. So here every operation is elementwise over [..., batch] with
the layout held in place, sums are written out slice by slice, and gradients by hand. For small grids in large batches
this is several times faster than the forms of `plstm.ops.grid`, which it equals. Reverse-mode derivatives only.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from plstm.ops.directions import GridGates, mirror, mirrored_axes


def rank_one(gates: GridGates) -> jax.Array:
    """G for P-mode; gates mirrored, [..., 4, Y, X], of which t_ru, t_du and m_u are not read.

    Returns [..., N, N], target rows and source columns in image coordinates, directions summed.
    """
    height, width = gates.s_r.shape[-2:]
    used = (gates.s_r, gates.s_d, gates.t_rl, gates.t_dl, gates.m_l)
    matrix = _rank_one((height, width), *(_batch_minor(gate).reshape(4, height * width, -1) for gate in used))
    return _batch_major(matrix, gates)


def single_path(gates: GridGates) -> jax.Array:
    """G for D-mode (t_ru = 0, not read); arguments and result as for `rank_one`.

    A path runs along its row, turns once, and runs down its column: see `plstm.ops.grid._single_path`.
    """
    height, width = gates.s_r.shape[-2:]
    g = GridGates(*map(_batch_minor, gates))
    along = g.s_r[:, :, :, None] * _segment_products(g.t_rl)  # [4, y, x, x', batch]
    turned = jnp.eye(width, dtype=along.dtype)[..., None] * g.s_d[:, :, :, None] + along * g.t_dl[:, :, None]
    within_row = along * g.m_l[:, :, None]
    down = _segment_products(g.t_du.swapaxes(1, 2)) * g.m_u.swapaxes(1, 2)[:, :, None]  # [4, x', y, y', batch]
    turned = jnp.stack(mirror(turned, 0, rows=(0,), columns=(1, 2))).transpose(0, 3, 1, 2, 4)  # [4, x', y, x, batch]
    within_row = sum(mirror(within_row, 0, rows=(0,), columns=(1, 2))).transpose(2, 0, 1, 3)  # [x', y, x, batch]
    down = jnp.stack(mirror(down, 0, rows=(1, 2), columns=(0,))).transpose(0, 3, 1, 2, 4)  # [4, y', x', y, batch]
    matrix = _in_place(_turn_once(_in_place(down), _in_place(turned), _in_place(within_row)))
    return _batch_major(matrix.reshape(height * width, height * width, -1), gates)


def _segment_products(transition: jax.Array) -> jax.Array:
    """`plstm.ops.sequence.segment_products` along axis -2: [..., T, batch] -> [..., T, T, batch]."""
    start = jnp.arange(transition.shape[-2])[:, None]
    passed = jnp.moveaxis(transition, -2, 0)[:-1, ..., None, :]

    def extend(column, node):
        n, passed = node
        column = jnp.where(start == n, 1, column * passed)
        return column, column

    first = jnp.zeros_like(transition)
    _, columns = lax.scan(extend, first, (jnp.arange(len(passed)), passed))
    return jnp.moveaxis(jnp.concatenate([first[None], columns]), 0, -2)


@jax.custom_vjp
def _turn_once(down: jax.Array, turned: jax.Array, within_row: jax.Array) -> jax.Array:
    """down [4, y', x', y, batch] times turned [4, x', y, x, batch], summed over directions, plus within_row
    [x', y, x, batch] where y' = y: [y', x', y, x, batch]."""
    same_row = jnp.eye(down.shape[1], dtype=down.dtype)[:, None, :, None, None]
    return sum(down[n, :, :, :, None] * turned[n] for n in range(4)) + same_row * within_row


def _turn_once_forward(down, turned, within_row):
    return _turn_once(down, turned, within_row), (down, turned)


def _turn_once_backward(saved, cotangent):
    down, turned = saved
    cotangent = _in_place(cotangent)
    rows, columns = range(cotangent.shape[0]), range(cotangent.shape[3])
    d_down = [sum(cotangent[..., x, :] * turned[n, ..., x, :] for x in columns) for n in range(4)]
    d_turned = [sum(cotangent[y] * down[n, y, :, :, None] for y in rows) for n in range(4)]
    d_within_row = [cotangent[y, :, y] for y in rows]
    return jnp.stack(d_down), jnp.stack(d_turned), jnp.stack(d_within_row, axis=1)


_turn_once.defvjp(_turn_once_forward, _turn_once_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rank_one(grid: tuple[int, int], s_r, s_d, t_r, t_d, m) -> jax.Array:
    """G [N target, N source, batch] of gates [4, N, batch], mirrored.

    With h = left + up, the weight that reaches a node from every source, a direction is one linear recurrence,
    h[y, x] = t_r[y, x-1] h[y, x-1] + t_d[y-1, x] h[y-1, x], plus what the source itself emits; then G = m h.
    """
    return _rank_one_forward(grid, s_r, s_d, t_r, t_d, m)[0]


def _rank_one_forward(grid, s_r, s_d, t_r, t_d, m):
    nodes, width = grid[0] * grid[1], grid[1]
    s_r, t_r = (_without_last_column(gate, width) for gate in (s_r, t_r))
    sources = jnp.asarray(_image_numbers(grid))
    every = jnp.arange(nodes)

    def emitted(n, gate):  # by the node, which is its own source: [4, source, batch]
        return jnp.where((sources[:, n, None] == every)[..., None], gate[:, n, None], 0)

    def visit(n, h):  # h[n + width] is node n; the first `width` rows stay zero, as the edges into the grid
        before, above = jnp.maximum(n - 1, 0), jnp.maximum(n - width, 0)
        left = t_r[:, before, None] * _node(h, n + width - 1) + jnp.where(n > 0, emitted(before, s_r), 0)
        up = t_d[:, above, None] * _node(h, n) + jnp.where(n >= width, emitted(above, s_d), 0)
        return lax.dynamic_update_index_in_dim(h, left + up, n + width, 0)

    empty = jnp.zeros((nodes + width, 4, nodes, m.shape[-1]), m.dtype)
    h = lax.fori_loop(0, nodes, visit, empty)[width:]
    marked = (_mirror_nodes(m[n][:, None] * h[:, n], grid, n) for n in range(4))
    return _in_place(sum(marked)), (h, t_r, t_d, m)


def _rank_one_backward(grid, saved, cotangent):
    h, t_r, t_d, m = saved
    cotangent = _in_place(cotangent)
    nodes, width = grid[0] * grid[1], grid[1]
    targets = jnp.asarray(_image_numbers(grid))

    def visit(step, d_h):
        n = nodes - 1 - step
        d_marked = jnp.stack([_node(cotangent, targets[direction, n]) for direction in range(4)])
        passed_on = t_r[:, n, None] * _node(d_h, n + 1) + t_d[:, n, None] * _node(d_h, n + width)
        return lax.dynamic_update_index_in_dim(d_h, m[:, n, None] * d_marked + passed_on, n, 0)

    d_h = lax.fori_loop(0, nodes, visit, jnp.zeros((nodes + width, *h.shape[1:]), h.dtype))
    right, down = d_h[1 : nodes + 1], d_h[width:]  # what leaves a node by its right and its lower edge
    d_m = [_sum_sources(h[:, n] * _mirror_nodes(cotangent, grid, n), grid) for n in range(4)]
    d_t_r, d_t_d = (_sum_sources(h * edge, grid).swapaxes(0, 1) for edge in (right, down))
    direction, node = jnp.arange(4)[:, None], jnp.arange(nodes)
    d_s_r, d_s_d = d_h[node + 1, direction, targets], d_h[node + width, direction, targets]
    d_s_r, d_t_r = (_without_last_column(gradient, width) for gradient in (d_s_r, d_t_r))
    return d_s_r, d_s_d, d_t_r, d_t_d, jnp.stack(d_m)


_rank_one.defvjp(_rank_one_forward, _rank_one_backward)


def _node(tensor: jax.Array, n: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(tensor, n, 0, keepdims=False)


def _image_numbers(grid: tuple[int, int]) -> np.ndarray:
    """The image's number of every mirrored node: [4, N]."""
    numbers = np.arange(grid[0] * grid[1]).reshape(grid)
    return np.stack([np.flip(numbers, mirrored_axes(n, (0,), (1,))).reshape(-1) for n in range(4)])


def _mirror_nodes(tensor: jax.Array, grid: tuple[int, int], direction: int) -> jax.Array:
    """[N, ...], the nodes of one direction mirrored, or back."""
    on_grid = tensor.reshape(*grid, *tensor.shape[1:])
    return jnp.flip(on_grid, mirrored_axes(direction, (0,), (1,))).reshape(tensor.shape)


def _without_last_column(gate: jax.Array, width: int) -> jax.Array:
    """[4, N, batch] with zeros at the last node of each row, whose right edge leads out of the grid."""
    is_last = jnp.arange(gate.shape[1]) % width == width - 1
    return jnp.where(is_last[:, None], 0, gate)


def _sum_sources(tensor: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """[..., N source, batch] -> [..., batch], slice by slice."""
    tensor = tensor.reshape(*tensor.shape[:-2], *grid, tensor.shape[-1])
    rows = sum(tensor[..., y, :, :] for y in range(grid[0]))
    return sum(rows[..., x, :] for x in range(grid[1]))


def _batch_minor(gate: jax.Array) -> jax.Array:
    """[..., 4, Y, X] -> [4, Y, X, batch]."""
    return _in_place(jnp.moveaxis(gate.reshape(-1, *gate.shape[-3:]), 0, -1))


def _batch_major(matrix: jax.Array, gates: GridGates) -> jax.Array:
    """[N, N, batch] -> [..., N, N] for gates [..., 4, Y, X]."""
    return jnp.moveaxis(_in_place(matrix), -1, 0).reshape(*gates.s_r.shape[:-3], *matrix.shape[:2])


def _in_place(tensor: jax.Array) -> jax.Array:
    """Holds the layout: XLA would turn a transposition next to a loop into another layout of the loop's state."""
    return with_layout_constraint(tensor, Layout(major_to_minor=tuple(range(tensor.ndim))))
