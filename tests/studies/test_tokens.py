"""The tables of counting and state tracking: the rate of the lowest loss, the highest seed beside the paper."""

import io

import pandas as pd
import pytest

from plstm.errors import UserError
from plstm.studies.definitions import load_table
from plstm.studies.records import read_records, write_record
from plstm.studies.sweeps import superfluous_runs

from .conftest import TABLES, example_record, rendered


@pytest.fixture
def add(tmp_path):
    """Function of table, model, task, seed, the test's accuracy, and what else differs from an example record."""

    def write(table, model, task, seed, accuracy, loss=0.1, **fields):
        longest = load_table(TABLES / f"{table}.yaml").require["data.length"] * 16
        names = [
            f"{name}@{n}"
            for name in ("accuracy", "accuracy_all", "rescaled")
            for n in (longest // 16, longest // 4, longest)
        ]
        test = dict.fromkeys(["accuracy", *names], accuracy)
        metrics = {"last": {"test": test, "val": {"accuracy": 1.0, "loss": loss}}, "best": None}
        folder = {"tokens": "tokens", "tokens-small": "tokens_reduced"}[table]
        own = dict(table=table, seed=seed, values={"data.name": task}, metrics=metrics, task="tokens")
        write_record(example_record(f"{folder}/{model}", **own | fields), [], tmp_path)

    return write


def test_the_rate_of_the_lowest_loss_is_chosen(add, tmp_path):
    for rate, loss, accuracy in ((3e-3, 0.2, 1.0), (1e-3, 0.01, 0.5), (1e-2, 0.1, 1.0)):
        add("tokens-small", "gdn", "anbn", 43, accuracy, loss, lr=rate)
    table = load_table(TABLES / "tokens-small.yaml")
    frame = pd.read_csv(io.StringIO(rendered(table, tmp_path)["csv"]))
    own = frame[(frame["model"] == "GDN") & (frame["section"] == "anbn") & (frame["chosen"] == 1)]
    assert own["peak_lr"].tolist() == [1e-3] and own["test_accuracy@32"].tolist() == [0.5]
    assert ("tokens_reduced/gdn", "anbn", 44, 3e-3) in superfluous_runs(table, read_records(tmp_path))


def test_the_paper_s_numbers_stand_beside_the_highest_of_the_seeds(add, tmp_path):
    for seed, accuracy in ((43, 0.5), (44, 0.9)):
        add("tokens", "gdn_negative", "parity", seed, accuracy)
    files = rendered(load_table(TABLES / "tokens.yaml"), tmp_path)
    own = pd.read_csv(io.StringIO(files["csv"])).set_index(["model", "section"]).loc["GDN[-1,1]", "parity"]
    assert own["test_rescaled@2048_difference"] == pytest.approx(0.9 - 0.472)
    header = next(line for line in files["md"].splitlines() if "Rescaled, 2,048 | Highest | Paper | Difference" in line)
    assert header.count("Highest") == 3 + 1, "of the first column, and of those with numbers of the paper"


def test_the_overview_shows_the_column_that_the_table_names(add, tmp_path):
    add("tokens", "xlstm_1_1", "z5", 43, 0.8)
    (line,) = [
        line
        for line in rendered(load_table(TABLES / "tokens.yaml"), tmp_path)["md"].splitlines()
        if line.startswith("| xLSTM[1:1] |")
    ]
    assert "| 0.800 (1.000) |" in line
    text = (TABLES / "tokens.yaml").read_text().replace("overview: test_rescaled@512", "overview: test_loss")
    (tmp_path / "tokens.yaml").write_text(text)
    with pytest.raises(UserError, match="key overview must be one of test_accuracy@128, "):
        load_table(tmp_path / "tokens.yaml")
