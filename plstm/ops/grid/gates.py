"""The gates of a grid, and its four directions: mirror images, each of which reads as right-down."""

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


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


def mirror(parts: Iterable[Array], rows: tuple[int, ...], columns: tuple[int, ...]) -> list[Array]:
    """The parts of the four directions, each mirrored along its axes of rows and columns: to right-down, or back."""
    return [jnp.flip(part, axes) for part, axes in zip(parts, ((), columns, rows, rows + columns), strict=True)]


def mirror_gates(gates: GridGates) -> GridGates:
    """The gates of each direction in its own, mirrored coordinates, or back."""
    return GridGates(*(jnp.stack(mirror(jnp.moveaxis(gate, -3, 0), (-2,), (-1,)), axis=-3) for gate in gates))


def fill_unread(gates: GridGates, structure: str) -> GridGates:
    """Gates with those that their structure does not read set to what it promises, see `plstm.ops.grid`."""
    if structure == "rank_one":
        return gates._replace(t_ru=gates.t_rl, t_du=gates.t_dl, m_u=gates.m_l)
    return gates._replace(t_ru=jnp.zeros_like(gates.t_rl)) if structure == "no_ru" else gates


def pass_node(g: GridGates, left: Array, up: Array, structure: str) -> tuple[Array, Array, Array]:
    """What a node marks, and passes on to its right and its lower edge, from its left and its upper edge's states
    (Equations 1 and 2 without the node's own source). g: the node's gates, of shapes that broadcast with the states.
    """
    if structure == "rank_one":
        both = left + up
        return g.m_l * both, g.t_rl * both, g.t_dl * both
    marked, right, down = g.m_l * left + g.m_u * up, g.t_rl * left, g.t_dl * left + g.t_du * up
    return marked, right if structure == "no_ru" else right + g.t_ru * up, down
