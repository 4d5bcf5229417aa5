"""What the demo says and draws, from made-up runs and answers."""

from types import SimpleNamespace

import pytest

from scripts import demo
from scripts.demo import NO_CIRCLE, OTHER_CIRCLE, SIZES


def run(test, test_ext=0.5):
    return SimpleNamespace(id=f"{test:.2f}", metric={"test": test, "test_ext": test_ext}.get)


@pytest.fixture(autouse=True)
def answers(monkeypatch):
    """A model's answer is its name, and its accuracy on a canvas 10 over the side."""
    monkeypatch.setattr(demo, "load_answer", lambda source, runs: (None, "", source))
    scores = {"accuracy": 0.5, "balanced_accuracy": 0.6}
    monkeypatch.setattr(demo, "ask", lambda answer, canvas, *probe: scores | {"accuracy": 10 / canvas.size})


def test_the_expected_range_is_of_another_run():
    half = 2.919986 * 0.02 * (4 / 3) ** 0.5  # Student's t at 95% with two degrees of freedom
    assert demo.expected_range([0.7, 0.72, 0.74]) == pytest.approx((0.72 - half, 0.72 + half))
    assert demo.expected_range([0.01, 0.99]) == (0, 1)


def test_a_report_names_the_models_outside_of_their_intervals(monkeypatch, capsys):
    altered = [{"canvas_pixels": 96, "probe": probe, "balanced_accuracy": 0.6} for probe in (NO_CIRCLE, OTHER_CIRCLE)]
    others = [row | {"canvas_pixels": 48, "balanced_accuracy": 0.1} for row in altered]
    probed = {seed: others + altered for seed in (43, 44, 45)}
    monkeypatch.setattr(demo, "read_probes", lambda runs, results: SimpleNamespace(rows=probed))
    recorded = [run(0.7), run(0.72), run(0.74)]
    demo.report({"pLSTM": run(0.75), "ViT": run(0.9)}, {"pLSTM": recorded, "ViT": recorded})
    said = " ".join(capsys.readouterr().out.split())
    assert "test images 0.750 (0.653 to 0.787) 0.900 (0.653 to 0.787) larger test images 0.500 (" in said
    assert "circle erased 0.600 (0.600 to 0.600) 0.600 (0.600 to 0.600) another image's circle 0.600" in said
    rightly = "pLSTM answers 75.0% rightly and ViT answers 90.0% rightly"
    assert f"Test images: {rightly}, outside the recorded interval for ViT." in said
    assert said.endswith("60.0% rightly, inside the recorded intervals.")


def test_sizes_have_a_line_a_file_of_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "save", lambda figure, path: figure)
    (axis,) = demo.draw_sizes([tmp_path / "arrow-a.safetensors", tmp_path / "arrow-b.safetensors"]).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axis.lines}
    assert lines == dict.fromkeys(("arrow-a", "arrow-b"), [[size, 10 / size] for size in SIZES])
