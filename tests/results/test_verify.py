"""`make verify`: a record that differs from its curve, and a benchmark that differs from its parts, are named."""

import json

import pytest

from plstm.errors import UserError
from plstm.results.records import find_record, read_records, write_record
from plstm.results.verify import measured_problems, record_problems
from scripts import verify

from .conftest import ROOT, example_record

RESULTS = ROOT / "results"


def numbers(node):
    """(object, key) of every number in a JSON value."""
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from [(node, key)] if isinstance(child, float) else numbers(child)


def test_the_results_here_are_true(capsys):
    assert verify.main() == 0 and "records and the benchmarks: 0 problems" in capsys.readouterr().out
    assert "make verify" in (ROOT / ".ci/run").read_text()


@pytest.fixture
def run(tmp_path):
    """Function of changes to the metrics and to the config: the problems of such a record beside its curve."""
    curve = [(step, step / 10, "val", "accuracy", value) for step, value in ((10, 1 / 3), (20, 1 / 3), (30, 0.25))]
    curve += [(30, 3.0, "val", "loss", 1 / 7), (20, 2.0, "val", "loss", 0.5)]

    def problems(change=lambda metrics: None, tie="latest", points=curve):
        last = {"val": {"accuracy": 0.25, "loss": 1 / 7, "count": 4}, "test": {"accuracy": 0.1}}
        metrics = {"last": last, "best": {"step": 20, "val": {"accuracy": 1 / 3, "loss": 0.5}}}
        change(metrics)
        config = {"loop": {"best_split": "val", "best_tie": tie}}
        record = example_record(steps=30, epochs=3.0, metrics=metrics, config=config)
        write_record(record, points, tmp_path)
        return record_problems(record, tmp_path)

    return problems


def test_a_metric_that_was_not_finite_has_no_point_in_the_curve(run):
    assert run(lambda metrics: metrics["last"]["test"].update(loss=None)) == []
    assert len(run(lambda metrics: metrics["last"]["val"].update(loss=None))) == 1


@pytest.mark.parametrize(
    ("change", "tie", "words"),
    [
        (lambda m: m["last"]["val"].update(accuracy=0.2501), "latest", "metrics.last.val.accuracy is 0.2501, but 0.25"),
        (lambda m: m["last"]["val"].update(loss=0.14287), "latest", "metrics.last.val.loss is 0.14287, but 0.142857"),
        (lambda m: m["best"]["val"].update(loss=0.51), "latest", "metrics.best.val.loss is 0.51, but 0.5"),
        (lambda m: None, "earliest", "metrics.best.step is 20, but 10"),
        (lambda m: m["best"].update(step=25), "latest", "metrics.best.step is 25, but 20"),
        (lambda m: m.update(best=None), "latest", "metrics.best.step is None, but 20"),
    ],
)
def test_what_does_not_follow_from_the_curve_is_named(run, change, tie, words, tmp_path):
    assert run() == [] and run(lambda m: m.update(best=None), points=[]) == []
    (line,) = run(change, tie)
    assert f"{tmp_path}/runs/arrow-plstm.jsonl, run " in line and f"{words} follows from its curve" in line


def test_a_final_metric_of_a_record_here(tmp_path):
    (record,) = [record for record in read_records(RESULTS) if record.experiment == "demo/plstm"]
    assert find_record(record.id, record.experiment, RESULTS) == record
    metrics = json.loads(json.dumps(record.metrics))
    places = [(node, key) for node, key in numbers(metrics) if key != "count"]
    assert len(places) == 16
    for node, key in places:
        before = node[key]
        node[key] += 1e-3
        assert record_problems(record.model_copy(update={"metrics": metrics}), RESULTS)
        node[key] = before


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("benchmarks/operator-cpu.json", {"median_seconds", "speedup", "speedup_over_scan"}),
        ("benchmarks/model-cpu.json", {"median_seconds", "ratio"}),
        ("benchmarks/memory-cpu.json", {"time_ratio", "memory_ratio"}),
        ("benchmarks/data-cpu.json", {"views_per_second"}),
    ],
)
def test_a_digit_of_a_measurement(tmp_path, name, keys):
    content = json.loads((RESULTS / name).read_text())
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    places = [(node, key) for node, key in numbers(content) if key in keys]
    places = [(node, key) for node, key in places if key != "median_seconds" or "seconds" in node]
    assert places
    for node, key in places[::7]:
        before = node[key]
        node[key] *= 1 + 1e-9
        path.write_text(json.dumps(content))
        assert any(f"{key} is {node[key]!r}" in line and str(path) in line for line in measured_problems(tmp_path))
        node[key] = before
    path.write_text("{")
    with pytest.raises(UserError, match=f"{path}: not a JSON file"):
        measured_problems(tmp_path)
