"""The study of time series: differences over seeds and sets, and dots beside baselines, from synthetic records."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from data.series.packages import SOURCES
from data.series.scoring import GROUPS
from plstm.studies import figures
from plstm.studies.definitions import TableDefinition, load_table
from plstm.studies.figures import draw_table
from plstm.studies.records import read_records, write_record
from plstm.studies.sweeps import planned_runs

from .conftest import TABLES, example_record, lines_of, long_values, rendered

SETS = {"births": 2.0, "housing": 0.5, "traffic": 1.0, "seattle_normals": 9.0}  # one of each group


@pytest.fixture
def table():
    return load_table(TABLES / "series-small.yaml")


@pytest.fixture
def add_scores(tmp_path):
    """Write a record of a row into `tmp_path`, whose errors are `factor` times those of SETS, or a dictionary's."""

    def write(row, seed, factors, rate=3e-3, loss=0.1):
        by_set = {name: value * factors.get(name, factors["births"]) for name, value in SETS.items()}
        means = {f"{m}{g}": 0.9 for m in ("mase", "wql") for g in ("", "_hourly", "_daily", "_monthly")}
        test = means | {f"{metric}@{name}": value for metric in ("mase", "wql") for name, value in by_set.items()}
        metrics = {"last": {"test": test, "val": {"loss": loss, "wql": 0.5}}, "best": None}
        own = dict(table="series-small", row=row, seed=seed, lr=rate, metrics=metrics)
        write_record(example_record("series/forecast", **own), [], tmp_path)

    return write


def test_ratios_are_of_the_same_seeds_and_sets(table, add_scores, tmp_path):
    for seed, factor in ((43, 1.0), (44, 3.0), (45, 5.0)):
        add_scores("xLSTM[3:1], 5,000 steps", seed, {"births": factor})
    assert "differences.csv" not in rendered(table, tmp_path)
    add_scores("GDN, 5,000 steps", 43, {"births": 0.5, "housing": 0.8, "traffic": 1.6})
    add_scores("GDN, 5,000 steps", 44, {"births": 1.5, "housing": 2.4, "traffic": 4.8})
    files = rendered(table, tmp_path)
    mase, wql, *groups = pd.read_csv(io.StringIO(files["differences.csv"])).itertuples()
    assert (mase.row, mase.against) == ("GDN, 5,000 steps", "xLSTM[3:1], 5,000 steps")
    assert (mase.better, mase.sets, mase.seeds, mase.metric, wql.metric) == (2, 3, 2, "test_mase", "test_wql")
    assert mase.value == pytest.approx((0.5 * 0.8 * 1.6) ** (1 / 3))
    assert [(group.metric, group.sets, group.value) for group in groups] == [
        (f"test_wql_{name}", 1, pytest.approx(ratio))
        for name, ratio in (("monthly", 0.8), ("daily", 0.5), ("hourly", 1.6))
    ]
    assert mase.low == pytest.approx(mase.value) == mase.high  # both seeds have the same ratio
    # One draw of three sets in 27 has one set three times, more than the 2.5% that an end leaves out.
    assert [mase.sets_low, mase.sets_high] == pytest.approx([0.5, 1.6])
    cells, *_ = map(dict, lines_of(files["differences.md"], "GDN, 5,000 steps"))
    assert cells["Score"] == "MASE" and cells["Difference"] == "× 0.862" and cells["Better on"] == "2 of 3"
    assert cells["Sets"] == f"[{mase.sets_low:.3f}, {mase.sets_high:.3f}]"
    assert cells["Seeds"] == "[0.862, 0.862], n=2"


def test_an_interval_over_seeds(table, add_scores, tmp_path):
    for seed, factor in ((43, 1.0), (44, np.e)):
        add_scores("xLSTM[3:1], 5,000 steps", seed, {"births": 1.0})
        add_scores("GDN, 5,000 steps", seed, {"births": factor})
    line = next(pd.read_csv(io.StringIO(rendered(table, tmp_path)["differences.csv"])).itertuples())
    half_width = stats.t.ppf(0.95, 1) * 0.5  # of logarithms 0 and 1
    assert np.log([line.low, line.value, line.high]) == pytest.approx([0.5 - half_width, 0.5, 0.5 + half_width])


def test_differences_of_one_number_a_run_and_of_rates_that_were_not_chosen(tmp_path):
    table = load_table(TABLES / "arrow-small.yaml")
    for seed, rate, accuracy in ((43, 5e-4, 0.75), (44, 5e-4, 0.85), (43, 2e-3, 0.7), (44, 2e-3, 0.7)):
        splits = {"val": {"accuracy": rate}, "test": {"accuracy": 0.9}, "test_ext": {"accuracy": accuracy}}
        own = dict(table="arrow-small", row="pLSTM", seed=seed, lr=rate, metrics={"last": splits, "best": None})
        write_record(run := example_record("arrow_small/plstm", **own), [], tmp_path)
        if seed == 43:  # the others were not probed
            row = {"canvas_pixels": 192, "probe": "as given", "images": 100, "labelled_at": 0.5, "accuracy": accuracy}
            path = tmp_path / "probes" / f"{run.name}-{run.id}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"rows": [row | {"area_under_roc": accuracy + 0.1 + 10 * rate}]}))
    files = rendered(table, tmp_path)
    at_size, larger, area = pd.read_csv(io.StringIO(files["differences.csv"])).itertuples()
    assert (area.metric, area.seeds) == ("area_under_roc@192", 1) and area.value == pytest.approx(0.05 - 0.015)
    probed = pd.read_csv(io.StringIO(files["probes.csv"]))
    assert {*probed["row"]} == {"pLSTM at 0.0005", "pLSTM at 0.002"}  # and not the chosen one again
    assert (larger.row, larger.against) == ("pLSTM at 0.0005", "pLSTM at 0.002")
    assert (larger.value, at_size.value) == (pytest.approx(0.1), 0) and np.isnan(larger.sets)
    assert larger.high - larger.value == pytest.approx(stats.t.ppf(0.95, 1) * 0.05)
    cells = dict(lines_of(files["differences.md"], "pLSTM at 0.0005")[1])
    assert cells["Difference"] == "+0.100" and "Sets" not in cells


def test_baselines_by_column_and_dots_with_a_panel_a_column(table, add_scores, tmp_path, monkeypatch):
    add_scores("GDN", 43, {"births": 1.0})
    (tmp_path / "baselines").mkdir()
    lines = [{"name": "naive", "test_mase": 1.1, "test_wql": 1.5}, {"name": "AutoETS", "test_wql_monthly": 0.6}]
    (tmp_path / "baselines/series.json").write_text(json.dumps({"baselines": lines}))
    files = rendered(table, tmp_path)
    found = long_values(files["table.csv"])
    assert found["", "naive", "", "1", "mean", "test_mase"] == 1.1
    assert found["", "AutoETS", "", "1", "mean", "test_wql_monthly"] == 0.6
    drawn = {}
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.update({path.stem: figure}))
    draw_table(table, read_records(tmp_path), tmp_path)
    axes = drawn["dots"].axes
    titles = [column.title.replace(",", "").split() for column in table.columns[:5]]
    assert [axis.get_title().split() for axis in axes] == titles
    dashed = [{line.get_label() for line in axis.lines if len(set(line.get_xdata())) == 1} for axis in axes]
    assert "naive" in dashed[0] and "AutoETS" in dashed[2]
    assert "naive" not in dashed[1] | dashed[2]  # far from ours, or not measured


def test_the_stages_of_the_protocol(table):
    first = [run for run in planned_runs(table) if run.row.name.endswith("5,000 steps")]
    later = [run for run in planned_runs(table) if run not in first]
    assert planned_runs(table)[: len(first)] == first and (len(first), len(later)) == (4 * 2 * 3, 8 * 4 * 5)


def test_sets_of_a_group_are_those_of_its_frequencies(table):
    for group, frequencies in GROUPS.items():
        counted = [name for name, source in SOURCES.items() if source.frequency in frequencies and source.is_counted]
        assert table.differences.sets[f"test_wql_{group}"] == counted


def test_comparisons_of_a_row_that_no_stage_has_are_left_out(table, add_scores, tmp_path):
    for row in ("xLSTM[3:1], 5,000 steps", "GDN, 5,000 steps"):
        add_scores(row, 43, {"births": 1.0})
    first = table.model_copy(update={"stages": table.stages[:1]})
    found = pd.read_csv(io.StringIO(rendered(first, tmp_path)["differences.csv"]))
    assert {*found["row"]} == {"GDN, 5,000 steps"}


def test_a_row_that_is_not_there_is_named(table):
    plain = table.model_dump(exclude_unset=True)
    plain["differences"]["groups"][1][0] = "Mamba"
    with pytest.raises(ValueError, match=r"differences.groups: no row 'Mamba'"):
        TableDefinition.model_validate(plain)
