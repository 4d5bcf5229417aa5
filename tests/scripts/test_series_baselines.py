"""Baselines of the study of time series, by the names of its columns."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from data.series.bank import toy_sets
from data.series.scoring import seasonal_naive
from plstm.errors import UserError
from plstm.studies.definitions import load_table
from scripts.common import ROOT
from scripts.series_baselines import classical, constant, entry, naive, scores_of


def test_scores_have_the_names_of_columns_and_the_unit_is_one():
    sets = toy_sets()
    unit = scores_of(sets, seasonal_naive)
    columns = {column.name for column in load_table(ROOT / "configs/study/series-small.yaml").columns}
    own = entry("seasonal naive", sets, unit, unit)
    assert {value for key, value in own.items() if key != "name"} == {1.0} and own.keys() - {"name"} < columns
    for forecast in (naive, constant):
        found = entry("other", sets, scores_of(sets, forecast), unit)
        assert found["test_mase_hourly"] > 1.2  # neither has a season
    part = entry("part", sets, scores_of(sets[2:], naive), unit)
    assert part.keys() == {"name", "test_mase_monthly", "test_wql_monthly"}


def test_intervals_are_cut_and_a_missing_package_is_named(monkeypatch):
    class Exploding:
        def __init__(self, season_length):
            self.season = season_length

        def forecast(self, y, h, level):
            bounds = {
                f"{side}-{n}": np.full(h, sign * n * 1e9) for side, sign in (("lo", -1), ("hi", 1)) for n in level
            }
            return bounds | {"mean": np.full(h, self.season)}

    package = SimpleNamespace(models=SimpleNamespace(E=Exploding))
    monkeypatch.setitem(sys.modules, "statsforecast", package)
    found = classical("E")(np.array([0.0, np.nan, 2.0, 2.0]), 1, 3)
    assert found.shape == (9, 3) and (np.diff(found, axis=0) >= 0).all() and (found[4] == 1).all()
    assert found[-1, 0] == pytest.approx(2 + 3 * np.std([0, 0, 2, 2]))
    monkeypatch.setitem(sys.modules, "statsforecast", None)
    with pytest.raises(UserError, match="statsforecast: .*--help says how"):
        classical("E")
