"""Drawn batches: each step's once, the same after a resume; evaluation over every row."""

import jax
import numpy as np

from plstm.tasks.streams import LengthSplit, StreamBatches
from tests.data.batching import assert_parts_make_up, take


def draw_at(length: int) -> dict[str, np.ndarray]:
    """Five rows that name their length and number, padded to 8 places."""
    return {"row": np.tile(np.arange(length * 10, length * 10 + 5)[:, None], 8), "label": np.full(5, length)}


def test_training_batches_depend_on_the_step_alone():
    batches = StreamBatches(lambda step: {"row": np.full(2, step)}, place=lambda batch: batch["row"].tolist())
    whole, resumed = batches.from_step(0), batches.from_step(3)
    assert [next(whole) for _ in range(4)] == [[n, n] for n in range(4)]
    assert next(resumed) == [3, 3]


def test_a_batch_is_padded_for_the_devices(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 3)
    batches = list(LengthSplit(draw_at, lengths=(3,), rows=5, batch_rows=4).batches(64))
    assert [len(batch["mask"]) for batch in batches] == [6, 6]
    assert [batch["mask"].sum() for batch in batches] == [4, 1]


def test_the_parts_of_processes_make_up_each_batch(monkeypatch):
    def batches() -> list[dict]:
        training = StreamBatches(lambda step: {"row": np.arange(6) + step}, place=lambda batch: batch)
        return take(training, 2) + list(LengthSplit(draw_at, lengths=(3,), rows=5, batch_rows=4).batches(64))

    assert_parts_make_up(batches, monkeypatch)
