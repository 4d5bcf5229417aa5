"""`make verify`: a record that differs from its curve is named."""

import pytest

from plstm.studies.records import record_problems, write_record
from scripts import make_tables
from tests.commands import call_here

from .conftest import example_record


@pytest.fixture
def run(tmp_path):
    """Function of changes to the metrics and to the config: the problems of such a record beside its curve."""
    curve = [(step, step / 10, "val", "accuracy", value) for step, value in ((10, 1 / 3), (20, 1 / 3), (30, 0.25))]
    curve += [(30, 3.0, "val", "loss", 1 / 7), (20, 2.0, "val", "loss", 0.5), (30, 3.0, "test", "accuracy", 0.1)]

    def problems(change=lambda metrics: None, tie="latest", points=curve):
        last = {"val": {"accuracy": 0.25, "loss": 1 / 7, "count": 4}, "test": {"accuracy": 0.1}}
        metrics = {"last": last, "best": {"step": 20, "val": {"accuracy": 1 / 3, "loss": 0.5}}}
        change(metrics)
        config = {"loop": {"best_split": "val", "best_tie": tie}}
        record = example_record(steps=30, epochs=3.0, metrics=metrics, config=config)
        write_record(record, points, tmp_path)
        return record_problems(record, tmp_path)

    return problems


def test_an_unknown_task_is_named(tmp_path):
    (line,) = record_problems(example_record(task="serie"), tmp_path)
    assert line.endswith("there is no task 'serie'")


def test_the_best_step_is_that_of_the_tasks_own_score(tmp_path):
    curve = [(10, 1.0, "val", "skill", 0.3), (30, 3.0, "val", "skill", 0.2)]
    metrics = {"last": {"val": {"skill": 0.2}}, "best": {"step": 30, "val": {"skill": 0.2}}}
    config = {"loop": {"best_split": "val", "best_tie": "latest"}}
    record = example_record(task="series", steps=30, epochs=3.0, metrics=metrics, config=config)
    write_record(record, curve, tmp_path)
    (line,) = record_problems(record, tmp_path)
    assert "metrics.best.step is 30, but 10 follows" in line


def test_a_metric_that_was_not_finite_has_no_point_in_the_curve(run, tmp_path, monkeypatch):
    assert run(lambda metrics: metrics["last"]["test"].update(loss=None)) == []
    (line,) = run(lambda metrics: metrics["last"]["val"].update(loss=None))
    monkeypatch.setattr(make_tables, "render_table", lambda *_: {})
    done = call_here(make_tables.main, "--check", "--results", tmp_path)
    assert done.status == 1 and line in done.output.splitlines()


@pytest.mark.parametrize(
    ("change", "tie", "words"),
    [
        (lambda m: m["last"]["val"].update(accuracy=0.2501), "latest", "metrics.last.val.accuracy is 0.2501, but 0.25"),
        (lambda m: m["last"]["val"].update(loss=0.14287), "latest", "metrics.last.val.loss is 0.14287, but 0.142857"),
        (lambda m: m["last"]["test"].update(accuracy=0.2), "latest", "metrics.last.test.accuracy is 0.2, but 0.1"),
        (lambda m: m["last"]["test"].pop("accuracy"), "latest", "metrics.last.test.accuracy is None, but 0.1"),
        (lambda m: m["best"]["val"].update(loss=0.51), "latest", "metrics.best.val.loss is 0.51, but 0.5"),
        (lambda m: None, "earliest", "metrics.best.step is 20, but 10"),
        (lambda m: m["best"].update(step=10), "latest", "metrics.best.step is 10, but 20"),
        (lambda m: m.update(best=None), "latest", "metrics.best.step is None, but 20"),
        (lambda m: m["last"].update(train={"accuracy": 0.3}), "latest", "metrics.last.train.accuracy is 0.3, but None"),
    ],
)
def test_what_does_not_follow_from_the_curve_is_named(run, change, tie, words, tmp_path):
    assert run() == []
    (line,) = run(change, tie)
    assert f"{tmp_path}/runs/arrow-plstm.jsonl, run " in line and f"{words} follows from its curve" in line
