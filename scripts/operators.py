"""What benchmarks of the 2-D operator share: inputs, the step that is timed, and the quad-tree to compare with."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from plstm.ops.grid import GridGates
from scripts import quadtree


def quadtree_plstm2d(q, k, v, gates, direct):
    """`plstm2d` with the gating matrix by quad-tree; what follows the matrix is the same."""
    *lead, height, width, key_dim = q.shape
    nodes = height * width
    weights = quadtree.gating_matrix(gates).reshape(*lead, nodes, nodes)
    weights += direct.reshape(*lead, nodes, 1) * jnp.eye(nodes)
    q, k, v = (tensor.reshape(*lead, nodes, -1) for tensor in (q, k, v))
    weights *= jnp.einsum("...ak,...bk->...ab", k, q) * key_dim**-0.5
    return jnp.einsum("...ab,...av->...bv", weights, v).reshape(*lead, height, width, -1)


def draw_operator_inputs(structure: str, grid: int, batch: int, heads: int, dim: int) -> tuple:
    """q, k, v, gates, direct and the output's cotangent, float32, with transitions near criticality."""
    keys = iter(jax.random.split(jax.random.key(0), 16))
    lead, shape = (batch, heads, grid, grid), (batch, heads, 4, grid, grid)
    q, k, v, cotangent = (jax.random.normal(next(keys), (*lead, dim)) for _ in range(4))
    decay_l, decay_u = jax.random.uniform(next(keys), (2, *shape), minval=0.9)
    angle_l, angle_u = jax.random.uniform(next(keys), (2, *shape))
    s_r, s_d, m_l, m_u = jax.random.uniform(next(keys), (4, *shape))
    transitions = {  # t_rl, t_ru, t_dl, t_du
        "general": (decay_l * angle_l, decay_u * angle_u, decay_l * (1 - angle_l), decay_u * (1 - angle_u)),
        "rank_one": (decay_l * angle_l, decay_l * angle_l, decay_l * (1 - angle_l), decay_l * (1 - angle_l)),
        "no_ru": (decay_l, jnp.zeros(shape), decay_l, decay_u),
    }[structure]
    gates = GridGates(s_r, s_d, *transitions, m_l, m_l if structure == "rank_one" else m_u)
    return q, k, v, gates, jax.random.uniform(next(keys), lead), cotangent


def gradient_step(operator: Callable) -> Callable:
    """Output and gradients of every argument: one forward and one backward pass."""

    def step(q, k, v, gates, direct, cotangent):
        output, backward = jax.vjp(operator, q, k, v, gates, direct)
        return output, backward(cotangent)

    return step
