"""Scores of forecasts without training on the sets of `data.series`: results/baselines/series.json.

    python -m pip install --target outputs/statsforecast statsforecast==2.1.1    # beside .venv: it needs pandas 2
    PYTHONPATH=outputs/statsforecast python scripts/series_baselines.py

Naive, the quantiles of the last 512 values, and on monthly to yearly sets AutoETS and AutoTheta (statsforecast), which
see the last 240 values. Geometric means over the sets of the ratio to the seasonal naive, as in the study series-small.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.series.packages import load_sets
from data.series.scoring import (
    LEVELS,
    Scores,
    SeriesSet,
    fill_gaps,
    mean_ratios,
    score,
    seasonal_naive,
)
from plstm.errors import UserError, run_script
from scripts.common import Parser, machine_data_root, machine_folder, write_results

CONTEXT = 512
CLASSICAL_CONTEXT = 240
WIDEST = 3  # deviations beyond the context's range at which intervals are cut: some of AutoETS's explode
Forecast = Callable[[np.ndarray, int, int], np.ndarray]  # of context, season and horizon: [9, horizon]


def naive(context: np.ndarray, season: int, horizon: int) -> np.ndarray:
    """The last value: a series [T] -> quantiles [9, horizon]."""
    return seasonal_naive(context, 1, horizon)


def constant(context: np.ndarray, season: int, horizon: int) -> np.ndarray:
    """The quantiles of the last known values, as `naive`."""
    return np.repeat(np.nanquantile(context[-CONTEXT:], LEVELS)[:, None], horizon, axis=1)


def classical(name: str) -> Forecast:
    """AutoETS or AutoTheta. Raises UserError where statsforecast is not installed."""
    try:
        from statsforecast import models
    except ImportError as error:
        raise UserError(f"statsforecast: {error}; python scripts/series_baselines.py --help says how") from error

    def forecast(context: np.ndarray, season: int, horizon: int) -> np.ndarray:
        series = fill_gaps(context[-CLASSICAL_CONTEXT:])
        found = getattr(models, name)(season_length=season).forecast(y=series, h=horizon, level=[20, 40, 60, 80])
        names = [f"lo-{80 - 20 * n}" for n in range(4)] + ["mean"] + [f"hi-{20 + 20 * n}" for n in range(4)]
        margin = WIDEST * series.std()
        return np.clip([found[key] for key in names], series.min() - margin, series.max() + margin)

    return forecast


def scores_of(sets: Sequence[SeriesSet], forecast: Forecast) -> dict[str, Scores]:
    """By name of the set, of the forecasts [9, horizon] of all its windows."""
    found = {}
    for each in sets:
        pairs = list(each.pairs())
        forecasts = [forecast(context, each.season, each.horizon) for context, _ in pairs]
        assert all(values.shape == (len(LEVELS), each.horizon) for values in forecasts)
        found[each.name] = score(pairs, forecasts, each.season)
    return found


def entry(name: str, sets: Sequence[SeriesSet], scores: dict[str, Scores], unit: dict[str, Scores]) -> dict:
    """A line of the baseline file, by the names of the study's columns."""
    found = {"name": name}
    for metric in Scores._fields:
        ours, theirs = ({set_: getattr(value, metric) for set_, value in each.items()} for each in (scores, unit))
        for group, value in mean_ratios(sets, ours, theirs).items():
            if group or len(scores) == len(sets):  # a mean over all sets needs all of them
                found[f"test_{metric}_{group}" if group else f"test_{metric}"] = round(value, 4)
    return found


def main() -> None:
    Parser(__doc__).parse_args()
    sets = load_sets(machine_data_root())
    monthly = [each for each in sets if each.group == "monthly"]
    unit = scores_of(sets, seasonal_naive)
    baselines = {
        "seasonal naive": (sets, seasonal_naive),
        "naive": (sets, naive),
        "constant quantiles": (sets, constant),
    }
    baselines |= {name: (monthly, classical(name)) for name in ("AutoETS", "AutoTheta")}
    lines = []
    for name, (own, forecast) in baselines.items():
        lines.append(entry(name, sets, scores_of(own, forecast), unit))
        print(lines[-1], flush=True)
    write_results(machine_folder("results") / "baselines/series.json", {"baselines": lines})


if __name__ == "__main__":
    run_script(main)
