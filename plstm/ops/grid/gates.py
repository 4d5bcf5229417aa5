"""The gates of a grid, and its four directions: mirror images, each of which reads as right-down."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class GridGates(NamedTuple):
    """Gates of the nodes, each [..., 4, Y, X] in image coordinates (not mirrored).

    Axis -3 holds the directions right-down, left-down, right-up, left-up. Names are those of the right-down direction:
    in a "left-..." direction the right edge of a node is the one that leads left, in a "...-up" direction the lower
    edge is the one that leads up. `t_ru` is the transition to the outgoing right edge from the incoming upper edge.
    """

    s_r: Array  # source -> right edge
    s_d: Array  # source -> lower edge
    t_rl: Array  # left edge -> right edge
    t_ru: Array  # upper edge -> right edge
    t_dl: Array  # left edge -> lower edge
    t_du: Array  # upper edge -> lower edge
    m_l: Array  # left edge -> mark
    m_u: Array  # upper edge -> mark


def mirrored_axes(direction: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the axes along rows and columns that a direction (0 to 3) mirrors."""
    return ((), columns, rows, rows + columns)[direction]


def mirror(tensor: Array, axis: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> list[Array]:
    """The four directions along `axis`, each mirrored to read as right-down, or back.

    rows, columns: the axes to mirror, counted without `axis`.
    """
    parts = jnp.moveaxis(tensor, axis, 0)
    return [jnp.flip(part, mirrored_axes(n, rows, columns)) for n, part in enumerate(parts)]


def mirror_gates(gates: GridGates) -> GridGates:
    """The gates of each direction in its own, mirrored coordinates, or back."""
    return GridGates(*(jnp.stack(mirror(gate, -3, (-2,), (-1,)), axis=-3) for gate in gates))


def fill_unread(gates: GridGates, structure: str) -> GridGates:
    """Gates with those that their structure does not read set to what it promises, see `plstm.ops.grid`."""
    if structure == "rank_one":
        return gates._replace(t_ru=gates.t_rl, t_du=gates.t_dl, m_u=gates.m_l)
    return gates._replace(t_ru=jnp.zeros_like(gates.t_rl)) if structure == "no_ru" else gates


def pass_node(g: GridGates, left: Array, up: Array, structure: str) -> tuple[Array, Array, Array]:
    """What a node marks, and what it passes on to its right and its lower edge, from the states of its left and its
    upper edge (Equations 1 and 2 without the node's own source).

    g: the node's gates, of shapes that broadcast with the states.
    """
    if structure == "rank_one":
        both = left + up
        return g.m_l * both, g.t_rl * both, g.t_dl * both
    marked, right, down = g.m_l * left + g.m_u * up, g.t_rl * left, g.t_dl * left + g.t_du * up
    return marked, right if structure == "no_ru" else right + g.t_ru * up, down
