"""The shortcut classifiers of arrow pointing."""

import json
import sys

import pytest

from data.arrow_pointing.geometry import Canvas
from scripts import shortcut_baselines as script


def test_shortcuts_reach_their_known_accuracies():
    rows = {row["name"]: row for row in script.measure(Canvas(), samples=1_000_000, seed=1, count=4000)}
    expected = {
        "arrow direction only": (0.775, 0.633),
        "arrow position and direction, no circle": (0.927, 0.766),
        "circle position and arrow direction": (0.926, 0.765),
        "both positions, no direction": (0.5, 0.5),
        "perfect geometry after pixel rounding": (0.9995, 0.9985),
    }
    assert rows.keys() == expected.keys()
    for name, (same, extended) in expected.items():
        tolerance = 0.002 if name == script.PERFECT else 0.03
        assert rows[name]["test"] == pytest.approx(same, abs=tolerance), name
        assert rows[name]["test_ext"] == pytest.approx(extended, abs=tolerance), name


def test_record_on_disk(tmp_path, monkeypatch, capsys):
    out = tmp_path / "made" / "arrow.json"
    arguments = ["shortcut_baselines.py", "--size", "48", "--scale", "0.25", "--samples", "2000", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(script, "SPLITS_SEEN", ["val", "val_ext"])
    script.main()
    record = json.loads(out.read_text())
    assert (record["size"], record["scale"], record["fit_samples"], record["seed"]) == (48, 0.25, 2000, 0)
    assert record["command"].endswith(f"--out {out}") and record["versions"]["numpy"] and "commit" in record
    assert [row["name"] for row in record["baselines"]] == [*script.SHORTCUTS, script.PERFECT]
    assert all(0.4 < row[split] <= 1 for row in record["baselines"] for split in ("val", "val_ext"))
    assert str(out) in capsys.readouterr().out
