"""The graph table: which runs are planned, how folds and seeds are counted, and what the table then says."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import statistics

import numpy as np
import pytest
from plstm.results.fold_tables import at_best, at_last, choose, describe_folds, find_cells, superfluous_runs

from plstm.errors import UserError
from plstm.results import execution, fold_figures, sweeps
from plstm.results.definitions import load_table
from plstm.results.figures import draw_table
from plstm.results.intervals import t_interval
from plstm.results.records import CurvePoint, read_collection, read_curve, read_records, write_record
from plstm.results.sweeps import planned_runs
from plstm.results.tables import render_table, stale_files, write_table
from scripts.majority_baselines import majority_accuracy

from .conftest import HARDWARE, ROOT, example_record, run_table, svg_texts

TABLES = ROOT / "configs/tables"


@pytest.fixture(scope="module")
def table():
    return load_table(TABLES / "graphs.yaml")


def fold_record(table, run: sweeps.PlannedRun, val=0.8, best=0.7, last=0.75, **changes):
    """The record of a planned run, with made-up accuracies."""
    record = example_record(run.row.experiment, run.row.name, table="graphs", seed=run.values["seed"])
    config = {**record.config, "data": dict(record.config["data"]), "model": {}}
    for key, value in run.values.items():
        group, _, leaf = key.rpartition(".")
        (config[group] if group else config)[leaf] = value
    metrics = lambda accuracy: {"loss": 0.5, "accuracy": accuracy, "count": 19}  # noqa: E731
    return dataclasses.replace(
        record,
        id=hashlib.sha256(str(run.key).encode()).hexdigest()[:12],
        overrides=run.overrides,
        config=config,
        parameters=1234,
        wall_seconds=20.0,
        steps=300,
        epochs=100.0,
        metrics={
            "last": {"val": metrics(0.5), "test": metrics(last)},
            "best": {"step": 30, "val": metrics(val), "test": metrics(best)},
        },
        **changes,
    )


def cell_of(table, experiment, column="MUTAG", depth=4, seed=43) -> list[sweeps.PlannedRun]:
    wanted = {"data.name": column, "model.depth": depth, "seed": seed}
    runs = [run for run in planned_runs(table) if run.row.experiment == experiment]
    return [run for run in runs if all(run.values[key] == value for key, value in wanted.items())]


def write_cell(table, folder, *cell, count=10, val=0.8, best=0.7, last=0.75):
    """Writes the records of a cell's first folds; fold n has n / 100 more."""
    for n, run in enumerate(cell_of(table, *cell)[:count]):
        record = fold_record(table, run, val, best + n / 100, last + n / 100)
        write_record(record, [(3, 1.0, "val", "accuracy", 0.123456), (6, 2.0, "val", "accuracy", 0.5)], folder)


def test_the_figures_of_table_1(table):
    paper = {
        row.name: [row.paper[name][0] for name in ("MUTAG", "NCI1", "PROTEINS", "PTC_FM")]
        for row in table.rows
        if row.paper
    }
    assert paper == {
        "GAT": [0.7822, 0.7968, 0.7215, 0.6105],
        "GCN": [0.7234, 0.7852, 0.7395, 0.6162],
        "GIN": [0.8251, 0.8175, 0.7350, 0.6097],
        "LSTM GNN": [0.7450, 0.7951, 0.7503, 0.6076],
        "MPNN": [0.7450, 0.8012, 0.7350, 0.5786],
        "pLSTM": [0.8512, 0.7324, 0.7502, 0.6133],
    }


def test_whole_cells_are_planned_set_by_set_and_seed_by_seed(table):
    runs = planned_runs(table)
    jobs = sweeps.jobs(table, runs)
    assert {len(job.runs) for job in jobs} == {10} and sum(len(job.runs) for job in jobs) == len(runs)
    assert len({run.key for run in runs}) == len(runs)
    first = [job.overrides for job in jobs[:11]]
    assert first[0] == [
        "experiment=graphs/gat",
        "data.name=MUTAG",
        "seed=43",
        "model.depth=4",
        "data.fold=0,1,2,3,4,5,6,7,8,9",
    ]
    assert all({"data.name=MUTAG", "seed=43"} <= set(overrides) for overrides in first)
    assert [o[0] for o in first[-2:]] == ["experiment=graphs/mpnn", "experiment=graphs/plstm"]
    assert {"seed=44", "data.name=MUTAG"} <= set(jobs[11].overrides)
    published = [job.runs[0].row.paper is not None for job in jobs]
    assert published == sorted(published, reverse=True)  # variants come last
    assert sweeps.jobs(table, runs[3:5])[0].overrides[-1] == "data.fold=3,4"


def test_a_cell_is_a_mean_over_folds_then_seeds(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin")
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 4, 44, best=0.6)
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 4, 45, count=7, best=0.1)
    cells, outside = find_cells(table, read_records(tmp_path))
    (cell,) = [c for c in cells if (c.row.name, c.column, c.chosen_value) == ("GIN", "MUTAG", 4)]
    assert outside == [] and set(cell.seeds) == {43, 44} and cell.partial == 7 and cell.planned == 3
    folds = [[start + n / 100 for n in range(10)] for start in (0.7, 0.6)]
    assert cell.mean(at_best("test")) == pytest.approx(t_interval([statistics.fmean(seed) for seed in folds]))
    assert cell.deviation(at_best("test")) == pytest.approx(statistics.stdev(folds[0]))
    assert cell.mean(at_last("test")).mean == pytest.approx(0.795)


def test_layers_are_chosen_by_validation_and_not_by_test(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin", val=0.81, best=0.5)
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 8, val=0.80, best=0.9)
    write_cell(table, tmp_path, "graphs/gat", "MUTAG", 8)
    write_cell(table, tmp_path, "graphs/gcn", "MUTAG", 4, count=3)
    cells, _ = find_cells(table, read_records(tmp_path))
    chosen = {cell.row.name: cell for cell in choose(table, cells) if cell.column == "MUTAG"}
    assert [chosen[name].chosen_value for name in ("GIN", "GAT", "GCN")] == [4, 8, 4]
    assert not chosen["GCN"].seeds and chosen["GCN"].partial == 3


def test_layers_are_compared_on_the_seeds_that_both_have(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin", val=0.80)
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 4, 44, val=0.9)
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 8, 43, val=0.81, best=0.9)
    write_cell(table, tmp_path, "graphs/gat", "MUTAG", 4, 43)
    write_cell(table, tmp_path, "graphs/gat", "MUTAG", 8, 44, val=0.81)
    write_cell(table, tmp_path, "graphs/gcn", "MUTAG", 4, 43, val=0.81)
    write_cell(table, tmp_path, "graphs/gcn", "MUTAG", 4, 44, val=0.81)
    write_cell(table, tmp_path, "graphs/gcn", "MUTAG", 8, 43)
    cells, _ = find_cells(table, read_records(tmp_path))
    chosen = {cell.row.name: cell.chosen_value for cell in choose(table, cells) if cell.column == "MUTAG"}
    assert [chosen[name] for name in ("GIN", "GAT", "GCN")] == [8, 8, 4]
    text = write_table(table, read_records(tmp_path), tmp_path)[0].read_text()
    (note,) = [line for line in text.splitlines() if "chosen by fewer seeds" in line]
    assert note.endswith("those that both depths have: GAT on MUTAG: 0 of 1; GCN on MUTAG: 1 of 2.")


def test_one_seed_chooses_the_layers_that_the_others_run(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin", val=0.80)
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 8, 43, val=0.81, count=9)
    write_cell(table, tmp_path, "graphs/gat", "MUTAG", 4, 43)
    write_cell(table, tmp_path, "graphs/gat", "MUTAG", 8, 44)
    assert superfluous_runs(table, read_records(tmp_path)) == set()
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 8, 43, val=0.81)
    found = superfluous_runs(table, read_records(tmp_path))
    cells = [cell_of(table, "graphs/gin", "MUTAG", 4, seed) for seed in (43, 44, 45)]
    assert found == {run.key for cell in cells for run in cell}
    every = dataclasses.replace(table, folds=dataclasses.replace(table.folds, choose_once=False))
    assert superfluous_runs(every, read_records(tmp_path)) == set()
    assert superfluous_runs(load_table(TABLES / "arrow.yaml"), []) == set()


def test_a_dry_run_names_what_is_not_needed(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin")
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 8, val=0.81)
    done = run_table("graphs", "--dry-run", "--columns", "MUTAG", "--results", tmp_path, "--runs", tmp_path)
    *lines, total = done.stdout.splitlines()
    rejected = [line.split()[7:9] for line in lines if line.startswith("rejected")]
    assert rejected == [["seed=44", "model.depth=4"], ["seed=45", "model.depth=4"]], done
    assert total.startswith("480 runs: 20 finished, 20 not needed, 440 to run, 440 of unknown cost")


def test_the_table_says_what_is_there_and_what_is_not(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin", val=0.81)
    write_cell(table, tmp_path, "graphs/gin", "MUTAG", 8)
    write_cell(table, tmp_path, "graphs/gat", "MUTAG", 8, count=2)
    write_cell(table, tmp_path, "graphs/plstm")
    paths = write_table(table, read_records(tmp_path), tmp_path)
    text = paths[0].read_text()
    (gin,) = [line for line in text.splitlines() if line.startswith("| [GIN]")]
    cells = [cell.strip() for cell in gin.strip("|").split("|")]
    assert cells[:9] == [
        "[GIN](../folds/graphs-gin-MUTAG.jsonl)", "4", "0.745 ± 0.030", "–", "0.795 ± 0.030", "–", "0.8251 ± 0.10",
        "-0.080", "1,234",
    ]  # fmt: skip
    assert cells[9:] == ["20.0", "1 of 3", "0123456"]
    assert "| GAT | – | – | – | – | – | 0.7822 ± 0.09 | – | – | – | 0 of 3 | – |" in text
    assert "GAT on MUTAG, 8 layers: 2" in text
    assert "| pLSTM | 0.745 (0.851) | – (0.613) | – (0.750) | – (0.732) |" in text
    rows = list(csv.DictReader(io.StringIO(paths[1].read_text())))
    found = {(row["set"], row["model"], row["depth"]): row for row in rows}
    assert len(found) == len(rows) == 4 * 11 + 2 * 5
    assert found["MUTAG", "GIN", "4"]["chosen"] == "1" and found["MUTAG", "GIN", "8"]["chosen"] == "0"
    assert float(found["MUTAG", "GIN", "4"]["test_best"]) == pytest.approx(0.745)
    assert found["NCI1", "GIN", "4"]["test_best"] == "" and float(found["NCI1", "GIN", "4"]["paper"]) == 0.8175
    assert r"\multicolumn{12}{l}{PTC-FM}" in paths[2].read_text()
    assert stale_files(table, read_records(tmp_path), tmp_path) == []
    files = render_table(table, list(reversed(read_records(tmp_path))), tmp_path)
    assert all(path.read_bytes() == data for path, data in files.items())


def test_runs_of_other_settings_are_refused(table, tmp_path):
    run = cell_of(table, "graphs/gin")[0]
    record = fold_record(table, run)
    optim = {**record.config["optim"], "epochs": 10}
    write_record(dataclasses.replace(record, config={**record.config, "optim": optim}), [], tmp_path)
    with pytest.raises(UserError, match="optim.epochs is 10, but table graphs is for 100"):
        find_cells(table, read_records(tmp_path))


def test_cost_comes_from_the_same_set_and_depth(table):
    run = cell_of(table, "graphs/gin")[0]
    alike = [fold_record(table, other) for other in cell_of(table, "graphs/gin", "MUTAG", 4, 44)]
    others = [fold_record(table, other) for other in cell_of(table, "graphs/gin", "NCI1", 4, 44)]
    others = [dataclasses.replace(record, wall_seconds=9e9) for record in others]
    assert sweeps.expected_seconds(run, alike + others, table, HARDWARE) == 20
    assert sweeps.expected_seconds(run, others, table, HARDWARE) is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("fold: data.fold,", "fold: data.part,", "folds.fold is 'data.part', which sweep does not list"),
        ("PTC_FM: PTC-FM,", "PTC: PTC-FM,", "columns must have the values of sweep.data.name"),
        ("sweep: {model.depth: [4]}\n", "sweep: {model.deepth: [4]}\n", "the table does not sweep model.deepth"),
    ],
)
def test_a_wrong_definition_is_named(tmp_path, old, new, words):
    text = (TABLES / "graphs.yaml").read_text()
    assert old in text
    path = tmp_path / "graphs.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=words):
        load_table(path)


def test_the_end_of_a_command_tells_its_cross_validation(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin")
    path = tmp_path / "folds/graphs-gin-MUTAG.jsonl"
    finished = [(path, record.id) for record in read_collection(path)]
    (line,) = describe_folds([*finished, (tmp_path / "runs/0123456789ab.json", "0123456789ab")])
    assert line.startswith("graphs/gin, MUTAG, seed 43, model.depth=4: test accuracy over 10 folds 0.7450 ± 0.0303 at")
    assert describe_folds(finished[:1]) == []


def test_records_of_folds_share_a_file_and_keep_their_curves(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin", count=3)
    path = tmp_path / "folds/graphs-gin-MUTAG.jsonl"
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [path.name]
    assert len(path.read_text().splitlines()) == 3
    write_cell(table, tmp_path, "graphs/gin", count=3)  # the same runs again take their own places
    records = read_records(tmp_path)
    assert len(path.read_text().splitlines()) == len(records) == 3
    assert read_curve(records[0], tmp_path) == [
        CurvePoint(3, 1.0, "val", "accuracy", 0.1235),
        CurvePoint(6, 2.0, "val", "accuracy", 0.5),
    ]


def test_damaged_lines_are_named(table, tmp_path):
    write_cell(table, tmp_path, "graphs/gin", count=2)
    path = tmp_path / "folds/graphs-gin-MUTAG.jsonl"
    good = path.read_text()
    for text, words in (
        (good[:-20], "line 2: not a JSON file"),
        (good.replace('"steps":300', '"steps":"x"', 1), "line 1: field steps must be of type int"),
        (good.replace('"curve":{"step"', '"kurve":{"step"', 1), "line 1: field (curve is missing|kurve is unknown)"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            read_records(tmp_path)
    path.write_text(good)
    path.rename(path.with_name("graphs-gat-MUTAG.jsonl"))
    with pytest.raises(UserError, match="another experiment or data set"):
        read_records(tmp_path)


WAIT_FOR_EACH_OTHER = """
import os, sys, time
name = next(a.partition("=")[2] for a in sys.argv if a.startswith("experiment=")).replace("/", "-")
if name == "graphs-gcn":
    sys.exit(3)
open(name, "w").write(os.environ["NPROC"])
other = {"graphs-gat": "graphs-gin", "graphs-gin": "graphs-gat"}[name]
end = time.monotonic() + 60
while not os.path.exists(other) and time.monotonic() < end:
    time.sleep(0.01)
sys.exit(0 if os.path.exists(other) else 4)
"""


def test_cross_validations_run_side_by_side_a_thread_each(table, tmp_path):
    (tmp_path / "train.py").write_text(WAIT_FOR_EACH_OTHER)
    runs = [run for name in ("gat", "gcn", "gin") for run in cell_of(table, f"graphs/{name}")[:2]]
    done = []
    failures = execution.execute(sweeps.jobs(table, runs), lambda job: [], tmp_path, done.append, processes=2)
    assert failures == [
        "experiment=graphs/gcn data.name=MUTAG seed=43 model.depth=4 data.fold=0,1: exit status 3",
    ]
    assert sorted(job.runs[0].row.name for job in done) == ["GAT", "GIN"]
    assert (tmp_path / "graphs-gat").read_text() == "1"


def test_a_job_that_is_no_longer_needed_is_left_out(table, tmp_path, capsys):
    (tmp_path / "train.py").write_text("import sys; open('started', 'a').write(sys.argv[1] + ' ')")
    runs = [cell_of(table, f"graphs/{name}")[0] for name in ("gat", "gcn", "gin")]
    done = []
    rejects_gcn = lambda job: "gat" not in str(done) or job.runs[0].row.name != "GCN"  # noqa: E731
    work = sweeps.jobs(table, runs)
    assert execution.execute(work, lambda job: [], tmp_path, done.append, is_needed=rejects_gcn) == []
    assert (tmp_path / "started").read_text() == "experiment=graphs/gat experiment=graphs/gin "
    assert "run 2/3: no longer needed: experiment=graphs/gcn" in capsys.readouterr().out


def test_the_majority_of_each_fold_s_training_graphs():
    labels = np.repeat([0, 1], [60, 40])
    assert majority_accuracy(labels, 10, 42) == pytest.approx(0.6)
    assert majority_accuracy(1 - labels, 10, 42) == pytest.approx(0.6)


def test_the_figure_s_points_lie_where_they_should(table, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(fold_figures, "save", lambda figure, path: figures.append(figure))
    write_cell(table, tmp_path, "graphs/plstm", "MUTAG", 4, 43)
    draw_table(table, read_records(tmp_path), tmp_path)
    (axis,) = figures[0].axes
    at = {line.get_label(): line.get_xdata()[0] for line in axis.lines}
    (cell,) = [cell for cell in find_cells(table, read_records(tmp_path))[0] if cell.seeds]
    best, last = (
        statistics.fmean(run.metrics[when]["test"]["accuracy"] for run in read_records(tmp_path))
        for when in ("best", "last")
    )
    assert best != last
    expected = {"ours, best validation epoch": best, "ours, last epoch": last, "paper": cell.paper[0]}
    assert at == pytest.approx(expected)


def test_the_figure_shows_whole_seeds_beside_the_papers(table, tmp_path):
    assert draw_table(table, [], tmp_path) == []
    write_cell(table, tmp_path, "graphs/gin", "NCI1", 8, 43, count=9)
    assert draw_table(table, read_records(tmp_path), tmp_path) == []
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines/graphs.json").write_text('{"baselines": [{"name": "majority class", "MUTAG": 0.665}]}')
    write_cell(table, tmp_path, "graphs/plstm", "MUTAG", 4, 43)
    png, svg = draw_table(table, read_records(tmp_path), tmp_path)
    assert png == tmp_path / "figures/graphs-accuracies.png" and png.stat().st_size > 1000
    shown = {"MUTAG", "pLSTM", "paper", "majority class", "ours, last epoch", "ours, best validation epoch"}
    assert shown <= set(svg_texts(svg)) and not {"GIN", "NCI1", "90% interval over seeds"} & set(svg_texts(svg))
    one_seed = svg.read_bytes()
    draw_table(table, read_records(tmp_path), tmp_path)
    assert svg.read_bytes() == one_seed
    write_cell(table, tmp_path, "graphs/plstm", "MUTAG", 4, 44, best=0.6)
    draw_table(table, read_records(tmp_path), tmp_path)
    assert "90% interval over seeds" in svg_texts(svg)
