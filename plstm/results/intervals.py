"""Means over seeds and their intervals."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """`mean` +- `half_width` over `n` values; `half_width` is None where one value says nothing about the spread."""

    mean: float
    half_width: float | None
    n: int


def t_interval(values: Sequence[float], level: float = 0.90) -> Interval:
    """Student's t interval of the mean of one number or more, half width t((1 + level) / 2, n - 1) s / sqrt(n)."""
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Interval(mean, None, 1)
    from scipy.stats import t

    return Interval(mean, float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n), n)
