"""Windows, seasons, baselines and scores of forecasts, as GIFT-Eval computes them.

A forecast is nine quantiles of each step, [9, horizon]; values that are not known are NaN, and not counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

LEVELS = np.arange(1, 10) / 10
MEDIAN = 4
MOST_WINDOWS = 20  # of a series
# Of a frequency, Y (yearly) to 5T (five minutes): steps of a season, and of a forecast. Days and weeks have no season.
SEASONS = {"Y": 1, "Q": 4, "M": 12, "W": 1, "D": 1, "H": 24, "30T": 48, "10T": 144, "5T": 288}
HORIZONS = {"Y": 6, "Q": 8, "M": 12, "W": 8, "D": 30, "H": 48, "30T": 48, "10T": 48, "5T": 48}
GROUPS = {"hourly": ("H", "30T", "10T", "5T"), "daily": ("D", "W"), "monthly": ("M", "Q", "Y")}


class SeriesSet(NamedTuple):
    """Series of one kind and frequency, float64 [T] each, NaN where a value is missing."""

    name: str
    frequency: str  # of SEASONS
    series: Sequence[np.ndarray]
    season: int
    horizon: int
    is_counted: bool = True  # in the means over sets

    @property
    def group(self) -> str:
        """One of GROUPS; "" for a frequency of none."""
        return next((group for group, frequencies in GROUPS.items() if self.frequency in frequencies), "")

    @property
    def windows(self) -> int:
        """Of each series: a tenth of the shortest one in whole horizons, from 1 to 20."""
        return count_windows(min(map(len, self.series)), self.horizon)

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Contexts, each from its series' start, and what follows, [horizon]: without overlap, at the series' end."""
        ahead = self.windows * self.horizon
        for values in self.series:
            for start in range(len(values) - ahead, len(values), self.horizon):
                yield values[:start], values[start : start + self.horizon]


def count_windows(shortest: int, horizon: int) -> int:
    """The windows to forecast at the end of series of which the shortest has so many points."""
    return min(MOST_WINDOWS, max(1, -(-shortest // (10 * horizon))))


# ---------------------------------------------------------------------- scores
def pinball(y: Any, forecast: Any) -> Any:
    """Each quantile's loss: y [..., horizon], forecast [..., 9, horizon] -> as forecast; NumPy or JAX."""
    error = y[..., None, :] - forecast
    return error * (LEVELS[:, None].astype(error.dtype) - (error < 0))


def seasonal_error(context: np.ndarray, season: int) -> float:
    """The mean of |y_t - y_(t - season)| over a whole context, a season longer than it counting as 1."""
    lag = 1 if season > len(context) else season
    steps = np.abs(context[lag:] - context[:-lag])
    return float(np.mean(steps[np.isfinite(steps)])) if np.isfinite(steps).any() else np.nan


class Scores(NamedTuple):
    mase: float  # mean absolute scaled error of the median
    wql: float  # weighted quantile loss, mean over the levels: an approximation of the CRPS


def score(pairs: Sequence[tuple[np.ndarray, np.ndarray]], forecasts: Sequence[np.ndarray], season: int) -> Scores:
    """Scores of the forecasts [9, horizon] of a set's windows (context, label). Windows without a seasonal error above
    0 do not count in MASE, and labels that are NaN count in neither score."""
    scaled = []
    losses = []
    sizes = []
    for (context, label), forecast in zip(pairs, forecasts, strict=True):
        known = np.isfinite(label)
        error = seasonal_error(context, season)
        if error > 0:
            scaled.append(np.abs(label - forecast[MEDIAN])[known] / error)
        losses.append(2 * pinball(label, forecast)[:, known].sum(1))
        sizes.append(np.abs(label[known]).sum())
    return Scores(float(np.concatenate(scaled).mean()), float(np.mean(np.sum(losses, axis=0)) / np.sum(sizes)))


def geometric_mean(ratios: Sequence[float] | np.ndarray) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def mean_ratios(sets: Sequence[SeriesSet], ours: Mapping[str, float], naive: Mapping[str, float]) -> dict[str, float]:
    """Geometric means over the counted sets of a score by set over the seasonal naive's: "" over all, then by group."""
    counted = [each for each in sets if each.is_counted and each.name in ours]
    groups = {"": counted} | {name: [each for each in counted if each.group == name] for name in GROUPS}
    return {
        name: geometric_mean([ours[each.name] / naive[each.name] for each in members])
        for name, members in groups.items()
        if members
    }


# ---------------------------------------------------------------------- baselines
def fill_gaps(context: np.ndarray) -> np.ndarray:
    """The last known value in each gap; before the first, that one. All gaps: zeros."""
    known = np.flatnonzero(np.isfinite(context))
    if not len(known):
        return np.zeros(len(context))
    places = np.searchsorted(known, np.arange(len(context)), side="right") - 1
    return context[known[np.maximum(places, 0)]]


def seasonal_naive(context: np.ndarray, season: int, horizon: int) -> np.ndarray:
    """The last season again, [9, horizon]; its quantiles are normal, their variance the mean squared seasonal
    difference times the number of seasons ahead."""
    filled = fill_gaps(context)
    lag = 1 if season > len(filled) else season
    steps = np.arange(horizon)
    differences = filled[lag:] - filled[:-lag]
    deviation = np.sqrt(np.mean(np.square(differences))) if len(differences) else 0.0
    quantiles = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
    return filled[len(filled) - lag + steps % lag] + quantiles[:, None] * deviation * np.sqrt(steps // lag + 1)


def naive_scores(series: SeriesSet) -> Scores:
    """The seasonal naive's, over which those of a model are taken."""
    pairs = list(series.pairs())
    forecasts = [seasonal_naive(context, series.season, series.horizon) for context, _ in pairs]
    return score(pairs, forecasts, series.season)
