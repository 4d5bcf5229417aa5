"""Means over seeds and their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """`mean` +- `half_width` over `n` values; `half_width` is None where one value says nothing about the spread."""

    mean: float
    half_width: float | None
    n: int


def t_interval(values: Sequence[float], level: float = 0.90) -> Interval:
    """Student's t interval of the mean: half width t((1 + level) / 2, n - 1) s / sqrt(n), s the sample deviation.

    Args:
        values: one number a seed, at least one (ValueError otherwise).
        level: coverage between 0 and 1.
    """
    n = len(values)
    if n == 0:
        raise ValueError("t_interval needs at least one value")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, 1)
    from scipy.stats import t

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Interval(mean, float(t.ppf((1 + level) / 2, n - 1)) * deviation / math.sqrt(n), n)
