"""The weights that the pictures of P-mode and D-mode show, by counting paths."""

from math import comb

import numpy as np

from scripts import draw_modes
from scripts.draw_modes import pattern, uniform_gates


def test_weights_are_sums_over_paths(monkeypatch):
    monkeypatch.setattr(draw_modes, "SIDE", 5)
    expected = np.zeros((5, 5))
    for down, right in np.ndindex(3, 3):
        expected[2 + down, 2 + right] = comb(down + right, right) * 0.8**right * 0.2**down
    found = pattern(uniform_gates(5, 0.8, 1.0))
    np.testing.assert_allclose(np.where(np.arange(25).reshape(5, 5) == 12, 1, found), expected, rtol=1e-5)
    spread = pattern(uniform_gates(5, None, 0.5, (1, 1, 1, 1)))
    np.testing.assert_allclose(spread[2, 3:], [2, 1], rtol=1e-5)  # two of the four directions come along
    np.testing.assert_allclose(spread, spread[::-1, ::-1], rtol=1e-5)
