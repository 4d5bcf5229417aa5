"""Means between log lines, across a stop and resume, and the speed that leaves pauses out."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.training import windows
from plstm.training.averaging import Window

BATCH = 32


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(windows, "time", clock)
    return clock


def metrics(step):
    """Metrics whose sums are not exact, so that another order of adding shows."""
    return {
        "loss": jnp.float32(0.7 / (step + 1)),
        "accuracy": jnp.float32(0.1 * step),
        "learning_rate": jnp.float32(1e-4 * step),
    }


def closed(steps, window=None):
    window = window or Window()
    for step in steps:
        window.add(metrics(step))
    return window.close(BATCH)


def test_means_of_loss_and_accuracy_and_last_of_the_rest():
    window = Window()
    for steps in (range(5), range(5, 7)):
        values = closed(steps, window)
        assert values["loss"] == pytest.approx(np.mean([0.7 / (step + 1) for step in steps]), rel=1e-6)
        assert values["accuracy"] == pytest.approx(np.mean([0.1 * step for step in steps]), rel=1e-6)
        assert values["learning_rate"] == np.float32(1e-4 * steps[-1])


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_resumed_window_closes_as_one_that_was_never_stopped(stop):
    whole = closed(range(7))
    first = Window()
    for step in range(stop):
        first.add(metrics(step))
    resumed = closed(range(stop, 7), Window(json.loads(json.dumps(first.state()))))
    for name in ("loss", "accuracy", "learning_rate"):
        assert resumed[name] == whole[name]


def test_taking_the_state_changes_nothing():
    window = Window()
    for step in range(7):
        window.add(metrics(step))
        if step == 3:
            assert window.state() == window.state() and window.state()["steps"] == 4
    assert window.close(BATCH)["loss"] == closed(range(7))["loss"]


def test_speed_starts_with_the_second_step(clock):
    window = Window()
    clock.now += 60  # compilation
    window.add(metrics(0))
    for step in range(1, 5):
        clock.now += 0.5
        window.add(metrics(step))
    assert window.close(BATCH)["images_per_second"] == pytest.approx(BATCH / 0.5)
    for step in range(5, 8):
        clock.now += 0.25
        window.add(metrics(step))
    assert window.close(BATCH)["images_per_second"] == pytest.approx(BATCH / 0.25)


def test_speed_leaves_evaluations_out(clock):
    window = Window()
    window.add(metrics(0))
    clock.now += 1
    window.add(metrics(1))
    clock.now += 100
    window.restart_clock()
    for step in (2, 3):
        clock.now += 0.5
        window.add(metrics(step))
    assert window.close(BATCH)["images_per_second"] == pytest.approx(BATCH / 0.5)


def test_one_step_has_no_speed():
    assert set(closed([0])) == {"loss", "accuracy", "learning_rate"}


def test_the_first_metric_that_is_not_finite_is_named():
    window = Window()
    for step, bad in enumerate([None, "gradient_norm", "loss"]):
        window.add(metrics(step) | {"gradient_norm": jnp.float32(1)} | ({bad: jnp.float32(np.nan)} if bad else {}))
        assert window.first_not_finite(("loss", "gradient_norm")) == (None if step == 0 else "gradient_norm")
    assert window.first_not_finite(("learning_rate",)) is None
    window.close(BATCH)
    assert window.first_not_finite(("loss", "gradient_norm")) is None
