"""Identities of Appendices D and F that the operators rest on, read off the fast forms."""

import functools
from math import comb, pi

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.grid import GridGates, gating_matrix, plstm2d
from plstm.ops.sequence import SequenceGates, plstm1d

from .comparing import draw_gates

gating_matrix = functools.partial(jax.jit, static_argnames=("structure", "form"))(gating_matrix)
RIGHT_DOWN, LEFT_DOWN, RIGHT_UP, LEFT_UP = range(4)


def constant_gates(height, width, directions=(RIGHT_DOWN,), **values):
    """Gates of one value everywhere, 1 where not given; sources only in the named directions."""
    active = np.isin(np.arange(4), directions)[:, None, None]
    values = {name: np.full((4, height, width), values.get(name, 1.0)) for name in GridGates._fields}
    values |= {name: values[name] * active for name in ("s_r", "s_d")}
    return GridGates(**jax.tree.map(jnp.asarray, values))


def p_mode(height, width, alpha, **options):
    """Equation 5 at criticality: gamma = 1, full sources and marks."""
    to_right = dict.fromkeys(("s_r", "t_rl", "t_ru"), alpha)
    to_down = dict.fromkeys(("s_d", "t_dl", "t_du"), 1 - alpha)
    return constant_gates(height, width, **to_right, **to_down, **options)


def test_a_pair_in_different_rows_and_columns_is_reached_by_exactly_one_direction(x64):
    """Section 3.3.1: the four DAGs cover the grid; along a row or column two of them coincide."""
    reached = sum(np.asarray(gating_matrix(constant_gates(3, 4, (n,)))) != 0 for n in range(4))
    y, x, target_y, target_x = np.indices(reached.shape)
    same_row, same_column = y == target_y, x == target_x
    np.testing.assert_array_equal(reached, np.where(same_row & same_column, 0, np.where(same_row | same_column, 2, 1)))


def test_with_all_gates_open_a_node_receives_one_for_every_path(x64):
    """Equation 35; in D-mode there is one path to every node (Section 3.3.1)."""
    received = np.asarray(gating_matrix(constant_gates(12, 12))[0, 0])
    expected = np.array([[comb(x + y, x) for x in range(12)] for y in range(12)])
    expected[0, 0] = 0  # the node itself
    np.testing.assert_array_equal(received, expected)
    assert received[11, 11] == 705_432
    beta = 0.5
    per_step = beta**-beta * (1 - beta) ** -(1 - beta)
    assert received[11, 11] == pytest.approx(per_step**22 / (2 * pi * 22 * beta * (1 - beta)) ** 0.5, rel=0.02)
    np.testing.assert_array_equal(gating_matrix(constant_gates(12, 12, t_ru=0.0))[0, 0], expected > 0)


def test_p_mode_at_a_constant_angle_is_binomial(x64):
    """Equation 36, with its conserved sum along the diagonals, its maximum at the angle of Equation 37, and that of
    Equation 38."""
    alpha = 0.3
    received = np.asarray(gating_matrix(p_mode(11, 11, alpha), structure="shared_incoming")[0, 0])
    expected = [[comb(x + y, x) * alpha**x * (1 - alpha) ** y for x in range(11)] for y in range(11)]
    expected[0][0] = 0
    np.testing.assert_allclose(received, expected, rtol=1e-12)
    for length in range(1, 11):
        diagonal = [received[length - x, x] for x in range(length + 1)]
        assert sum(diagonal) == pytest.approx(1, rel=1e-12)
    assert np.argmax(diagonal) / length == pytest.approx(alpha)
    assert max(diagonal) == pytest.approx((2 * pi * alpha * (1 - alpha) * length) ** -0.5, rel=0.04)


@pytest.mark.parametrize("form", ["row_transfer", "source_scan"])
def test_column_sums_up_to_one_bound_the_signal(x64, form):
    """Equations 4 and 30: what a node sends never exceeds 1 in total on any later diagonal, whatever the signs."""
    gates, shape = draw_gates(10, 10), (4, 10, 10)
    norm_left, norm_up = abs(gates.t_rl) + abs(gates.t_dl), abs(gates.t_ru) + abs(gates.t_du)
    norm_source = abs(gates.s_r) + abs(gates.s_d)
    one_direction = (jnp.arange(4) == RIGHT_DOWN)[:, None, None]
    normalised = GridGates(
        s_r=gates.s_r / norm_source * one_direction,
        s_d=gates.s_d / norm_source * one_direction,
        t_rl=gates.t_rl / norm_left,
        t_dl=gates.t_dl / norm_left,
        t_ru=gates.t_ru / norm_up,
        t_du=gates.t_du / norm_up,
        m_l=jnp.ones(shape),
        m_u=jnp.ones(shape),
    )

    def largest_total(gates):
        received = np.abs(gating_matrix(gates, form=form))
        length = np.add.outer(np.arange(10), np.arange(10))
        return max(received[..., length == diagonal].sum(-1).max() for diagonal in range(19))

    assert largest_total(normalised) <= 1 + 1e-12
    transitions = {name: 1.3 * abs(gate) for name, gate in normalised._asdict().items() if name.startswith("t_")}
    sources = {name: abs(gate) for name, gate in normalised._asdict().items() if name.startswith("s_")}
    assert largest_total(normalised._replace(**transitions, **sources)) > 10  # the bound needs its premise


@pytest.mark.parametrize("line", ["row", "column"])
def test_a_single_row_or_column_is_a_sequence_run_both_ways(x64, line):
    """Section 3.3: two of the four directions run forward along the line, two backward."""
    rng = np.random.default_rng(0)
    gates = draw_gates(*((1, 6) if line == "row" else (6, 1)))
    arguments = {name: jnp.asarray(rng.normal(size=(6, 3))) for name in "qkv"}
    direct = jnp.asarray(rng.normal(size=6))

    names = {"row": ("s_r", "t_rl", "m_l"), "column": ("s_d", "t_du", "m_u")}[line]
    backward = {"row": (LEFT_DOWN, LEFT_UP), "column": (RIGHT_UP, LEFT_UP)}[line]
    expected = direct[:, None] * (arguments["q"] * arguments["k"]).sum(-1, keepdims=True) * 3**-0.5 * arguments["v"]
    for direction in range(4):
        step = -1 if direction in backward else 1
        sequence = SequenceGates(*(getattr(gates, name)[direction].ravel()[::step] for name in names))
        turned = {name: tensor[::step] for name, tensor in arguments.items()}
        expected += plstm1d(**turned, gates=sequence, direct=jnp.zeros(6))[::step]

    shape = gates.s_r.shape[1:]
    on_grid = {name: tensor.reshape(*shape, 3) for name, tensor in arguments.items()}
    actual = plstm2d(**on_grid, gates=gates, direct=direct.reshape(shape), method="recurrent")
    np.testing.assert_allclose(actual.reshape(6, 3), expected, rtol=1e-12, atol=1e-12)
