"""The tables of formal languages: stages in their order, every seed shown, accuracy against length."""

import json

import pytest

from plstm.studies.definitions import load_table
from plstm.studies.figures import draw_clock, draw_lengths
from plstm.studies.records import read_records, write_record
from plstm.studies.sweeps import find_groups, planned_runs

from .conftest import TABLES, example_record, lines_of, long_values, rendered

NAME = "languages-small"


@pytest.fixture
def table():
    return load_table(TABLES / f"{NAME}.yaml")


@pytest.fixture
def add(add_lengths):
    """Function of row, task, seed and accuracies at three lengths."""
    return lambda row, task, seed, *accuracies: add_lengths(
        NAME, row, task, seed, dict(zip((41, 251, 500), accuracies, strict=True)), lr=1e-3
    )


def test_stages_are_run_one_after_the_other(table):
    runs = planned_runs(table)
    assert len(runs) == len({run.id for run in runs}) == 3 * 6 * 3 + 4 * 6 + 7 * 3 + 8 * 4 + 3 * 2 + 12
    claim = ["parity_check", "even_pairs", "missing_duplicate"]
    assert [run.values["data.name"] for run in runs[:54]] == [task for task in claim for _ in range(18)]
    assert [run.values["seed"] for run in runs[:18]] == [43] * 6 + [44] * 6 + [45] * 6
    assert not {"Stack-RNN", "Tape-RNN", "Transformer"} & {run.row.name for run in runs[:78]}
    assert {run.row.name for run in runs[78:99]} == {"Stack-RNN", "Tape-RNN", "Transformer"}
    assert {run.values["seed"] for run in runs[54:]} == {43}
    assert {run.values["data.name"] for run in runs[99:131]} == set(table.section_values[7:])
    rates = {(run.row.name, run.values["optim.peak_lr"]) for run in runs if run.values["optim.peak_lr"] != 1e-3}
    assert rates == {("Transformer", 3e-4), ("Transformer", 1e-4)}


def test_the_table_shows_the_highest_seed_beside_the_papers_number(table, add, tmp_path):
    for seed, accuracy in ((43, 0.5), (44, 1.0), (45, 0.53)):
        add("PR-LSTM 1R", "missing_duplicate", seed, accuracy, accuracy, accuracy)
    add("LSTM", "even_pairs", 43, 1.0, 1.0, 0.97)
    files = rendered(table, tmp_path)
    (cells,) = lines_of(files["table.md"], "PR-LSTM 1R")  # of the one section with runs of it
    assert [title for title, _ in cells] == ["Model", "n", "Learning rate", "Score", "Highest", "Paper", cells[-1][0]]
    assert cells[3][1].startswith("67.7 ± ") and [text for _, text in cells[4:6]] == ["100.0", "100.0"]
    first, second = lines_of(files["table.md"], "missing_duplicate")  # of the overview, a column a model
    texts = dict(first + second)
    assert len(first) + len(second) == 11 and max(len(first), len(second)) <= 7
    assert texts["PR-LSTM 1R"] == "100.0 (100.0)" and texts["PR-LSTM 0R"] == "– (54.0)"
    first, _ = lines_of(files["table.md"], "Solved")  # 90 or more, of the tasks that have a score
    assert dict(first)["PR-LSTM 1R"] == "1 of 1 (6 of 15)" and dict(first)["PR-LSTM 0R"] == "– (2 of 7)"
    found = {
        key[4:]: v
        for key, v in long_values(files["table.csv"]).items()
        if key[:2] == ("missing_duplicate", "PR-LSTM 1R")
    }
    assert (found["max", "test"], found["43", "test"], found["count", "test"]) == (100, 50, 1)


def test_the_figure_has_a_panel_a_task_and_a_line_a_model(table, add, tmp_path):
    add("PR-LSTM 1R", "missing_duplicate", 43, 1.0, 1.0, 1.0)
    add("LSTM", "missing_duplicate", 43, 1.0, 0.6, 0.5)
    add("LSTM", "missing_duplicate", 44, 0.9, 0.5, 0.5)
    add("PR-LSTM 2R", "missing_duplicate", 43, 1.0, 1.0, 1.0)  # of no panel
    add("RNN", "even_pairs", 43, 1.0, 1.0, 1.0)
    groups = find_groups(table, read_records(tmp_path))
    figure = draw_lengths(table, [group.chosen for group in groups if group.chosen.runs], tmp_path)
    first, second = figure.axes
    assert [axis.get_title() for axis in figure.axes] == ["even_pairs", "missing_duplicate"]
    assert [line.get_ydata().tolist() for line in second.lines] == [[1.0, 1.0, 1.0], [0.95, 0.55, 0.5]]
    assert len(first.lines) == 1 and "n = 1 to 2 runs" in figure.get_suptitle()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["PR-LSTM 1R", "LSTM", "RNN"]


def test_the_loss_stands_against_the_seconds_that_a_benchmark_measured(table, tmp_path):
    curve = [(500, 0.5, "train", "loss", 0.5), (1000, 1, "train", "loss", 0.25), (1000, 1, "train", "accuracy", 0.9)]
    values = {"data.name": "missing_duplicate"}
    metrics = {"last": {"test": {"accuracy": 1.0}, "val": {"accuracy": 1.0, "loss": 0.1}}, "best": None}
    record = example_record("languages/lstm", table=NAME, row="LSTM", seed=43, values=values, metrics=metrics, lr=1e-3)
    write_record(record, curve, tmp_path)
    cells = [group.chosen for group in find_groups(table, read_records(tmp_path)) if group.chosen.runs]
    assert draw_clock(table, cells, tmp_path) is None  # nothing measured
    (tmp_path / "benchmarks").mkdir()
    rows = [
        {"experiment": f"languages/lstm seed={seed}", "median_seconds": seconds} for seed, seconds in ((43, 2), (49, 1))
    ]
    (tmp_path / table.figure.clock.benchmark).write_text(json.dumps({"rows": rows}))
    (axis,) = draw_clock(table, cells, tmp_path).axes
    assert [line.get_xydata().tolist() for line in axis.lines] == [[[750, 0.5], [1500, 0.25]]]
