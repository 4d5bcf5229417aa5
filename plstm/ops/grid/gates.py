"""The gates of a 2-D grid, what a caller may promise about them, and their four directions.

A node (y, x) has a left and an upper incoming edge, a right and a lower outgoing edge: the right-down direction. The
other three are mirror images, with gates of their own. A `structure` is a promise about the transitions that saves
work: "general": none. "shared_incoming" (P-mode, Equation 5): both incoming edges share their gates, t_rl = t_ru,
t_dl = t_du and m_l = m_u, and t_ru, t_du and m_u are not read. "d_mode": t_ru = 0, not read.
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

STRUCTURES = ("general", "shared_incoming", "d_mode")


class GridGates(NamedTuple):
    """Gates of the nodes, each [..., 4, Y, X] in image coordinates (not mirrored). Axis -3 holds the directions
    right-down, left-down, right-up, left-up. Names are those of the right-down direction: in a "left-..." one the right
    edge of a node is the one that leads left, in a "...-up" one the lower leads up."""

    s_r: Array  # source -> right edge
    s_d: Array  # source -> lower edge
    t_rl: Array  # left edge -> right edge
    t_ru: Array  # upper edge -> right edge
    t_dl: Array  # left edge -> lower edge
    t_du: Array  # upper edge -> lower edge
    m_l: Array  # left edge -> mark
    m_u: Array  # upper edge -> mark


GATE_AXES = f"{', '.join(GridGates._fields)} [..., 4, Y, X]"  # for `plstm.ops.common.check_axes`


def fill_unread(gates: GridGates, structure: str) -> GridGates:
    """Gates with those that their structure does not read set to what it promises."""
    if structure == "shared_incoming":
        return gates._replace(t_ru=gates.t_rl, t_du=gates.t_dl, m_u=gates.m_l)
    return gates._replace(t_ru=jnp.zeros_like(gates.t_rl)) if structure == "d_mode" else gates


def mirror(directions: Iterable[Array], rows: tuple[int, ...], columns: tuple[int, ...]) -> list[Array]:
    """Arrays of the four directions, each mirrored along its axes of rows and columns: to right-down, or back."""
    flipped_axes = ((), columns, rows, rows + columns)
    return [jnp.flip(array, axes) for array, axes in zip(directions, flipped_axes, strict=True)]


def mirror_gates(gates: GridGates) -> GridGates:
    """The gates of each direction in its own, mirrored coordinates, or back."""
    return GridGates(*(jnp.stack(mirror(jnp.moveaxis(gate, -3, 0), (-2,), (-1,)), axis=-3) for gate in gates))
