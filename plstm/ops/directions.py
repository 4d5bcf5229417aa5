"""The gates of a grid and its four directions: mirror images, each of which reads as right-down."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class GridGates(NamedTuple):
    """Gates of the nodes, each [..., 4, Y, X] in image coordinates (not mirrored).

    Axis -3 holds the directions right-down, left-down, right-up, left-up. Names are those of the right-down direction:
    in a "left-..." direction the right edge of a node is the one that leads left, in a "...-up" direction the lower
    edge is the one that leads up. `t_ru` is the transition to the outgoing right edge from the incoming upper edge.
    """

    s_r: jax.Array  # source -> right edge
    s_d: jax.Array  # source -> lower edge
    t_rl: jax.Array  # left edge -> right edge
    t_ru: jax.Array  # upper edge -> right edge
    t_dl: jax.Array  # left edge -> lower edge
    t_du: jax.Array  # upper edge -> lower edge
    m_l: jax.Array  # left edge -> mark
    m_u: jax.Array  # upper edge -> mark


def mirror(tensor: jax.Array, axis: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> list[jax.Array]:
    """The four directions along `axis`, each turned into right-down, or back.

    rows, columns: the axes to mirror, counted without `axis`.
    """
    parts = jnp.moveaxis(tensor, axis, 0)
    return [jnp.flip(part, mirrored_axes(n, rows, columns)) for n, part in enumerate(parts)]


def mirrored_axes(direction: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the axes along rows and columns that a direction (0 to 3) mirrors."""
    return ((), columns, rows, rows + columns)[direction]


def mirror_gates(gates: GridGates, dtype) -> GridGates:
    """The gates of each direction in its own, mirrored coordinates, or back."""
    return GridGates(*(jnp.stack(mirror(gate.astype(dtype), -3, (-2,), (-1,)), axis=-3) for gate in gates))


def pass_node(g: GridGates, left: jax.Array, up: jax.Array, structure: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What a node makes of its incoming edges: what it marks, and what it sends right and down (Equations 1 and 2).

    g: its gates, of shapes that broadcast with the edges' states. Its own source is not in it.
    """
    if structure == "rank_one":
        both = left + up
        return g.m_l * both, g.t_rl * both, g.t_dl * both
    marked, right, down = g.m_l * left + g.m_u * up, g.t_rl * left, g.t_dl * left + g.t_du * up
    return marked, right if structure == "no_ru" else right + g.t_ru * up, down
