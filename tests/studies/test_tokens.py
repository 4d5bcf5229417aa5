"""The tables of counting and state tracking: the rate of the lowest loss, the highest seed beside the paper."""

import pytest

from plstm.studies.definitions import load_table
from plstm.studies.figures import draw_table
from plstm.studies.records import read_records
from plstm.studies.sweeps import planned_runs, superfluous_runs

from .conftest import TABLES, lines_of, long_values, rendered


def test_the_rate_of_the_lowest_loss_is_chosen(add_lengths, tmp_path):
    for rate, loss, accuracy in ((3e-3, 0.2, 1.0), (1e-3, 0.01, 0.5), (1e-2, 0.1, 1.0)):
        add_lengths("tokens-small", "GDN", "anbn", 43, dict.fromkeys((32, 128, 512), accuracy), loss, lr=rate)
    table = load_table(TABLES / "tokens-small.yaml")
    found = long_values(rendered(table, tmp_path)["table.csv"])
    own = {
        key[2]: v
        for key, v in found.items()
        if key[:2] == ("anbn", "GDN") and key[3:] == ("1", "mean", "test_accuracy@32")
    }
    assert own == {"0.001": 0.5}
    superfluous = superfluous_runs(table, read_records(tmp_path))
    left = [run for run in planned_runs(table) if run.id in superfluous]
    assert {run.row.name for run in left} == {"GDN"} and {run.values["data.name"] for run in left} == {"anbn"}
    assert {(run.values["seed"], run.values["optim.peak_lr"]) for run in left if run.values["seed"] > 43} == {
        (seed, rate) for seed in (44, 45) for rate in (3e-3, 1e-2)
    }


def test_there_is_no_figure_before_a_row_of_it_has_runs(add_lengths, tmp_path):
    table = load_table(TABLES / "tokens-small.yaml")
    add_lengths("tokens-small", "xLSTM[1:0]", "parity", 43, dict.fromkeys((32, 128, 512), 0.5))
    assert draw_table(table, read_records(tmp_path), tmp_path) == []


def test_the_paper_s_numbers_stand_beside_the_highest_of_the_seeds(add_lengths, tmp_path):
    for seed, accuracy in ((43, 0.5), (44, 0.9)):
        add_lengths("tokens", "GDN[-1,1]", "parity", seed, dict.fromkeys((128, 512, 2048), accuracy))
    files = rendered(load_table(TABLES / "tokens.yaml"), tmp_path)
    place = ("parity", "GDN[-1,1]", "", "1", "difference", "test_rescaled@2048")
    assert long_values(files["table.csv"])[place] == pytest.approx(0.9 - 0.472)
    (_, cells) = lines_of(files["table.md"], "GDN[-1,1]")
    assert len(cells) <= 7 and ("Accuracy, 2,048", "0.700 ± 1.263") in cells


def test_the_overview_shows_the_column_that_the_table_names(add_lengths, tmp_path):
    add_lengths("tokens", "xLSTM[1:1]", "z5", 43, dict.fromkeys((128, 512, 2048), 0.8))
    overview, _ = lines_of(rendered(load_table(TABLES / "tokens.yaml"), tmp_path)["table.md"], "xLSTM[1:1]")
    assert ("Sum mod 5 (Z5)", "0.800 (1.000)") in overview
