import numpy as np
import pytest
from scipy import stats

from plstm.results.intervals import t_interval

VALUES = [0.972, 0.968, 0.975, 0.971, 0.974]


@pytest.mark.parametrize("level", [0.5, 0.90, 0.99])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_interval_is_that_of_scipy(n, level):
    mean, half_width, count = t_interval(VALUES[:n], level)
    expected = stats.t.interval(level, n - 1, loc=np.mean(VALUES[:n]), scale=stats.sem(VALUES[:n]))
    np.testing.assert_allclose([mean - half_width, mean + half_width], expected, rtol=1e-12)
    assert count == n


def test_five_seeds_use_the_known_quantile_and_one_has_no_interval():
    half_width = 2.1318 / np.sqrt(5) * np.std(VALUES, ddof=1)
    assert t_interval(VALUES).half_width == pytest.approx(half_width, rel=1e-4)
    assert t_interval([0.9]) == (0.9, None, 1)
