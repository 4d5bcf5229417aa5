"""The task of time series: its batches, its scores against those of NumPy, what its loss counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.series.bank import draw_bank
from data.series.scoring import LEVELS, SeriesSet, score, seasonal_naive
from plstm.runs.compose import to_config
from plstm.tasks import series
from plstm.tasks.series import SeriesTask
from plstm.training.steps import evaluate

from .batches import assert_batches_depend_on_seed_and_step


@pytest.fixture(scope="module")
def make(composed, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")

    def make(*overrides):
        words = ("experiment=series/forecast", "debug=smoke", f"data.root={root}", *overrides)
        return SeriesTask(to_config(composed(*words)))

    return make


def test_batches_depend_on_seed_and_step_alone(make):
    task, other, again = assert_batches_depend_on_seed_and_step(make, pinned="dc22771e")
    assert again["values"].shape == (32, 576) and again["visible"].shape == (32, 36)
    assert make("model.patch=8").draw_batch(7)["visible"].shape == (32, 72)
    for each in (task, other):
        (held_out,) = each.split("val").sets
        np.testing.assert_array_equal(held_out.series, draw_bank(each.config.data.eval_seed, len(held_out.series)))
        np.testing.assert_array_equal(each.bank, draw_bank(each.config.data.bank_seed, len(each.bank)))


class Fixed:
    """Forecasts the context's mean, and deviations around it."""

    offsets = 3 * LEVELS - 1.2

    def ahead(self, values, known, horizon):
        return jnp.broadcast_to(self.offsets[:, None], (len(values), 9, horizon)).astype(values.dtype)


@pytest.mark.parametrize("rows", [128, 4])
def test_scores_are_those_of_each_set_by_numpy(make, rows, monkeypatch):
    monkeypatch.setattr(series, "BATCH", rows)
    task = make()
    split = task.split("test")
    found = evaluate(jax.jit(lambda _, batch: task.metrics(Fixed(), batch)), None, split, 32)
    assert found["count"] == len(split) == 11
    ratios = {"mase": {}, "wql": {}}
    for each in task.sets:
        pairs = list(each.pairs())
        ends = [context[-512:] for context, _ in pairs]
        forecasts = [
            np.nanmean(end) + np.nanstd(end) * np.tile(Fixed.offsets[:, None], (1, each.horizon)) for end in ends
        ]
        ours = score(pairs, forecasts, each.season)
        naive = score(pairs, [seasonal_naive(c, each.season, each.horizon) for c, _ in pairs], each.season)
        for name, value in ours._asdict().items():
            assert found[f"{name}@{each.name}"] == pytest.approx(value, rel=1e-5)
            ratios[name][each.group] = value / getattr(naive, name)
    for name, groups in ratios.items():
        assert found[name] == pytest.approx(np.exp(np.mean(np.log(list(groups.values())))), rel=1e-5)
        assert {group: found[f"{name}_{group}"] for group in groups} == pytest.approx(groups, rel=1e-5)
    assert found["skill"] == 1 - found["wql"]


def test_held_out_series_are_one_set(make):
    task = make()
    split = task.split("val")
    found = evaluate(jax.jit(lambda _, batch: task.metrics(Fixed(), batch)), None, split, 32)
    assert len(split) == 32 and {"loss", "mase", "wql", "skill", "mase@synthetic"} < found.keys()
    assert not any(name.endswith(("hourly", "daily", "monthly")) for name in found)


def test_the_loss_counts_patches_from_the_first_visible_one_on(make):
    """Hidden patches are forecast, too, and what is hidden is not seen."""
    task = make()
    visible = np.array([[False, True, False, True], [False, False, False, True], [True, True, True, True]])
    values = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)
    seen = {}

    def model(values, known, key):
        seen.update(values=values, known=known)
        return jnp.zeros((3, 3, 9, 16))

    loss, metrics = task.loss(model, {"values": values, "visible": visible}, jax.random.key(0))
    assert seen["known"].reshape(3, 3, 16).all(-1).tolist() == visible[:, :-1].tolist()
    due = np.array([[0, 1, 1], [0, 0, 0], [1, 1, 1]])
    absolute = values.reshape(3, 4, 16)[:, 1:].mean(-1) / 2  # of a forecast of 0 of positive values, at level 1/2
    np.testing.assert_allclose(metrics["loss"], ((absolute * due).sum(), 5), rtol=1e-6)
    np.testing.assert_allclose(loss, (absolute * due).sum() / 5, rtol=1e-6)


def test_a_window_without_a_seasonal_error_has_no_part_in_mase(make):
    row = series.window_row(np.full(30, 2.0), np.array([1.0, np.nan, 3.0]), 1, 16)
    assert row["mase_scale"] == 0 and row["size"] == 4 and row["due"].sum() == 2 and row["known"].all()
    assert np.isfinite(row["label"]).all() and row["label"].shape == (48,)
    wavy = np.sin(np.arange(300.0))
    flat = np.where(np.arange(300) < 270, 2.0, wavy)
    task = make()
    task.sets = [SeriesSet("mixed", "D", [flat, wavy], 1, 30)]
    found = evaluate(jax.jit(lambda _, batch: task.metrics(Fixed(), batch)), None, task.split("test"), 32)
    forecast = wavy[:270].mean() + wavy[:270].std() * np.tile(Fixed.offsets[:, None], (1, 30))
    assert found["count"] == 2
    assert found["mase@mixed"] == pytest.approx(score([(wavy[:270], wavy[270:])], [forecast], 1).mase, rel=1e-5)
