"""The shortcut classifiers of arrow pointing."""

import json

import numpy as np
import pytest

from data.arrow_pointing.geometry import Canvas, sample_parameters
from scripts import shortcut_baselines as script
from tests.commands import call_here


def test_shortcuts_reach_their_known_accuracies():
    rows = {row["name"]: row for row in script.measure(Canvas(), script.fit(Canvas(), 1_000_000, 1), count=4000)}
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


COARSE = {  # these need fewer samples than the script's
    "arrow": {"ax": 8, "ay": 8, "phi": 16},
    "circle and direction": {"cx": 8, "cy": 8, "phi": 16},
    "both positions": {"ax": 5, "ay": 5, "cx": 5, "cy": 5},
}


@pytest.mark.parametrize("size", [48, 96])
def test_no_part_of_a_balanced_geometry_tells_the_label(size, monkeypatch):
    """The accuracies' standard error is .001; ten times the samples and the script's bins find up to .01 more."""
    monkeypatch.setattr(script, "SHORTCUTS", COARSE)
    canvas, found = Canvas(size, 0.25), {}
    for distribution in ("paper", "balanced"):
        fitted = script.fit(canvas, 500_000, 1, distribution)
        arrow = sample_parameters(np.random.default_rng(2), 200_000, canvas, distribution)
        cells = {
            name: script.histogram_cell(arrow, canvas, bins) for name, bins in script.shortcuts(distribution).items()
        }
        found[distribution] = {name: np.mean((fitted[name][cell] > 0) == arrow.label) for name, cell in cells.items()}
    assert len(found["balanced"]) == 4 and max(found["balanced"].values()) < 0.53, found
    assert min(found["paper"][name] for name in ("arrow", "circle and direction")) > 0.75, found
    assert max(abs(found["balanced"][name] - 0.5) for name in ("arrow", "circle position only")) < 0.006, found


@pytest.mark.parametrize("size, scale", [(48, 0.25), (96, 0.25), (192, 1.0)])
def test_the_whole_balanced_geometry_tells_the_label_after_pixel_rounding(size, scale):
    arrow = sample_parameters(np.random.default_rng(3), 10_000, Canvas(size, scale), "balanced")
    right = (script.evidence_from_pixels(arrow, "balanced") > 0) == arrow.label
    assert right.mean() > (0.999 if scale == 1 else 0.985)
    assert right.mean() >= np.mean((script.evidence_from_pixels(arrow) > 0) == arrow.label)


def test_record_on_disk(tmp_path, monkeypatch):
    out = tmp_path / "made" / "arrow.json"
    arguments = ["--size=48", "--scale=0.25", "--samples=2000", "--count=300", f"--out={out}", "--sizes", "48", "64"]
    monkeypatch.setattr(script, "SPLITS_SEEN", ["val", "val_ext"])
    status, output, _ = call_here(script.main, *arguments)
    record = json.loads(out.read_text())
    assert (record["size"], record["scale"], record["fit_samples"], record["seed"]) == (48, 0.25, 2000, 0)
    assert f"--out={out}" in record["command"] and record["versions"]["numpy"] and "commit" in record
    assert [row["name"] for row in record["baselines"]] == [*script.SHORTCUTS, script.PERFECT]
    assert all(0.4 < row[split] <= 1 for row in record["baselines"] for split in ("val", "val_ext"))
    assert status == 0 and str(out) in output and "distribution" not in record
    sizes = {(row["canvas_pixels"], row["name"]): row for row in record["sizes"] if row["probe"] == "as given"}
    assert {row["canvas_pixels"] for row in record["sizes"] if row["probe"] != "as given"} == {48}
    assert list(sizes) == [(size, name) for size in (48, 64) for name in (*script.SHORTCUTS, script.PERFECT)]
    assert sizes[64, script.PERFECT]["accuracy"] > 0.97 and sizes[64, script.PERFECT]["images"] == 300
