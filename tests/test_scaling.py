"""What `benchmark.py scaling` says of its measurements."""

from __future__ import annotations

import pytest

from scripts.benchmark_model import draw_scaling, summarise


def row(size, plstm, vit):
    seconds = {"pLSTM": plstm, "ViT": vit}
    models = {name: {"median_seconds": value, "memory_bytes": 2**20 * value} for name, value in seconds.items()}
    return {"size": size, "tokens": (size // 16) ** 2, "ratio": plstm / vit, **models}


def test_exponents_and_the_crossing(tmp_path):
    rows = [row(16, 2.0, 1.0), row(32, 8.0, 16.0), row(64, 32.0, 256.0)]  # linear, and quadratic
    summary = summarise(rows)
    assert summary["pLSTM"] == {"exponent": pytest.approx(1), "a_token": pytest.approx(1)}
    assert summary["ViT"] == {"exponent": pytest.approx(2), "a_token": pytest.approx(16)}
    assert summary["pLSTM_is_faster_from_pixels"] == pytest.approx(16 * 2**0.5)
    assert summarise([*rows, row(128, 2, 1)])["pLSTM_is_faster_from_pixels"] is None  # not to the end
    assert summarise(rows[1:])["pLSTM_is_faster_from_pixels"] == 32
    draw_scaling(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
