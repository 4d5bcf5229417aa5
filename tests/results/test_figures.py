import csv
import io
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from plstm.errors import UserError
from plstm.results.definitions import load_table
from plstm.results.figures import draw_curves, gating_figure, samples_figure
from plstm.results.records import curve_path, read_records

from .conftest import ROOT, svg_texts


@pytest.fixture
def arrow():
    return load_table(ROOT / "configs/tables/arrow.yaml")


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"))


def has_colour(image, colour):
    """Whether some pixels have the colour #rrggbb itself."""
    return (image == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(-1).sum() > 20


def test_curves_show_a_line_a_model_with_band_chance_and_baseline(arrow, add, tmp_path):
    for seed in (43, 44, 45):
        add(seed=seed)
    add(experiment="arrow/vit", row="ViT", lr=3e-4, val=0.91)
    (tmp_path / "baselines").mkdir()
    baseline = {"name": "arrow direction only", "val": 0.775, "val_ext": 0.633}
    (tmp_path / "baselines/arrow-192.json").write_text(json.dumps({"baselines": [baseline]}))
    png, svg = draw_curves(arrow, read_records(tmp_path), tmp_path)
    assert (png, svg) == tuple(tmp_path / f"figures/arrow-curves.{kind}" for kind in ("png", "svg"))
    image = pixels(png)
    assert image.shape[1] > 1200 and has_colour(image, "#0072B2") and has_colour(image, "#D55E00")
    assert not has_colour(image, "#009E73")
    texts = svg_texts(svg)
    titles = ["Training", "Validation", "Validation (ext.)"]
    assert [text for text in texts if text in titles] == titles and texts.count("Epoch") == 3
    for text in ("pLSTM (n=3)", "ViT (n=1)", "chance", "arrow direction only"):
        assert texts.count(text) == 1
    assert svg.read_text().count("FillBetweenPolyCollection") == 3


def test_curves_are_drawn_the_same_twice(arrow, add, tmp_path):
    for seed in (43, 44):
        add(seed=seed)
    first = [path.read_bytes() for path in draw_curves(arrow, read_records(tmp_path), tmp_path)]
    assert [path.read_bytes() for path in draw_curves(arrow, read_records(tmp_path), tmp_path)] == first


def test_curves_of_the_learning_rates_not_chosen_change_nothing(arrow, add, tmp_path):
    add(lr=1e-4, val=0.97)
    first = draw_curves(arrow, read_records(tmp_path), tmp_path)[1].read_bytes()
    add(lr=1e-3, val=0.9)
    assert draw_curves(arrow, read_records(tmp_path), tmp_path)[1].read_bytes() == first


def test_the_papers_curves_stand_behind_ours(arrow, add, tmp_path):
    add()
    table = replace(arrow, figure=replace(arrow.figure, paper_curves="paper/curves.csv"))
    with pytest.raises(UserError, match=r"paper/curves.csv: .*figure.paper_curves"):
        draw_curves(table, read_records(tmp_path), tmp_path)
    text = io.StringIO()
    csv.writer(text).writerows([("row", "split", "epoch", "accuracy"), *(("pLSTM", "val", e, 0.6) for e in (0, 50))])
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper/curves.csv").write_text(text.getvalue())
    without = pixels(draw_curves(arrow, read_records(tmp_path), tmp_path)[0])
    png, svg = draw_curves(table, read_records(tmp_path), tmp_path)
    assert "thin: the paper's mean" in svg_texts(svg)
    assert without.shape != pixels(png).shape or (without != pixels(png)).any()
    (tmp_path / "paper/curves.csv").write_text(text.getvalue().replace("epoch", "time"))
    with pytest.raises(UserError, match=r"paper/curves.csv, line 2: must be row,split,epoch,accuracy"):
        draw_curves(table, read_records(tmp_path), tmp_path)


def test_a_missing_curve_is_named_and_no_run_draws_nothing(arrow, add, tmp_path):
    assert draw_curves(arrow, [], tmp_path) == []
    record = add()
    curve_path(record, tmp_path).unlink()
    with pytest.raises(UserError, match=f"{record.id}.csv"):
        draw_curves(arrow, read_records(tmp_path), tmp_path)


def test_script_draws_what_has_runs(add, tmp_path):
    add()
    command = [sys.executable, "scripts/make_figures.py", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    drawn = [line for line in done.stdout.splitlines() if "nothing drawn" not in line]
    files = " ".join(str(tmp_path / f"figures/arrow-curves.{kind}") for kind in ("png", "svg"))
    assert drawn == [f"arrow: {files}"]


def test_samples_show_prediction_and_correctness(tmp_path):
    images = np.full((8, 48, 48), 255, np.uint8)
    images[:, 20:30, 20:30] = 0
    at = np.array([0.97, 0.02, 0.9, 0.3, 0.5, 0.1, 0.8, 0.6])
    label = np.array([1, 0, 0, 1, 1, 0, 1, 1])
    probabilities, names = np.stack([1 - at, at], axis=1), ("past", "at")
    titles = [f"sample {i}" for i in range(8)]
    png, svg = samples_figure(images, label, probabilities, names, titles, tmp_path / "samples")
    texts = svg_texts(svg)
    assert [text for text in texts if text.startswith(("✓", "✗"))] == [
        *["✓ at 0.97", "✓ past 0.98", "✗ at 0.90", "✗ past 0.70"],
        *["✗ past 0.50", "✓ past 0.90", "✓ at 0.80", "✓ at 0.60"],  # a tie is class 0, as in the accuracy
    ]
    assert [text for text in texts if text.startswith("sample")] == [f"sample {i}" for i in range(8)]
    assert (pixels(png) == 0).all(-1).mean() > 0.01


def test_gating_shows_sign_scale_and_source(tmp_path):
    y, x = np.mgrid[:12, :12]
    pattern = np.where((y >= 4) & (x >= 3), 0.5 ** (y - 4) * (-0.7) ** (x - 3), 0.0)
    png, svg = gating_figure([pattern, np.zeros((6, 9))], ["D-mode", "P-mode"], (4, 3), tmp_path / "gating")
    texts = svg_texts(svg)
    assert "D-mode" in texts and "P-mode" in texts and {"-1", "0", "1"} <= set(texts)
    image = pixels(png).astype(int)
    red, blue = image[..., 0] - image[..., 2], image[..., 2] - image[..., 0]
    assert (red > 80).any() and (blue > 80).any()
    with pytest.raises(ValueError, match="zip"):
        gating_figure([pattern], ["one", "two"], (0, 0), tmp_path / "gating")
