"""The oracle against Equation 3 taken literally: a sum over all paths, each a product of gates."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.grid import gating_matrix_oracle, plstm2d_oracle

from .comparing import draw_gates

STEPS = ((1, 1), (-1, 1), (1, -1), (-1, -1))  # (x, y): right-down, left-down, right-up, left-up


def path_weight(gates, direction, node, moves):
    """Source, transitions and mark along one path; a move is "r" (along x) or "d" (along y) of this direction."""
    step_x, step_y = STEPS[direction]
    y, x = node
    weight, incoming = 1.0, None
    for move in moves:
        name = f"s_{move}" if incoming is None else f"t_{move}{incoming}"
        weight *= gates[name][direction, y, x]
        x, y, incoming = (x + step_x, y, "l") if move == "r" else (x, y + step_y, "u")
    return weight * gates[f"m_{incoming}"][direction, y, x]


def gating_matrix_by_paths(gates):
    """Equation 3, exponential in the path length."""
    _, height, width = gates.s_r.shape
    gates = {name: np.asarray(gate) for name, gate in gates._asdict().items()}
    gating = np.zeros((height, width, height, width))
    nodes = list(itertools.product(range(height), range(width)))
    for direction, source, target in itertools.product(range(4), nodes, nodes):
        right = (target[1] - source[1]) * STEPS[direction][0]
        down = (target[0] - source[0]) * STEPS[direction][1]
        if source == target or right < 0 or down < 0:
            continue
        for places in itertools.combinations(range(right + down), right):
            moves = ["r" if place in places else "d" for place in range(right + down)]
            gating[source + target] += path_weight(gates, direction, source, moves)
    return gating


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 4), (4, 1), (3, 4)])
def test_gating_matrix_is_the_sum_over_paths(x64, height, width):
    gates = draw_gates(height, width)
    np.testing.assert_allclose(gating_matrix_oracle(gates), gating_matrix_by_paths(gates), rtol=1e-12, atol=1e-12)


def test_operator_is_the_gated_sum_over_nodes(x64):
    """Equation 3: queries, keys and values act outside the sum over paths, and a node reads itself through direct."""
    rng = np.random.default_rng(1)
    gates = draw_gates(3, 4)
    q, k = rng.normal(size=(2, 3, 4, 5))
    v, direct = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4))
    gating = gating_matrix_by_paths(gates).reshape(12, 12) + np.diag(direct.ravel())
    similarity = k.reshape(12, 5) @ q.reshape(12, 5).T / 5**0.5
    expected = (gating * similarity).T @ v.reshape(12, 2)
    actual = plstm2d_oracle(*map(jnp.asarray, (q, k, v)), gates, jnp.asarray(direct))
    np.testing.assert_allclose(actual.reshape(12, 2), expected, rtol=1e-12, atol=1e-12)
