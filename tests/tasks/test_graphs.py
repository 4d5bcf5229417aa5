"""Graphs on the training loop: folds and their records, ties, batch norm's statistics, and runs that are killed."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from data.graphs.tudataset import Sizes
from plstm.config import LoopConfig, check
from plstm.errors import UserError
from plstm.results.records import read_curve, read_records
from plstm.results.verify import record_problems, rerun_problems
from plstm.runs.folders import load_config
from plstm.runs.weights import from_checkpoint, save_safetensors
from plstm.tasks import TASKS, graphs
from plstm.tasks.graphs import GraphTrainBatches
from plstm.training.steps import share_programs
from plstm.training.tracking import read_metrics
from tests.fork_server import ForkServer
from train import Training

ROOT = Path(__file__).resolve().parents[2]
TINY = ["debug=smoke", "experiment=graphs/gin", "model.dim=8", "optim.epochs=8", "loop.save_every=2"]
TIMES = {"started", "finished", "wall_seconds", "images_per_second"}  # what no two runs have in common


@pytest.fixture(scope="module")
def start():
    """Function of (folder, plan, overrides): runs TINY there to its end; returns exit status and output."""
    server = ForkServer({"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})

    def start(folder: Path, plan: dict | None = None, *overrides: str) -> tuple[int, str]:
        paths = [f"paths.runs={folder}/runs", f"paths.results={folder}/results"]
        return server.run([*TINY, *overrides, *paths], folder / "output", plan)

    yield start
    server.close()


@pytest.fixture(scope="module")
def finished(start, tmp_path_factory) -> Path:
    """Two folds, one after the other in one process."""
    folder = tmp_path_factory.mktemp("folds")
    status, output = start(folder, None, "data.fold=0,1")
    assert status == 0, output
    return folder


@pytest.fixture
def config(finished):
    """That of the first fold."""
    run = next(record.id for record in read_records(finished / "results") if record.config["data"]["fold"] == 0)
    config = load_config(finished / "runs" / run)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, root=str(ROOT / "tests/data")))


def records_by_fold(folder: Path) -> dict:
    return {record.config["data"]["fold"]: record for record in read_records(folder / "results")}


def state_of(run: Path) -> dict[str, np.ndarray]:
    """All arrays of the last checkpoint."""
    last = max(
        (path for path in (run / "checkpoints").iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
    state = ocp.StandardCheckpointer().restore(last / "state")
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def test_each_fold_leaves_a_record_and_three_curves(finished, monkeypatch):
    monkeypatch.setenv("PLSTM_DATA", str(ROOT / "tests/data"))  # records know no folders
    assert [path.name for path in (finished / "results").rglob("*") if path.is_file()] == ["graphs-gin-TOY.jsonl"]
    records = records_by_fold(finished)
    assert set(records) == {0, 1}
    for fold, record in records.items():
        assert record.name == f"graphs-gin-TOY-f{fold}-s43"
        assert (record.steps, record.epochs) == (16, 8)
        assert {split: metrics["count"] for split, metrics in record.metrics["last"].items()} == {"val": 4, "test": 4}
        assert "tests/data" not in json.dumps(dataclasses.asdict(record))
        curve = read_curve(record, finished / "results")
        of_train = [point for point in curve if (point.split, point.metric) == ("train", "loss")]
        assert [(point.step, point.epoch) for point in of_train] == [(2 * n, n) for n in range(1, 9)]
        assert {(point.split, point.metric) for point in curve} == {
            ("train", "loss"),
            ("val", "accuracy"),
            ("test", "accuracy"),
        }
        scores = {point.step: point.value for point in curve if point.split == "val"}
        assert record.metrics["best"]["step"] == min(s for s in scores if scores[s] == max(scores.values()))
        assert record_problems(record, finished / "results") == []
    assert records[0].metrics != records[1].metrics


def test_the_learning_rate_changes_by_the_epoch(finished):
    """Here one epoch of warm-up, then a cosine over the other seven."""
    run = finished / "runs" / records_by_fold(finished)[0].id
    rates = [line["learning_rate"] for line in read_metrics(run / "metrics.jsonl") if "learning_rate" in line]
    peak, end = 1e-3, 1e-6
    expected = end + (peak - end) * (1 + np.cos(np.pi * np.arange(8) / 7)) / 2
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_a_wrong_figure_in_a_fold_s_record_is_found(finished, monkeypatch):
    monkeypatch.setenv("PLSTM_DATA", str(ROOT / "tests/data"))
    record = records_by_fold(finished)[0]
    last = {**record.metrics["last"], "test": {**record.metrics["last"]["test"], "accuracy": 0.125}}
    wrong = dataclasses.replace(record, metrics={**record.metrics, "last": last})
    assert any("metrics.last.test.accuracy is 0.125" in line for line in record_problems(wrong, finished / "results"))
    shifted = dataclasses.replace(record, config={**record.config, "data": {**record.config["data"], "fold_seed": 1}})
    assert any("field id" in line or "id is" in line for line in record_problems(shifted, finished / "results"))


def test_folds_that_have_finished_are_not_trained_again(finished, start):
    before = (finished / "results/folds/graphs-gin-TOY.jsonl").read_bytes()
    status, output = start(finished, None, "data.fold=0,1")
    assert status == 0 and output.count("has finished; its record is") == 2
    assert (finished / "results/folds/graphs-gin-TOY.jsonl").read_bytes() == before


def test_a_killed_fold_resumes_to_the_same_numbers(finished, start, tmp_path):
    status, output = start(tmp_path, {"event": "save", "count": 3}, "data.fold=0")
    assert status == -signal.SIGKILL, output
    assert not (tmp_path / "results").exists()
    status, output = start(tmp_path, None, "data.fold=0")
    assert status == 0 and "resumed at step" in output, output
    ours, theirs = (dataclasses.asdict(records_by_fold(folder)[0]) for folder in (tmp_path, finished))
    for key in ours.keys() - TIMES - {"command", "overrides"}:
        assert ours[key] == theirs[key], key
    runs = [folder / "runs" / ours["id"] for folder in (tmp_path, finished)]
    lines = [[{**line, "images_per_second": 0} for line in read_metrics(run / "metrics.jsonl")] for run in runs]
    assert lines[0] == lines[1]
    for name, expected in state_of(runs[1]).items():
        assert state_of(runs[0])[name].tobytes() == expected.tobytes(), name


def test_running_statistics_are_trained_kept_and_used(finished, config):
    record = records_by_fold(finished)[0]
    run = finished / "runs" / record.id
    means = {name: value for name, value in state_of(run).items() if "statistics" in name and "mean" in name}
    assert len(means) == 4 and all(np.abs(mean).max() > 1e-3 for mean in means.values())  # two norms in two layers
    problems, line = rerun_problems(record, run)  # from the checkpoint alone
    assert problems == [] and "the same digits" in line and "best" not in line


def test_exported_weights_hold_the_running_statistics_and_need_no_data(finished, tmp_path, monkeypatch):
    run = finished / "runs" / records_by_fold(finished)[0].id
    model = from_checkpoint(run)
    save_safetensors(model, tmp_path / "gin.safetensors")
    monkeypatch.setattr(graphs, "prepare", None)
    other = from_checkpoint(tmp_path / "gin.safetensors")
    ours, theirs = (dict(nnx.to_flat_state(nnx.state(m, nnx.BatchStat))) for m in (model, other))
    assert len(ours) == 8 and ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name][...], theirs[name][...])
    assert other.info.class_names == ("-1", "1")


def test_a_set_that_is_not_compared_with_the_known_one_has_its_own_sizes(config, monkeypatch):
    monkeypatch.setitem(graphs.SIZES, "TOY", Sizes(40, 99, ("no", "yes")))
    assert TASKS["graphs"](config).features == 99
    task = TASKS["graphs"](dataclasses.replace(config, data=dataclasses.replace(config.data, verify=False)))
    assert (task.features, task.class_names) == (task.source.graphs.features.shape[1], ("-1", "1"))


def test_a_split_is_cut_into_batches_no_larger_than_those_of_the_training(config):
    source = graphs.GraphBatches(TASKS["graphs"](config).source.graphs, 4)
    split = graphs.GraphSplit(source, np.arange(11))
    for size, counts in ((8, [4, 4, 3]), (3, [3, 3, 3, 2])):
        part = next(split.batches(size))  # only what is asked for is made
        batches = list(split.batches(size))
        assert batches[0] is part and [batch["mask"].sum() for batch in batches] == counts


def test_an_epoch_has_every_training_graph_once_in_its_own_order(config):
    task = TASKS["graphs"](config)
    per_epoch = task.steps_per_epoch
    batches = GraphTrainBatches(task.source, task.fold.train, 0, lambda batch: batch)
    assert (task.train_examples, per_epoch) == (32, 2)
    stream = batches.from_step(0)
    first, second = ([next(stream) for _ in range(per_epoch)] for _ in range(2))
    number = numbering(task.source.graphs)
    assert sorted(number(first)) == sorted(number(second)) == sorted(task.fold.train.tolist())
    assert number(first) != number(second)
    later = next(batches.from_step(3))
    np.testing.assert_array_equal(later["features"], second[1]["features"])


def test_a_split_has_the_graphs_of_its_part_of_the_fold(config):
    task = TASKS["graphs"](config)
    number = numbering(task.source.graphs)
    for name in task.splits:
        assert number(task.split(name).batches(16)) == getattr(task.fold, name).tolist()


def numbering(graphs):
    """Function of batches: their graphs' numbers in the set, in order, told by the first node's features."""
    known = {graphs.features[row].tobytes(): g for g, row in enumerate(graphs.node_start[:-1])}
    assert len(known) == len(graphs)

    def number(batches) -> list[int]:
        places = [(batch, n) for batch in batches for n in range(batch["mask"].sum())]
        rows = [(batch, np.flatnonzero(batch["graph"] == n)[0]) for batch, n in places]
        return [known[batch["features"][row].tobytes()] for batch, row in rows]

    return number


@pytest.mark.parametrize(("tie", "equal_is_best"), [("latest", True), ("earliest", False)])
def test_of_equal_accuracies_the_config_says_which_is_best(tie, equal_is_best):
    loop = LoopConfig(best_tie=tie)
    run = SimpleNamespace(config=SimpleNamespace(loop=loop), info={"best": {"step": 2, "val": {"accuracy": 0.5}}})
    for accuracy, expected in ((0.25, False), (0.5, equal_is_best), (0.75, True)):
        assert Training.is_best(run, {"val": {"accuracy": accuracy}}) is expected
    assert Training.is_best(SimpleNamespace(config=run.config, info={"best": None}), {"val": {"accuracy": 0.0}})


def test_runs_with_one_key_share_what_is_compiled():
    made = []
    for key in "aabba":
        share_programs(key, lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("data", {"fold": 10}, "data.fold=10: must be from 0 to data.folds - 1, 9"),
        ("data", {"folds": 2}, "data.folds=2: must be at least 3"),
        ("mesh", {"fsdp": 2}, "mesh.fsdp=2"),
        ("optim", {"label_smoothing": 0.1}, "optim.label_smoothing=0.1"),
        ("optim", {"schedule_per": "day"}, "optim.schedule_per=day: choose one of step, epoch"),
        ("loop", {"unit": "days"}, "loop.unit=days: choose one of steps, epochs"),
        ("loop", {"best_tie": "any"}, "loop.best_tie=any: choose one of latest, earliest"),
        ("loop", {"eval_every": 2, "save_every": 3}, "loop.save_every=3: must be a multiple of loop.eval_every=2"),
        ("loop", {"save_every": 0}, "loop.save_every=0"),
        ("model", {"kind": "gtn"}, "model.kind=gtn"),
    ],
)
def test_wrong_values_are_named(config, part, changes, message):
    wrong = dataclasses.replace(config, **{part: dataclasses.replace(getattr(config, part), **changes)})
    with pytest.raises(UserError, match=message):
        check(wrong)


def test_the_best_checkpoint_of_a_run_that_kept_none_is_refused(finished):
    run = finished / "runs" / records_by_fold(finished)[0].id
    with pytest.raises(UserError, match=rf"{run}: kept no best checkpoint \(loop.save_every is 2\)"):
        from_checkpoint(run, checkpoint="best")
