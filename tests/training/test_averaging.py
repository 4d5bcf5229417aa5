"""Means between log lines, across a stop and resume, and the speed that leaves pauses out."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.training import progress as averaging
from plstm.training.progress import MetricAverager
from plstm.training.steps import StepMetrics

BATCH = 32


def metrics(step, **latest):
    """Metrics of a step with `step + 1` examples, whose sums are not exact, so that another order of adding shows."""
    count = jnp.float32(step + 1)
    averaged = {"loss": (jnp.float32(0.7 / (step + 1)), count), "error": (jnp.float32(0.1 * step), jnp.float32(3))}
    return StepMetrics(averaged, {"learning_rate": jnp.float32(1e-4 * step), **latest})


def closed(steps, averager=None):
    averager = averager or MetricAverager()
    for step in steps:
        averager.add(metrics(step))
    return averager.close(BATCH)


def test_averages_over_examples_and_latest_of_the_rest():
    averager = MetricAverager()
    for steps in (range(5), range(5, 7)):
        values = closed(steps, averager)
        total, examples = sum(0.7 / (step + 1) for step in steps), sum(step + 1 for step in steps)
        assert values["loss"] == pytest.approx(total / examples, rel=1e-6)
        assert values["error"] == pytest.approx(np.mean([0.1 * step / 3 for step in steps]), rel=1e-6)
        assert values["learning_rate"] == np.float32(1e-4 * steps[-1])
    averager.add(StepMetrics({"loss": (jnp.float32(0), jnp.float32(0))}, {}))
    assert np.isnan(averager.close(BATCH)["loss"]), "without examples"


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_resumed_averager_closes_as_one_that_was_never_stopped(stop):
    whole, first = closed(range(7)), MetricAverager()
    assert set(closed([0])) == {"loss", "error", "learning_rate"}, "one step has no speed"
    for step in range(stop):
        first.add(metrics(step))
    assert first.state() == first.state() and first.state()["loss"][1] == sum(range(stop + 1))
    for averager in (MetricAverager(json.loads(json.dumps(first.state()))), first):
        resumed = closed(range(stop, 7), averager)
        for name in ("loss", "error", "learning_rate"):
            assert resumed[name] == whole[name]


def test_speed_starts_with_the_second_step_and_leaves_evaluations_out(monkeypatch):
    clock, averager = SimpleNamespace(now=100.0), MetricAverager()
    monkeypatch.setattr(averaging, "time", SimpleNamespace(monotonic=lambda: clock.now))
    clock.now += 60  # compilation
    averager.add(metrics(0))
    for seconds in (0.5, 0.25):
        for step in range(4):
            clock.now += seconds
            averager.add(metrics(step))
        assert averager.close(BATCH)["examples_per_second"] == pytest.approx(BATCH / seconds)
    averager.add(metrics(0))
    clock.now += 100  # an evaluation
    averager.restart_clock()
    clock.now += 0.5
    averager.add(metrics(1))
    assert averager.close(BATCH)["examples_per_second"] == pytest.approx(BATCH / 0.5)


class Leaf(SimpleNamespace):
    """A number that is still being computed, or not."""

    def is_ready(self):
        return self.ready

    def __array__(self, *_, **__):
        return np.float32(0)


@pytest.mark.parametrize(("seconds", "ready", "told"), [(0.5, True, "25%"), (0.3, True, None), (0.5, False, None)])
def test_waiting_for_data_is_told_once(monkeypatch, seconds, ready, told):
    """Steps of 2 s; the time for a batch counts if the device runs out of work, and after a minute."""
    clock, averager, said = SimpleNamespace(now=0.0), MetricAverager(), []
    monkeypatch.setattr(averaging, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(averaging.jax, "block_until_ready", lambda metrics: None)

    def batches():
        clock.now += 1000  # reading processes start
        yield 0
        for number in range(1, 101):
            clock.now += seconds
            yield number

    iterator = batches()
    for step in range(101):
        assert averager.fetch(iterator) == step
        clock.now += 2 - seconds
        averager.add(StepMetrics({}, {"loss": Leaf(ready=ready)}))
        if step % 10 == 0:
            averager.close(BATCH)
            said.append(averager.waited())
    assert [f"{share:.0%}" for share in said if share] == ([told] if told else [])
    assert not any(said[:3])


def test_the_first_metric_that_is_not_finite_is_named():
    averager = MetricAverager()
    for step, bad in enumerate([None, "gradient_norm", "loss"]):
        found = metrics(step, gradient_norm=jnp.float32(np.nan if bad == "gradient_norm" else 1))
        if bad == "loss":
            found.averaged["loss"] = jnp.float32(np.nan), jnp.float32(1)
        averager.add(found)
        assert averager.first_not_finite(("loss", "gradient_norm")) == (None if step == 0 else "gradient_norm")
    assert averager.first_not_finite(("learning_rate",)) is None
    averager.close(BATCH)
    assert averager.first_not_finite(("loss", "gradient_norm")) is None


def test_the_host_runs_at_most_two_steps_ahead(monkeypatch):
    waited, averager = [], MetricAverager()
    monkeypatch.setattr(averaging.jax, "block_until_ready", lambda metrics: waited.append(metrics))
    steps = [metrics(step) for step in range(6)]
    for found in steps:
        averager.add(found)
    assert waited == [steps[0], steps[0], steps[1], steps[2], steps[3]]
