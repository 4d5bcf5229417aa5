"""Scores, windows and baselines, by hand-made golden values in float64."""

import json
from pathlib import Path

import numpy as np
import pytest

from data.series.scoring import (
    SeriesSet,
    count_windows,
    fill_gaps,
    geometric_mean,
    mean_ratios,
    pinball,
    score,
    seasonal_error,
    seasonal_naive,
)
from plstm.preprocessing import standardise
from scripts.series_baselines import constant

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
NAN = np.nan


def array(values):
    """Null is NaN."""
    return np.array(values, dtype=float)


def test_pinball():
    golden = GOLDEN["pinball"]
    losses = pinball(array(golden["y"]), array(golden["forecast"]).T)
    np.testing.assert_allclose(losses.T, golden["each"], atol=1e-15)
    known = array(GOLDEN["pinball_missing"]["y"])
    losses = pinball(known, array(GOLDEN["pinball_missing"]["forecast"]).T)
    assert np.nanmean(losses) == pytest.approx(GOLDEN["pinball_missing"]["mean_over_known"])


@pytest.mark.parametrize("name", GOLDEN["scaling"])
def test_standardised(name):
    golden = GOLDEN["scaling"][name]
    scaled, loc, scale = standardise(array(golden["x"]))
    assert (loc, scale) == (pytest.approx(golden["loc"], rel=1e-14), pytest.approx(golden["scale"], rel=1e-14))
    np.testing.assert_allclose(scaled, array(golden["scaled"]), rtol=1e-12, atol=1e-15)


def test_a_constant_that_is_rounded_is_constant():
    assert standardise(np.full(7, 0.1) + 1e-17)[2] == pytest.approx(0.1 + 1e-5)


def test_mase_and_weighted_quantile_loss():
    golden = GOLDEN["mase_wql"]
    pairs = [tuple(map(array, pair)) for pair in zip(golden["context"], golden["label"], strict=True)]
    errors = [seasonal_error(context, golden["season"]) for context, _ in pairs]
    assert errors == pytest.approx(golden["seasonal_errors"])
    forecasts = [array(forecast).T for forecast in golden["forecast"]]
    assert score(pairs, forecasts, golden["season"]) == pytest.approx((golden["mase"], golden["wql"]))
    points = [np.tile(seasonal_naive(context, golden["season"], 2)[4], (9, 1)) for context, _ in pairs]
    naive = score(pairs, points, golden["season"])
    assert naive == pytest.approx(tuple(golden["point_seasonal_naive"].values()))


def test_windows_without_a_seasonal_error_count_in_one_score_only():
    constant = np.ones(6), np.array([2.0, 2.0])
    other = np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 1.0])
    forecast = np.zeros((9, 2))
    assert score([constant, other], [forecast] * 2, 1).mase == 1
    assert score([constant, other], [forecast] * 2, 1).wql == pytest.approx(1.0)  # 2 x (mean level) x y over y


def test_a_season_longer_than_the_context_is_one_step():
    context = np.array([1.0, 3.0, 2.0])
    assert seasonal_error(context, 24) == 1.5
    np.testing.assert_array_equal(seasonal_naive(context, 24, 4)[4], [2, 2, 2, 2])
    assert np.isnan(seasonal_error(context, 3))  # nothing is a season earlier


def test_seasonal_naive():
    golden = GOLDEN["seasonal_naive"]
    forecast = seasonal_naive(array(golden["context"]), golden["season"], golden["horizon"])
    np.testing.assert_array_equal(forecast[4], golden["point"])
    np.testing.assert_allclose((forecast[8] - forecast[4]) / 1.2815515655446004, golden["deviation_of_step"])
    with_gap = seasonal_naive(np.array([1, 2, 3, 4, 5, NAN, 7]), 3, 3)
    np.testing.assert_array_equal(with_gap[4], [5, 5, 7])


def test_gaps_are_filled_with_the_last_value():
    np.testing.assert_array_equal(fill_gaps(np.array([NAN, 2, NAN, NAN, 5, NAN])), [2, 2, 2, 2, 5, 5])
    np.testing.assert_array_equal(fill_gaps(np.array([NAN, NAN])), [0, 0])


def test_constant_quantiles():
    forecast = constant(np.append(np.arange(11.0), NAN), 1, 3)
    np.testing.assert_allclose(forecast, np.tile(np.arange(1, 10)[:, None], (1, 3)))


def test_windows():
    for golden in GOLDEN["windows"]:
        assert count_windows(golden["length"], golden["horizon"]) == golden["windows"]
    values = np.arange(100.0)
    each = SeriesSet("a", "Y", [values, values[:90]], 1, 6)
    pairs = list(each.pairs())
    assert len(pairs) == 2 * each.windows == 4
    assert [len(context) for context, _ in pairs] == [88, 94, 78, 84]
    assert all(label[0] == context[-1] + 1 and len(label) == 6 for context, label in pairs)


def test_geometric_means_of_ratios_by_group():
    golden = GOLDEN["aggregate"]
    model, naive = (dict(zip("abc", golden[name], strict=True)) for name in ("model", "baseline"))
    sets = [SeriesSet(name, frequency, [], 1, 1) for name, frequency in zip("abc", "HMY", strict=True)]
    found = mean_ratios(sets, model, naive)
    assert found[""] == pytest.approx(golden["geometric_mean_of_ratios"])
    assert found["hourly"] == pytest.approx(0.8)
    assert found["monthly"] == pytest.approx(geometric_mean([1.25, 0.5]))
    assert "daily" not in found
    apart = mean_ratios([sets[0]._replace(is_counted=False), *sets[1:]], model, naive)
    assert apart.keys() == {"", "monthly"}
