"""The loop of train.py: when the host reads from the device, and what a run of several sessions says of them."""

import dataclasses
import itertools
import json
import math
import re
import signal
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import pytest

import train
from plstm.config import LoopConfig
from plstm.errors import ReadError, UserError
from plstm.runs import session
from plstm.runs.compose import to_config
from plstm.runs.folders import lock_folder
from plstm.runs.identity import run_id
from plstm.runs.session import Stopped
from plstm.studies.records import commits_of, read_curve, read_records, record_path
from plstm.tasks import TASKS
from plstm.training import progress
from plstm.training.checkpoints import Checkpoints, _write_checksums
from plstm.training.processes import Interrupt
from plstm.training.progress import MetricAverager
from plstm.training.state import RunState
from tests.commands import paths, read_metrics


@pytest.fixture
def config(composed, tmp_path):
    folders = [f"data.root={tmp_path}", *paths(tmp_path)]
    tiny = ["debug=smoke", "model=vit_small", "model.dim=16", "model.heads=2", "logger.mode=disabled"]
    loop = ["optim.epochs=4", "loop.log_every=5", "loop.eval_every=1000", "loop.final_splits=[val]"]
    return to_config(composed("experiment=arrow_48/vit", "variant=demo", *tiny, *loop, *folders))


@pytest.fixture
def start(config):
    """Function that starts, or resumes, a short run in this process; a signal may have come before its first step."""

    def start(signal_number: int | None = None):
        with Interrupt() as start.interrupt:
            start.interrupt.signal_number = signal_number
            return train.start(config, [], start.interrupt)

    return start


@pytest.mark.slow
def test_a_record_names_the_commits_and_machines_of_all_sessions(start, config, tmp_path, monkeypatch):
    environment = session.describe_environment(train.ROOT)
    first, second = ({**environment, "commit": digit * 40, "dirty": digit == "a"} for digit in "ab")
    checkpoints, seconds = tmp_path / "runs" / run_id(config) / "checkpoints", 0.0
    for machine in (first, second, second):
        monkeypatch.setattr(session, "describe_environment", lambda root, made=machine: made)
        with pytest.raises(Stopped) as stopped:
            start(signal.SIGTERM)
        assert stopped.value.args == (signal.SIGTERM,)
        kept = Checkpoints(checkpoints, run_id(config), read_only=True)
        info = kept.info(kept.last_step())
        assert info["seconds"] > seconds
        seconds = info["seconds"]
    monkeypatch.setattr(session, "describe_environment", lambda root: environment)
    assert start().wall_seconds >= round(seconds, 1)
    (record,) = read_records(tmp_path / "results")
    assert record.earlier == [{"until": 1, **first}, {"until": 3, **second}]
    assert (record.commit, record.hardware) == (environment["commit"], environment["hardware"])
    assert {"aaaaaaa*", "bbbbbbb"} < set(commits_of([record]))
    assert start() == record  # it has finished
    path = record_path(config.experiment, tmp_path / "results")
    path.write_bytes(bytes(100))
    with pytest.raises(UserError, match=f"{path}, line 1: Invalid JSON.*; restore the line or remove it"):
        start()
    path.write_text("")  # an empty file is no record of a finished run: it is written again
    assert start().metrics == record.metrics and len(read_records(tmp_path / "results")) == 1


def test_a_checkpoint_of_a_longer_plan_is_refused(start, config, tmp_path):
    """Whoever changes a checkpoint can write its sums anew."""
    with pytest.raises(Stopped):
        start(signal.SIGTERM)
    folder = tmp_path / "runs" / run_id(config)
    step = folder / "checkpoints" / "1"
    info = step / "info" / "metadata"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"steps": 1_000_000}))
    _write_checksums(step)
    with pytest.raises(UserError, match=f"{folder}: its checkpoints go beyond step [0-9]+; remove the folder"):
        start()


def test_pictures_that_cannot_be_drawn_cost_no_record(start, config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "draw_run", Mock(side_effect=RuntimeError("no LaTeX\nat all")))
    record = start()
    assert read_records(tmp_path / "results") == [record]
    assert "figures: pictures could not be drawn (RuntimeError: no LaTeX)\n" in capsys.readouterr().out


@pytest.mark.parametrize(("backend", "experiment"), [("cpu", "arrow"), ("gpu", "arrow"), ("cpu", "arrow_48")])
def test_a_cpu_s_day_of_training_is_announced_before_the_data(
    composed, tmp_path, monkeypatch, capsys, backend, experiment
):
    config = to_config(composed(f"experiment={experiment}/plstm", "logger.mode=disabled", *paths(tmp_path)))
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(TASKS["arrow"], "split", Mock(side_effect=UserError("no data")))
    with pytest.raises(UserError, match="no data"), Interrupt() as interrupt:
        train.start(config, [], interrupt)
    is_long = (backend, experiment) == ("cpu", "arrow")
    said = capsys.readouterr().out
    assert re.fullmatch(r"warning: about [\d,]+ hours on this machine's CPU, .*\n" if is_long else "", said)


def test_the_host_reads_from_the_device_at_log_points_only(start, config, monkeypatch):
    now, reads, array = SimpleNamespace(step=None), [], type(jnp.zeros(1))
    add, value = MetricAverager.add, array._value  # what float(), int() and NumPy call for an array's numbers

    def count_step(self, metrics):
        now.step = (now.step or 0) + 1
        return add(self, metrics)

    def evaluate(*arguments):  # what follows the last step may read
        now.step = None
        return {"loss": 0.0, "accuracy": 0.0, "count": 1}

    monkeypatch.setattr(MetricAverager, "add", count_step)
    monkeypatch.setattr(session, "evaluate", evaluate)
    monkeypatch.setattr(array, "_value", property(lambda self: reads.append(now.step) or value.fget(self)))
    start()
    steps = TASKS[config.task](config).plan().steps
    assert steps >= 12
    assert set(reads) - {None} == {*range(5, steps, 5), steps}


def test_a_run_ends_early_at_the_step_whose_evaluation_reaches_its_goal(config, start, monkeypatch):
    config.loop.eval_every, config.loop.stop_at, config.loop.eval_splits = 4, 0.9, ["val", "test"]
    found = iter([0.899, 0.95, 0.9, 0.1, 0.6])  # val and test at steps 4 and 8, then val
    monkeypatch.setattr(session, "evaluate", lambda *_: {"loss": 0.0, "accuracy": next(found), "count": 1})
    first = session.describe_environment(train.ROOT) | {"commit": "a" * 40}
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(session, "describe_environment", lambda root: first)
        start(signal.SIGTERM)
    record = start()
    assert record.earlier == [{"until": 1, **first}] and record.commit != first["commit"]
    assert (record.steps, record.epochs) == (8, 1)
    assert record.metrics["last"]["val"]["accuracy"] == 0.6 and record.metrics["best"]["step"] == 8


def test_speeds_leave_out_evaluations_and_saves(config, start, tmp_path, monkeypatch):
    """A step takes a second here, and all else a hundred."""
    config.loop.eval_every, config.loop.save_every = 4, 8
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def slower(function, seconds):
        def call(*arguments):
            clock.now += seconds
            return function(*arguments)

        return call

    monkeypatch.setattr(MetricAverager, "add", slower(MetricAverager.add, 1))
    monkeypatch.setattr(Checkpoints, "save", slower(Checkpoints.save, 100))
    monkeypatch.setattr(session, "evaluate", slower(lambda *_: {"loss": 0.0, "accuracy": 0.0, "count": 1}, 100))
    start()
    lines = read_metrics(tmp_path / "runs" / run_id(config) / "metrics.jsonl")
    speeds = [line.get("examples_per_second") for line in lines if line["split"] == "train"]
    assert len(speeds) > 10 and {*speeds} == {config.optim.batch_size}


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_where_batches_cannot_be_read_the_run_saves_before_it_ends(
    config, tmp_path, monkeypatch, capsys, start, number
):
    """As where a reading process was killed, for want of memory or by the signal that ends the whole job."""
    batches = TASKS["arrow"].batches

    def broken(whole, step):
        yield from itertools.islice(whole.from_step(step), 7 - step)
        with pytest.raises(UserError, match="another process"), lock_folder(tmp_path / "runs" / run_id(config)):
            pass
        start.interrupt.signal_number = number
        raise ReadError("image 7 is gone")

    def break_batches(*arguments):
        return SimpleNamespace(from_step=lambda step: broken(batches(*arguments), step))

    ended = pytest.raises(Stopped, match="15") if number else pytest.raises(ReadError, match="image 7 is gone")
    with monkeypatch.context() as patch, ended:
        patch.setattr(TASKS["arrow"], "batches", break_batches)
        start()
    said = f"stopped by signal {number} at step 7, saved" if number else "saved at step 7"
    assert f"{said}; the same command resumes the run" in capsys.readouterr().out.replace("\n", " ")
    (tmp_path / "runs" / run_id(config) / "metrics.jsonl").write_bytes(b"\xff")
    curve = read_curve(start(), tmp_path / "results")
    said = capsys.readouterr().out.replace("\n", " ")
    assert "resumed at step 7" in said and "metrics.jsonl: was damaged; restored from the checkpoint" in said
    assert [point.step for point in curve if (point.split, point.metric) == ("train", "loss")][0] == 5


@pytest.mark.parametrize(("tie", "equal_is_best"), [("latest", True), ("earliest", False)])
def test_of_equal_scores_the_config_says_which_is_best(tie, equal_is_best):
    def best_step(loop: LoopConfig, *accuracies: float) -> int | None:
        run = RunState(steps=10, sizes={}, class_names=[])
        for run.step, accuracy in enumerate(accuracies, 1):
            run.add_evaluation({"val": {"accuracy": accuracy}}, loop, "accuracy")
        assert (run.evaluated, run.steps) == (len(accuracies), 10)
        return run.best and run.best["step"]

    loop = LoopConfig(best_tie=tie)
    assert best_step(loop, 0.0) == 1
    assert best_step(loop, 0.5, 0.25) == 1
    assert best_step(loop, 0.5, 0.5) == (2 if equal_is_best else 1)
    assert best_step(loop, 0.5, 0.75) == 2
    assert best_step(loop, math.nan, 0.25) == 2
    assert best_step(loop, 0.25, math.nan) == 1
    assert best_step(LoopConfig(best_split=None), 1.0) is None


def test_what_a_run_carries_is_restored_and_that_of_other_code_refused(tmp_path):
    run = RunState(steps=8, sizes={"classes": 2}, class_names=["away", "at"], step=3, seconds=1.5)
    run.begin_session(session.describe_environment(train.ROOT))
    run.lines.append({"step": 3, "epoch": 0.5, "split": "train", "loss": None, "count": 4})
    run.add_evaluation({"val": {"accuracy": 0.5, "loss": math.inf, "count": 4}}, LoopConfig(), "accuracy")
    saved = json.loads(json.dumps(run.to_json()))
    assert RunState.from_json(saved | {"run": "0123"}, tmp_path) == run
    assert json.dumps(RunState.from_json(saved, tmp_path).to_json()) == json.dumps(saved)
    del saved["sessions"]
    why = "its checkpoints are damaged or of other code (field sessions: Input should be a valid list)"
    said = f"{tmp_path}: {why}; remove the folder"
    with pytest.raises(UserError, match=re.escape(said)):
        RunState.from_json(saved, tmp_path)


WRONG = [None, [], {}, "7", -1, math.nan, [1], ["a"], {"a": 1}, {"step": "a"}, [{"step": 1}], {"val": {"loss": "a"}}]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RunState)])
def test_a_value_of_another_shape_is_refused_by_its_name_or_does_no_harm(tmp_path, name):
    """Whoever changes a checkpoint can write its sums anew."""
    run = RunState(steps=8, sizes={"classes": 2}, class_names=["away", "at"], step=3)
    run.begin_session(session.describe_environment(train.ROOT))
    saved = run.to_json()
    refused = []
    for value in WRONG:
        try:
            changed = RunState.from_json(saved | {name: value}, tmp_path)
        except UserError as error:
            assert f"(field {name}" in str(error)
            refused.append(value)
        else:
            changed.summary("accuracy")
            changed.add_evaluation({"val": {"accuracy": 0.5}}, LoopConfig(), "accuracy")
    assert len(refused) > 7
