"""Formal languages on the training loop: padding, loss, accuracy and score, and runs that stop when they are solved."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.runs.compose import to_config
from plstm.studies.records import read_records
from plstm.tasks import TASKS
from plstm.tasks.languages import answer_metrics
from plstm.training.steps import evaluate, make_predict
from tests.data.batching import crc

TINY = ["debug=smoke", "experiment=languages/rnn", "variant=steps_5k"]


@pytest.fixture
def make(composed):
    """Function of overrides: the task of a small run."""
    return lambda *overrides: TASKS["languages"](to_config(composed(*TINY, *overrides)))


def test_training_rows_are_of_one_length_padded_to_one_of_two_shapes(make):
    task, seen = make("data.name=duplicate_string"), set()
    batches = [task.draw_batch(step) for step in range(200)]
    for batch in batches:
        (length,) = set(batch["length"].tolist())
        answer = task.language.answer(batch["tokens"][:, :length])
        np.testing.assert_array_equal(batch["label"][:, : 2 * length], answer)
        assert (batch["tokens"][:, length:] == 2).all() and (batch["steps"] == 3 * length).all()
        seen.add((length, tuple(batch[name].shape for name in batch)))
    short, long = ({shapes for length, shapes in seen if (length > 20) == is_long} for is_long in (False, True))
    assert {length for length, _ in seen} == set(range(1, 41)) and len(short) == len(long) == 1
    assert (next(iter(short))[0], next(iter(long))[0]) == ((32, 60), (32, 120))
    assert crc(array for batch in batches for array in batch.values()) == "4200008e"
    again = make("data.name=duplicate_string").draw_batch(7)
    np.testing.assert_array_equal(again["tokens"], task.draw_batch(7)["tokens"])
    other = make("data.name=duplicate_string", "seed=44").draw_batch(7)
    assert not np.array_equal(other["tokens"], again["tokens"])


def test_evaluation_has_rows_of_its_own_and_few_shapes(make):
    task = make("data.name=modular_arithmetic", "data.longest=500", "data.every=1")
    assert task.lengths("val") == [5, 10, 15, 20, 25, 30, 35, 40]
    assert task.lengths("test") == list(range(41, 501)) and task.groups == 460
    batches = [task.draw_at("test", length) for length in (41, 42, 125, 126, 300, 500)]
    assert [batch["length"][0] for batch in batches] == [41, 41, 125, 125, 299, 499]  # odd lengths only
    assert [batch["tokens"].shape[1] for batch in batches] == [126, 126, 126, 251, 376, 501]
    assert (batches[0]["tokens"] != batches[1]["tokens"]).any()
    assert crc(array for batch in batches for array in batch.values()) == "e2fa3d3a"
    other = make("data.name=modular_arithmetic", "data.longest=500", "seed=9").draw_at("test", 41)
    np.testing.assert_array_equal(batches[0]["tokens"], other["tokens"])
    reduced = make("data.longest=500", "data.every=10")
    assert reduced.lengths("test") == [*range(41, 500, 10), 500] and len(reduced.lengths("test")) == 47


@pytest.mark.parametrize(
    ("name", "counted"),
    [("binary_addition", [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]), ("compute_sqrt", [[1, 1, 1], [1, 1, 1]])],
)
def test_accuracy_counts_up_to_the_terminator_and_the_loss_all_places(make, monkeypatch, name, counted):
    task, rows = make(f"data.name={name}", "optim.batch_size=2"), {"binary_addition": ["11211", "00201"]}
    tokens = np.array([list(map(int, row)) for row in rows.get(name, ["10011", "00010"])], np.int8)
    monkeypatch.setattr("plstm.tasks.languages.draw", lambda *_: (tokens, task.language.answer(tokens)))
    batch = task.draw_batch(0)
    answers, places = len(counted[0]), batch["label"].shape[1]
    np.testing.assert_array_equal(batch["counted"][:, :answers], np.array(counted, bool))
    logits = np.random.default_rng(0).normal(size=(2, places, task.language.classes)).astype(np.float32)
    chosen = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), batch["label"][..., None].astype(int), axis=2)
    hits = (logits.argmax(-1) == batch["label"])[:, :answers][np.array(counted, bool)]
    found = {key: total / count for key, (total, count) in answer_metrics(jnp.asarray(logits), batch).items()}
    np.testing.assert_allclose(found["loss"], -chosen[:, :answers].mean(), rtol=1e-6)
    np.testing.assert_allclose(found["accuracy"], hits.mean(), rtol=1e-6)


def test_every_length_weighs_the_same_in_the_score(make):
    """With answers as long as the rows a long length has more places; the first answer is right, the others are not."""
    task = make("data.name=reverse_string")

    def measure(_, batch):
        first = jnp.arange(batch["label"].shape[1]) == 0
        right = jax.nn.one_hot(jnp.where(first, batch["label"], 1 - batch["label"]), 2)
        task.logits = lambda *_: right
        return task.metrics(None, batch)

    found = evaluate(measure, None, task.split("ext"), 64)
    assert found["accuracy@41"] == pytest.approx(1 / 41) and found["accuracy@64"] == pytest.approx(1 / 64)
    assert found["accuracy"] == pytest.approx((1 / 41 + 1 / 64) / 2) and found["count"] == 16


def test_evaluation_compiles_one_program_a_width(make):
    task = make("data.name=parity_check", "data.longest=125", "data.every=10")
    graphdef, weights = nnx.split(task.build_model(0))
    traced = []
    measure = make_predict(graphdef, lambda model, batch: traced.append(0) or task.metrics(model, batch))
    for split in ("val", "ext", "test"):
        evaluate(measure, weights, task.split(split), 64)
    assert len(traced) <= 4


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("languages")
    train(folder, *TINY, "data.name=parity_check", "optim.epochs=0.5", "loop.eval_every=10", "loop.stop_at=0.4")
    return folder


def test_a_run_stops_when_it_is_good_enough_and_keeps_the_accuracy_at_each_length(finished):
    (record,) = read_records(finished / "results")
    assert record.name == "languages-rnn-steps_5k-parity_check-s43"
    assert record.steps < 500 and record.steps % 10 == 0 and record.epochs == record.steps / 1000
    last = record.metrics["last"]
    assert set(last) == {"test", "val"}
    lengths = [key for key in last["test"] if "@" in key]
    assert lengths == ["accuracy@41", "accuracy@61", "accuracy@64"]
    assert last["test"]["accuracy"] == pytest.approx(np.mean([last["test"][key] for key in lengths]))
    curve = json.loads((finished / "results/runs/languages-rnn.jsonl").read_text())["curve"]
    assert "ext.accuracy" in curve and not any("@" in key for key in curve)
