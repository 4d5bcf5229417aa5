"""The one call for GPU machines: what it writes, and that it needs no more than such a machine has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Runs a script where the packages that come first are not installed.
WITHOUT = """
import runpy, sys
absent, sys.argv = sys.argv[1].split(","), sys.argv[2:]
for name in absent:
    sys.modules[name] = None
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ABSENT = "hydra,omegaconf,wandb,tensorflow_datasets,PIL,matplotlib,grain,safetensors"


def call(out: Path, *options: str) -> dict:
    script = str(ROOT / "scripts/benchmark_gpu.py")
    command = [sys.executable, "-c", WITHOUT, ABSENT, script, "--tiny", "--repeats", "1", "--out", str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
def test_model_steps_need_few_packages(tmp_path):
    report = call(tmp_path / "gpu.json", "--parts", "model", "tests")
    (row,) = report["model"]
    assert row["ratio"] == row["pLSTM"]["median_seconds"] / row["ViT"]["median_seconds"]
    assert row["pLSTM"]["images_per_second"] == pytest.approx(2 / row["pLSTM"]["median_seconds"])
    hours = 39_050 * 128 / row["pLSTM"]["images_per_second"] / 3600
    assert row["pLSTM"]["hours_of_the_paper_s_run"] == pytest.approx(hours)
    assert row["pLSTM"]["utilisation"] is None  # nobody knows what a CPU's peak is
    assert report["tests"] == [{"skipped": "tiny"}]


@pytest.mark.slow
def test_all_parts(tmp_path):
    report = call(tmp_path / "gpu.json")
    assert not [row for part in ("checks", "operator", "model", "profile") for row in report[part] if "error" in row
                and "passed" not in row]  # fmt: skip
    assert all(row["passed"] for row in report["checks"]) and len(report["checks"]) == 7
    assert [row["model"] for row in report["profile"]] == ["pLSTM", "ViT"]
    assert all(len(row["top"]) == 5 and row["top"][0]["share"] > 0 for row in report["profile"])


def test_what_the_time_is_up_for_is_named(tmp_path):
    """Also that all it imports is there."""
    report = call(tmp_path / "gpu.json", "--seconds", "0", "--parts", "operator")
    assert report["operator"] == [{"skipped": "the time was up"}]
