import numpy as np
import pytest
from scipy import stats

from plstm.results.intervals import t_interval

VALUES = [0.972, 0.968, 0.975, 0.971, 0.974]


@pytest.mark.parametrize("level", [0.5, 0.90, 0.99])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_interval_is_that_of_scipy(n, level):
    interval = t_interval(VALUES[:n], level)
    low, high = stats.t.interval(level, n - 1, loc=np.mean(VALUES[:n]), scale=stats.sem(VALUES[:n]))
    np.testing.assert_allclose(
        [interval.mean - interval.half_width, interval.mean + interval.half_width], [low, high], rtol=1e-12
    )
    assert interval.n == n


def test_five_seeds_use_the_known_quantile():
    half_width = 2.1318 / np.sqrt(5) * np.std(VALUES, ddof=1)
    assert t_interval(VALUES).half_width == pytest.approx(half_width, rel=1e-4)


def test_one_value_has_no_interval():
    assert t_interval([0.9]) == (0.9, None, 1)


def test_no_value_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])
