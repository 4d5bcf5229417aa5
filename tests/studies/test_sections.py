"""The graph table: how folds and seeds are counted in its sections, and what the table then says."""

import statistics

import numpy as np
import pytest
from scipy import stats

from data.tokens import TASKS
from plstm.runs.overrides import CONFIGS
from plstm.studies.definitions import load_table
from plstm.studies.records import read_records
from plstm.studies.sweeps import find_groups, superfluous_runs, t_interval
from scripts import run_table
from tests.commands import call_here

from .conftest import folds_of, lines_of, long_values, rendered


def chosen(table, folder, section="MUTAG"):
    groups = find_groups(table, read_records(folder))
    return {group.chosen.row.name: group.chosen for group in groups if group.chosen.section == section}


@pytest.mark.parametrize(("n", "level"), [(2, 0.5), (3, 0.90), (5, 0.90), (5, 0.99)])
def test_interval_is_that_of_scipy(n, level):
    values = [0.972, 0.968, 0.975, 0.971, 0.974][:n]
    mean, half_width, count = t_interval(values, level)
    expected = stats.t.interval(level, n - 1, loc=np.mean(values), scale=stats.sem(values))
    np.testing.assert_allclose([mean - half_width, mean + half_width], expected, rtol=1e-12)
    assert count == n and t_interval(values[:1]) == (0.972, None, 1) and t_interval([]) == (None, None, 0)


def test_a_cell_is_a_mean_over_folds_then_seeds(graphs, add_folds, tmp_path):
    add_folds("graphs/gin")
    add_folds("graphs/gin", "MUTAG", 4, 44, best=0.6)
    add_folds("graphs/gin", "MUTAG", 4, 45, count=7, best=0.1)
    cell = chosen(graphs, tmp_path)["GIN"]
    counts = (cell.choice, list(cell.means.index), cell.finished, len(cell.runs))
    assert counts == (4, ["43", "44"], 27, 20)
    folds = [[start + n / 100 for n in range(10)] for start in (0.7, 0.6)]
    best, last = graphs.columns
    assert cell.interval(best) == pytest.approx(t_interval([statistics.fmean(seed) for seed in folds]))
    assert cell.deviations[best.name].mean() == pytest.approx(statistics.stdev(folds[0]))
    assert cell.interval(last)[0] == pytest.approx(0.795)


def test_layers_are_chosen_by_validation_and_not_by_test(graphs, add_folds, tmp_path):
    add_folds("graphs/gin", val=0.81, best=0.5)
    add_folds("graphs/gin", "MUTAG", 8, val=0.80, best=0.9)
    add_folds("graphs/gat", "MUTAG", 8)
    add_folds("graphs/gcn", "MUTAG", 4, count=3)
    found = chosen(graphs, tmp_path)
    assert [found[name].choice for name in ("GIN", "GAT", "GCN")] == [4, 8, 4]
    assert not found["GCN"].runs and found["GCN"].finished == 3


def test_layers_are_compared_on_the_seeds_that_both_have(graphs, add_folds, tmp_path):
    add_folds("graphs/gin", val=0.80)
    add_folds("graphs/gin", "MUTAG", 4, 44, val=0.9)
    add_folds("graphs/gin", "MUTAG", 8, 43, val=0.81, best=0.9)
    add_folds("graphs/gat", "MUTAG", 4, 43)
    add_folds("graphs/gat", "MUTAG", 8, 44, val=0.81)
    add_folds("graphs/gcn", "MUTAG", 4, 43, val=0.81)
    add_folds("graphs/gcn", "MUTAG", 4, 44, val=0.81)
    add_folds("graphs/gcn", "MUTAG", 8, 43)
    found = chosen(graphs, tmp_path)
    assert [found[name].choice for name in ("GIN", "GAT", "GCN")] == [8, 8, 4]
    for choose_once, others in ((True, ""), (False, "; GCN, MUTAG, depth 4: 1 of 2")):
        text = rendered(graphs.model_copy(update={"choose_once": choose_once}), tmp_path)["table.md"]
        (note,) = [line for line in text.replace("\n  ", " ").splitlines() if "fewer seeds" in line]
        assert note.endswith(f"those that all values have: GAT, MUTAG, depth 8: 0 of 1{others}.")


def test_one_seed_chooses_the_layers_that_the_others_run(graphs, add_folds, tmp_path):
    add_folds("graphs/gin", val=0.80)
    add_folds("graphs/gin", "MUTAG", 8, 43, val=0.81, count=9)
    add_folds("graphs/gat", "MUTAG", 4, 43)
    add_folds("graphs/gat", "MUTAG", 8, 44)
    assert superfluous_runs(graphs, read_records(tmp_path)) == set()
    add_folds("graphs/gin", "MUTAG", 8, 43, val=0.81)
    cells = [folds_of(graphs, "graphs/gin", "MUTAG", 4, seed) for seed in (43, 44, 45)]
    assert superfluous_runs(graphs, read_records(tmp_path)) == {run.id for cell in cells for run in cell}
    every = graphs.model_copy(update={"choose_once": False})
    assert superfluous_runs(every, read_records(tmp_path)) == set()
    options = ["--dry-run", "--sections", "MUTAG", "--results", tmp_path, "--runs", tmp_path]
    done = call_here(run_table.main, "graphs", *options)
    *lines, total = done.output.splitlines()
    rejected = [line.split()[7:9] for line in lines if line.startswith("rejected")]
    assert rejected == [["seed=44", "model.depth=4"], ["seed=45", "model.depth=4"]], done
    assert total == "480 runs: 40 finished, 20 not needed, at most 420 to run"
    total = call_here(run_table.main, "graphs", *options, "--seeds", "44").output.splitlines()[-1]
    assert total == "160 runs: 10 finished, 10 not needed, at most 140 to run"


def test_the_table_says_what_is_there_and_what_is_not(graphs, add_folds, tmp_path):
    add_folds("graphs/gin", val=0.81)
    add_folds("graphs/gin", "MUTAG", 8)
    add_folds("graphs/gat", "MUTAG", 8, count=2)
    for name in graphs.section_values:
        add_folds("graphs/plstm", name)
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines/graphs.json").write_text('{"baselines": [{"name": "majority class", "MUTAG": 0.665}]}')
    files = rendered(graphs, tmp_path)
    text = files["table.md"]
    overview, cells = lines_of(text, "GIN")
    assert [cell for _, cell in cells[1:]] == [
        *["[1](../runs/graphs-gin.jsonl)", "4", "0.745", "0.825 ± 0.100", "-0.080", "0.795"]
    ]
    assert [cell for _, cell in overview[1:]] == ["0.745 (0.825)", "– (0.610)", "– (0.735)", "– (0.818)", "– (0.747)"]
    assert "not counted: GAT, MUTAG, depth 8: 2." in text and "| GAT | – (0.782) |" in text
    assert "| Model | MUTAG | PTC-FM | PROTEINS | NCI1 | Mean |" in text
    assert "| pLSTM | 0.745 (0.851) | 0.745 (0.613) | 0.745 (0.750) | 0.745 (0.732) | 0.745 (0.737) |" in text
    assert "| majority class | – | – | 0.665 | – | – | 0.665 |" in text
    found = long_values(files["table.csv"])
    assert found["MUTAG", "GIN", "4", "1", "mean", "test_best"] == pytest.approx(0.745)
    assert found["MUTAG", "GIN", "8", "0", "mean", "test_best"] == pytest.approx(0.745)
    assert found["MUTAG", "GIN", "4", "1", "deviation", "test_best"] == pytest.approx(0.0303, abs=1e-4)
    assert found["NCI1", "GIN", "4", "1", "paper", "test_best"] == 0.8175
    assert not any(key[:2] == ("NCI1", "GIN") and key[4] == "mean" for key in found)
    assert files == rendered(graphs, tmp_path, order=reversed)


def test_published_numbers_of_a_section_by_column():
    """Under the name of a column, in every section."""
    table = load_table(CONFIGS / "study/tokens.yaml")
    (row,) = (row for row in table.rows if row.name == "GDN[-1,1]")
    shown = {column.title: table.paper(row, column, "parity") for column in table.columns}
    assert {title: cell for title, cell in shown.items() if cell} == {
        "Rescaled, 128": [1.0],
        "Rescaled, 2,048": [0.472],
    }


def test_chance_of_each_section_stands_in_every_column_of_accuracy(add_lengths, tmp_path):
    table = load_table(CONFIGS / "study/tokens-small.yaml")
    classes = {name: TASKS[name].classes for name in table.section_values}
    assert {name: round(1 / value) for name, value in table.chance.items()} == classes
    add_lengths(table.name, table.rows[0].name, "s3", 43, dict.fromkeys((32, 128, 512), 0.5), lr=3e-3)
    (_, _, cells, *_) = lines_of(rendered(table, tmp_path)["table.md"], "chance")
    assert [cell for _, cell in cells].count("0.167") == 3
