"""Drawn batches: each step's once, the same after a resume; evaluation over every row of every length."""

import jax
import jax.numpy as jnp
import numpy as np

from plstm.tasks.streams import STEPS_PER_EPOCH, LengthSplit, StreamBatches, StreamTask, by_length
from plstm.training.steps import evaluate


def draw_at(length: int) -> dict[str, np.ndarray]:
    """Five rows that name their length and number, padded to 8 places."""
    return {"row": np.tile(np.arange(length * 10, length * 10 + 5)[:, None], 8), "label": np.full(5, length)}


def test_training_batches_depend_on_the_step_alone():
    batches = StreamBatches(lambda step: {"row": np.full(2, step)}, place=lambda batch: batch["row"].tolist())
    whole, resumed = batches.from_step(0), batches.from_step(3)
    assert [next(whole) for _ in range(4)] == [[n, n] for n in range(4)]
    assert next(resumed) == [3, 3]


def test_an_epoch_is_a_number_of_steps(composed):
    class Task(StreamTask):
        def __init__(self):
            self.config = composed("optim.batch_size=8")

    assert Task().steps_per_epoch == STEPS_PER_EPOCH


def test_every_row_of_every_length_is_evaluated_once_and_counts_for_its_length():
    split, rows = LengthSplit(draw_at, lengths=(3, 7, 4), rows=5, batch_rows=2), []

    def measure(weights, batch):
        assert batch["row"].shape == (2, 8)
        rows.extend(batch["row"][batch["mask"], 0].tolist())
        pair = jnp.sum(batch["label"] * batch["mask"]), jnp.sum(batch["mask"])
        return {"label": pair, "label@": by_length(pair, batch, 4)}

    found = evaluate(measure, None, split, batch_size=64)
    assert rows == [10 * length + n for length in (3, 7, 4) for n in range(5)]
    assert found["count"] == len(split) == 15 and np.isclose(found["label"], 14 / 3)
    assert [found[f"label@{length}"] for length in (3, 7, 4)] == [3, 7, 4]
    assert {len(batch["mask"]) for batch in split.batches(1)} == {1}


def test_a_batch_is_padded_for_the_devices(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 3)
    batches = list(LengthSplit(draw_at, lengths=(3,), rows=5, batch_rows=4).batches(64))
    assert [len(batch["mask"]) for batch in batches] == [6, 6]
    assert [batch["mask"].sum() for batch in batches] == [4, 1]
