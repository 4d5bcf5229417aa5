"""The tables of formal languages: stages in their order, every seed shown, accuracy against length."""

import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from plstm.errors import UserError
from plstm.studies.definitions import load_table
from plstm.studies.figures import COLOURS, draw_table
from plstm.studies.records import read_records, write_record
from plstm.studies.sweeps import planned_runs

from .conftest import TABLES, example_record
from .conftest import rendered as render

NAME = "languages-small"


@pytest.fixture
def table():
    return load_table(TABLES / f"{NAME}.yaml")


def rendered(table, folder):
    """The Markdown, and the lines of the CSV."""
    files = render(table, folder)
    return files["md"], pd.read_csv(io.StringIO(files["csv"]))


@pytest.fixture
def add(tmp_path):
    """Function of model, task, seed and accuracies at three lengths."""

    def write(model, task, seed, *accuracies):
        of_lengths = {f"accuracy@{length}": value for length, value in zip((41, 251, 500), accuracies, strict=True)}
        values = {"accuracy": float(np.mean(accuracies)), "count": 384} | of_lengths
        metrics = {"last": {"test": values, "val": {"accuracy": 1.0, "count": 1024}}, "best": None}
        own = dict(table=NAME, seed=seed, values={"data.name": task}, metrics=metrics, task="languages")
        write_record(example_record(f"languages_reduced/{model}", **own), [], tmp_path)

    return write


def test_stages_are_run_one_after_the_other(table):
    runs = planned_runs(table)
    assert len(runs) == len({run.key for run in runs}) == 3 * 6 * 3 + 4 * 6 + 7 * 3 + 4 * 5
    claim = ["parity_check", "even_pairs", "missing_duplicate"]
    assert [run.values["data.name"] for run in runs[:54]] == [task for task in claim for _ in range(18)]
    assert [run.values["seed"] for run in runs[:18]] == [43] * 6 + [44] * 6 + [45] * 6
    assert not {"Stack-RNN", "Tape-RNN", "Transformer"} & {run.row.name for run in runs[:78]}
    assert {run.row.name for run in runs[78:99]} == {"Stack-RNN", "Tape-RNN", "Transformer"}
    assert {run.values["seed"] for run in runs[54:]} == {43}
    assert {run.values["data.name"] for run in runs[99:]} == set(table.section_values[7:])


def test_a_stage_that_names_nothing_of_the_table_is_refused(tmp_path):
    text, path = (TABLES / f"{NAME}.yaml").read_text(), tmp_path / f"{NAME}.yaml"
    for old, new, words in (
        ("rows: [Stack-RNN, ", "rows: [Stack, ", "key stages[2].rows: no row 'Stack'"),
        ("seed: [43]}", "seed: [7]}", "key stages[1].sweep: the table does not sweep seed over [7]"),
    ):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(UserError) as error:
            load_table(path)
        assert words in str(error.value)


def test_the_table_shows_every_seed_and_the_highest(table, add, tmp_path):
    for seed, accuracy in ((43, 0.5), (44, 1.0), (45, 0.53)):
        add("pr_lstm", "missing_duplicate", seed, accuracy, accuracy, accuracy)
    add("lstm", "even_pairs", 43, 1.0, 1.0, 0.97)
    text, frame = rendered(table, tmp_path)
    (line,) = [line for line in text.splitlines() if "pr_lstm.yaml" in line and "[n=3]" in line]
    assert "67.7 ± " in line and "| 100.0 | 50.0, 100.0, 53.0 | 1 of 3 |" in line
    overview = text.partition("\n## ")[0].splitlines()
    header = next(line for line in overview if line.startswith("|  |"))
    assert header.count("|") == 11, "a column a model, as there are fewer of them than tasks"
    (of_task,) = [line for line in overview if line.startswith("| missing_duplicate")]
    assert "| 100.0 (100.0) |" in of_task and "| – (54.0) |" in of_task
    own = frame[(frame["model"] == "PR-LSTM 1R") & (frame["section"] == "missing_duplicate")].iloc[0]
    assert own["test_max"] == 100 and own["test_each"] == "50.0, 100.0, 53.0"


def test_baselines_stand_beside_their_task_and_split_alone(table, tmp_path):
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines/languages.json").write_text('{"baselines": [{"name": "chance", "bucket_sort": 0.2}]}')
    text, frame = rendered(table, tmp_path)
    chance = frame[frame["model"] == "chance"].set_index("section")
    assert chance["test"].dropna().to_dict() == {"bucket_sort": 20} and "val" not in chance.dropna(axis="columns")


def test_the_figure_has_a_panel_a_task_and_a_line_a_model_with_its_runs(table, add, tmp_path):
    add("pr_lstm", "missing_duplicate", 43, 1.0, 1.0, 1.0)
    add("lstm", "missing_duplicate", 43, 1.0, 0.6, 0.5)
    add("lstm", "missing_duplicate", 44, 0.9, 0.5, 0.5)
    add("rnn", "even_pairs", 43, 1.0, 1.0, 1.0)
    paths = draw_table(table, read_records(tmp_path), tmp_path)
    assert [path.name for path in paths] == [f"{NAME}-lengths.png", f"{NAME}-lengths.svg"]
    text = paths[1].read_text()
    colour = {row.name: colour.lower() for row, colour in zip(table.rows, COLOURS, strict=False)}
    assert text.count(f"stroke: {colour['LSTM']}") == 4, "two runs, their mean and an entry of the legend"
    assert text.count(f"stroke: {colour['RNN']}") == 2 and f"stroke: {colour['PR-LSTM 2R']}" not in text
    assert Image.open(paths[0]).size[0] > 400
