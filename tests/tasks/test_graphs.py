"""Graphs on the training loop: folds and their records, batch norm's statistics, and runs that are killed."""

import json
import signal
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import plstm
from data.graphs.tudataset import Sizes
from plstm.errors import UserError
from plstm.runs.compose import to_config
from plstm.runs.weights import from_checkpoint
from plstm.studies.records import read_curve, read_records, record_problems
from plstm.tasks import TASKS, graphs
from plstm.tasks.graphs import GraphBatches, GraphSplit
from plstm.training.steps import evaluate, make_ready, named_leaves
from tests.commands import SPEED, TIMES, read_metrics, state_of, steps_of
from tests.training.classifying import expected_metrics

TINY = ["debug=smoke", "experiment=graphs/gin", "model.dim=8", "optim.epochs=8", "loop.save_every=2"]


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory) -> Path:
    """Two folds, one after the other in one process."""
    folder = tmp_path_factory.mktemp("folds")
    train(folder, *TINY, "data.fold=0,1")
    return folder


@pytest.fixture(scope="module")
def records(finished) -> dict:
    """By fold."""
    return {record.config["data"]["fold"]: record for record in read_records(finished / "results")}


@pytest.fixture(scope="module")
def run(finished, records) -> Path:
    return finished / "runs" / records[0].id


@pytest.fixture
def task(composed):
    return TASKS["graphs"](to_config(composed(*TINY)))


def test_each_fold_leaves_a_record_and_three_curves(finished, records):
    assert [path.name for path in (finished / "results").rglob("*.jsonl")] == ["graphs-gin.jsonl"]
    assert set(records) == {0, 1} and records[0].metrics != records[1].metrics
    for fold, record in records.items():
        assert record.name == f"graphs-gin-TOY-f{fold}-s43"
        assert (record.steps, record.epochs, record.unit) == (16, 8, "graphs")
        assert {split: metrics["count"] for split, metrics in record.metrics["last"].items()} == {"val": 4, "test": 4}
        assert "data/graphs" not in json.dumps(dict(record)), "records know no folders"
        curve = read_curve(record, finished / "results")
        of_train = [point for point in curve if (point.split, point.metric) == ("train", "loss")]
        assert [(point.step, point.epoch) for point in of_train] == [(2 * n, n) for n in range(1, 9)]
        kept = {(point.split, point.metric) for point in curve}
        assert kept == {("train", "loss"), ("val", "accuracy"), ("test", "accuracy")}
        scores = {point.step: point.value for point in curve if point.split == "val"}
        assert record.metrics["best"]["step"] == min(s for s in scores if scores[s] == max(scores.values()))
        assert record_problems(record, finished / "results") == []
        lines = read_metrics(finished / "runs" / record.id / "metrics.jsonl")
        rates = [line["learning_rate"] for line in lines if "learning_rate" in line]  # changes by the epoch
        cosine = 1e-6 + (1e-3 - 1e-6) * (1 + np.cos(np.pi * np.arange(8) / 7)) / 2  # after one epoch of warm-up
        np.testing.assert_allclose(rates, cosine, rtol=1e-5)


@pytest.mark.slow
def test_a_killed_fold_resumes_to_the_same_numbers(records, run, start, train, tmp_path):
    status, output = start(tmp_path, {"event": "save", "count": 3}, "data.fold=0", base=TINY)
    assert status == -signal.SIGKILL, output
    assert not (tmp_path / "results").exists()
    assert "resumed at step" in train(tmp_path, *TINY, "data.fold=0")
    (record,) = read_records(tmp_path / "results")
    ours, theirs = (dict(each) for each in (record, records[0]))
    for key in ours.keys() - TIMES - {"command", "overrides", "earlier"}:
        assert ours[key] == theirs[key], key
    resumed = tmp_path / "runs" / record.id
    lines = [[line | dict.fromkeys(SPEED) for line in read_metrics(r / "metrics.jsonl")] for r in (resumed, run)]
    assert lines[0] == lines[1]
    assert state_of(resumed) == state_of(run)


def test_running_statistics_are_trained_kept_and_used(records, run, task):
    state = ocp.StandardCheckpointer().restore(run / "checkpoints" / str(steps_of(run / "checkpoints")[-1]) / "state")
    means = {name: value for name, value in named_leaves(state).items() if "statistics" in name and "mean" in name}
    assert len(means) == 4 and all(np.abs(mean).max() > 1e-3 for mean in means.values())  # two norms in two layers
    measure, weights, place = make_ready(from_checkpoint(run), task.metrics, 16)
    found = {name: evaluate(measure, weights, task.split(name), 16, place) for name in ("val", "test")}
    assert found == records[0].metrics["last"]


def test_weights_hold_the_running_statistics_and_need_no_data(run, tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "load_batches", None)
    monkeypatch.setattr(graphs, "SIZES", {})
    model = from_checkpoint(run)
    plstm.save(model, tmp_path / "gin.safetensors")
    other = from_checkpoint(tmp_path / "gin.safetensors")
    ours, theirs = (named_leaves(nnx.state(each, nnx.BatchStat)) for each in (model, other))
    assert len(ours) == 8
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    for each in (model, other):
        assert each.info.class_names == ("-1", "1") and each.info.sizes["classes"] == 2
        assert each.encoder.kernel.shape == (each.info.sizes["features"], 8)


def test_a_readout_whose_units_all_stay_at_zero_is_seen(composed):
    task = TASKS["graphs"](to_config(composed(*TINY, "model.kind=lstm")))
    model, batch = task.build_model(0), task.split("val").first(16)
    total, count = task.metrics(model, batch)["active_units"]
    assert count == 4 and 0 < total / count < 1
    model.readout.hidden.bias[...] -= 1e6
    total, count = task.metrics(model, batch)["active_units"]
    assert (total, count) == (0, 4)


def test_the_training_loss_leaves_out_padding_graphs(composed):
    task = TASKS["graphs"](to_config(composed(*TINY, "model.kind=gcn")))
    batch = task.source.batch(task.fold.train[:11])

    @jax.jit
    def found(batch):
        model = task.build_model(0)
        return task.loss(model, batch, jax.random.key(0)), task.logits(model, batch)

    (loss, metrics), logits = found(batch)
    expected = expected_metrics(logits[:11], batch["label"][:11])
    assert float(loss) == pytest.approx(expected["loss"], rel=1e-5) and metrics["loss"][1] == 11


def test_a_set_that_is_not_compared_with_the_known_one_has_its_own_sizes(task, monkeypatch):
    config, own = task.config, task.source.graphs.features.shape[1]
    monkeypatch.setitem(graphs.SIZES, "TOY", Sizes(99, ("no", "yes")))
    known = TASKS["graphs"](config)
    assert (known.sizes, known.class_names) == ({"features": 99, "classes": 2}, ("no", "yes"))
    config.data.verify = False
    task = TASKS["graphs"](config)
    assert (task.sizes, task.class_names) == ({"features": own, "classes": 2}, ("-1", "1"))


def test_a_split_is_cut_into_batches_no_larger_than_those_of_the_training(task):
    split = GraphSplit(GraphBatches(task.source.graphs, 4), np.arange(11))
    for size, counts in ((8, [4, 4, 3]), (3, [3, 3, 3, 2])):
        assert [batch["mask"].sum() for batch in split.batches(size)] == counts
        assert split.first(size) is next(split.batches(size))  # only what is asked for is made


def test_several_devices_are_refused(task, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    with pytest.raises(UserError, match="^task graphs: trains on one device, not 2"):
        _ = task.source


def test_splits_and_epochs_have_the_graphs_of_their_part_of_the_fold(task):
    graphs = task.source.graphs

    def told_apart(batches) -> list[bytes]:
        """The first node's features of each graph, of which no two in this set have the same."""
        places = [(batch, n) for batch in batches for n in range(batch["mask"].sum())]
        return [batch["features"][batch["graph"] == n][0].tobytes() for batch, n in places]

    firsts = lambda indices: [graphs.features[graphs.node_start[g]].tobytes() for g in indices]  # noqa: E731
    parts = {name: firsts(getattr(task.fold, name)) for name in task.splits}
    assert len(set(sum(parts.values(), []))) == len(graphs)
    assert {name: told_apart(task.split(name).batches(16)) for name in parts} == parts
    assert (task.train_examples, task.steps_per_epoch) == (32, 2)

    def epoch(seed: int, number: int, count: int = 1) -> list[bytes]:
        task.config.seed = seed
        return told_apart(task.draw_batch(step) for step in range(2 * number, 2 * (number + count)))

    found = [epoch(43, 0), epoch(43, 1), epoch(44, 0)]
    assert epoch(43, 0, 2) == found[0] + found[1]
    assert all(sorted(each) == sorted(parts["train"]) for each in found) and len(set(map(tuple, found))) == 3
