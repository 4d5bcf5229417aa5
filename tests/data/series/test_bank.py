"""The synthetic bank and the rows that are made of it."""

import numpy as np
import pytest
from numpy.random import RandomState

from data.series import __main__ as program
from data.series import bank
from data.series.bank import MOST, draw_bank, draw_rows, load_bank
from plstm.errors import UserError
from tests.commands import call_here, refused


@pytest.fixture(scope="module")
def series():
    return draw_bank(3, 60)


def test_series_are_standardised_and_follow_from_the_seed(series):
    assert series.shape == (60, 640) and series.dtype == np.float32
    np.testing.assert_allclose(series.mean(1), 0, atol=0.02)
    np.testing.assert_allclose(series.std(1), 1, atol=0.05)
    np.testing.assert_array_equal(draw_bank(3, 60), series)
    assert not np.array_equal(draw_bank(4, 60), series)


@pytest.mark.parametrize("kind", [bank.gaussian_process, bank.autoregression, bank.chaos])
def test_kinds_differ_from_draw_to_draw(kind):
    rng = RandomState(0)
    drawn = [kind(rng, length)[0] for length in (640, 640, 640, 640, 100, 41)]
    assert all(np.isfinite(values).all() and values.std() > 0 for values in drawn)
    assert len({values[0] for values in drawn}) == 6


def test_gaussian_processes_have_their_kernel(monkeypatch):
    """The covariance over many draws of a periodic kernel repeats with its period."""
    period = bank.toeplitz(np.exp(-2 * np.sin(np.pi * np.arange(640) / 24) ** 2))
    monkeypatch.setattr(bank, "_kernel", lambda rng, length: period)
    monkeypatch.setattr(bank, "DRAWS", 2000)
    draws = bank.gaussian_process(_OneKernel(5), 640)
    np.testing.assert_allclose(draws.T[:48] @ draws[:, :48] / 2000, period[:48, :48], atol=0.12)


class _OneKernel(RandomState):
    def randint(self, *_):
        return 0


def test_rows_are_crops_with_hidden_patches(series):
    rows = draw_rows(series, RandomState(1), 400, 36, 16)
    assert rows.values.shape == (400, 576) and rows.visible.shape == (400, 36)
    assert np.isfinite(rows.values).all() and np.abs(rows.values).max() <= MOST
    hidden = ~rows.visible
    assert 0.2 < hidden.mean() < 0.5
    assert hidden[:, -1].mean() < 0.4 < hidden[:, 0].mean() < 0.75  # the first ones more often, as of short series
    assert (hidden[:, :31].all(1)).any() and rows.visible[:, 31:].any(1).mean() > 0.9
    seen = np.repeat(rows.visible, 16, axis=1)
    inside = [values[mask] for values, mask in zip(rows.values, seen, strict=True) if mask.any()]
    np.testing.assert_allclose([values.mean() for values in inside], 0, atol=0.1)
    again = draw_rows(series, RandomState(1), 400, 36, 16)
    np.testing.assert_array_equal(again.values, rows.values)


@pytest.mark.parametrize("patches", range(1, 7))
def test_rows_may_have_few_patches(series, patches):
    rows = draw_rows(series, RandomState(1), 40, patches, 16)
    assert rows.visible.shape == (40, patches) and rows.visible.any(0).all()


def test_the_bank_is_kept_and_named_where_it_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSTM_DATA", str(tmp_path))
    code, out, _ = call_here(program.main, "bank", "--count", "9", "--seed", "2")
    assert (code, out) == (0, f"{bank.digest(draw_bank(2, 9))}\n")
    (path,) = tmp_path.glob("*.npy")
    whole = path.read_bytes()
    for damaged, what in (
        (b"nothing", r" cannot be read \(.*\)"),
        (whole.replace(b"<f4", b">f4"), ": damaged"),
        (whole.replace(b"False,", b"(((((,"), r" cannot be read \(.*\)"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"series-bank-2-9\.npy{what}; delete it"):
            load_bank(None, 2, 9)
    assert refused(program.main, "bank", "--count", "0") == "--count 0: must be from 1 to 1000000"
