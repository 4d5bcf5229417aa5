"""The quad-tree of Appendix D.3, its misprints corrected, against the form that merges two blocks at a time.

Gates have the names of `GridGates`, here of square blocks: a source is [nodes, edges out], a transition [edges in,
edges out], a mark [edges in, nodes]. One level merges the blocks a, b (above) and c, d (below). Of the new block's
edges along a side, the upper or left half comes first.
"""

import functools

import jax
import numpy as np
import pytest

from plstm.ops.grid import GridGates, gating_matrix

from .comparing import draw_gates


def merge(a, b, c, d) -> GridGates:
    """Equations 16 to 24."""
    none = np.zeros_like(a.s_r)
    s_r = [  # 16, 17
        [a.s_r @ b.t_rl, a.s_r @ b.t_dl @ d.t_ru + a.s_d @ c.t_ru @ d.t_rl],
        [b.s_r, b.s_d @ d.t_ru],
        [none, c.s_r @ d.t_rl],
        [none, d.s_r],
    ]
    s_d = [  # 18
        [a.s_d @ c.t_du, a.s_r @ b.t_dl @ d.t_du + a.s_d @ c.t_ru @ d.t_dl],
        [none, b.s_d @ d.t_du],
        [c.s_d, c.s_r @ d.t_dl],
        [none, d.s_d],
    ]
    none = np.zeros_like(a.t_rl)
    lower = a.t_dl @ c.t_ru @ d.t_rl + a.t_rl @ b.t_dl @ d.t_ru
    t_rl = [[a.t_rl @ b.t_rl, lower], [none, c.t_rl @ d.t_rl]]  # 19
    right = a.t_du @ c.t_ru @ d.t_dl + a.t_ru @ b.t_dl @ d.t_du
    t_du = [[a.t_du @ c.t_du, right], [none, b.t_du @ d.t_du]]  # 20
    lower = a.t_ru @ b.t_dl @ d.t_ru + a.t_du @ c.t_ru @ d.t_rl
    t_ru = [[a.t_ru @ b.t_rl, lower], [b.t_ru, b.t_du @ d.t_ru]]  # 21
    right = a.t_dl @ c.t_ru @ d.t_dl + a.t_rl @ b.t_dl @ d.t_du
    t_dl = [[a.t_dl @ c.t_du, right], [c.t_dl, c.t_rl @ d.t_dl]]  # 22
    none = np.zeros_like(a.m_l)
    far = a.t_dl @ c.t_ru @ d.m_l + a.t_rl @ b.t_dl @ d.m_u
    m_l = [[a.m_l, a.t_rl @ b.m_l, a.t_dl @ c.m_u, far], [none, none, c.m_l, c.t_rl @ d.m_l]]  # 23
    far = a.t_ru @ b.t_dl @ d.m_u + a.t_du @ c.t_ru @ d.m_l
    m_u = [[a.m_u, a.t_ru @ b.m_l, a.t_du @ c.m_u, far], [none, b.m_u, none, b.t_du @ d.m_u]]  # 24
    return GridGates(*map(np.block, (s_r, s_d, t_rl, t_ru, t_dl, t_du, m_l, m_u)))


def merge_gating(gating, a, b, c, d) -> np.ndarray:
    """[nodes, nodes], source, then target; gating: of the four blocks."""
    none = np.zeros_like(gating[0])
    far = a.s_r @ b.t_dl @ d.m_u + a.s_d @ c.t_ru @ d.m_l
    return np.block(
        [
            [gating[0], a.s_r @ b.m_l, a.s_d @ c.m_u, far],
            [none, gating[1], none, b.s_d @ d.m_u],
            [none, none, gating[2], c.s_r @ d.m_l],
            [none, none, none, gating[3]],
        ]
    )


def quarters(blocks: np.ndarray) -> list[np.ndarray]:
    """[Y, X, ...] -> the upper left, upper right, lower left and lower right of each 2 x 2 blocks."""
    return [blocks[y::2, x::2] for y in (0, 1) for x in (0, 1)]


@pytest.mark.parametrize("size", [2, 8])
def test_merging_blocks_gives_the_whole(x64, size):
    one_direction = (np.arange(4) == 0)[:, None, None]
    gates = draw_gates(size, size)
    gates_of_one = gates._replace(s_r=gates.s_r * one_direction, s_d=gates.s_d * one_direction)
    expected = jax.jit(functools.partial(gating_matrix, form="hierarchical"))(gates_of_one)
    blocks = GridGates(*(np.asarray(gate)[0, ..., None, None] for gate in gates))
    nodes = np.arange(size**2).reshape(size, size, 1)
    gating = np.zeros((size, size, 1, 1))
    levels = 0
    while len(gating) > 1:
        parts = [GridGates(*gates) for gates in zip(*map(quarters, blocks), strict=True)]
        gating = merge_gating(quarters(gating), *parts)
        blocks = merge(*parts)
        nodes = np.concatenate(quarters(nodes), axis=-1)
        levels += 1
    assert 2**levels == size
    order = np.argsort(nodes[0, 0])
    np.testing.assert_allclose(gating[0, 0][order][:, order], expected.reshape(2 * [size**2]), rtol=1e-12, atol=1e-12)
