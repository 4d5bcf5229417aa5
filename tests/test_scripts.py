"""The scripts that no other test starts, at their smallest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_operator_benchmark_writes_ratios_and_where_they_come_from(tmp_path):
    out = tmp_path / "operator.json"
    sizes = ["--grids", "3", "--batch", "1", "--heads", "1", "--dim", "4", "--repeats", "1"]
    command = [sys.executable, str(ROOT / "scripts/benchmark.py"), "operator", *sizes, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    written = json.loads(out.read_text())
    assert written["hardware"]["platform"] == "cpu"
    assert "commit" in written
    assert {row["structure"] for row in written["rows"]} == {"general", "rank_one", "no_ru"}
    for row in written["rows"]:
        ours = row["ours"]["median_seconds"]
        assert row["speedup"] == row["quadtree"]["median_seconds"] / ours
        assert row["speedup_over_scan"] == row["scan"]["median_seconds"] / ours


def test_the_lots_benchmark_compares_lots_with_all_at_once(tmp_path):
    out = tmp_path / "lots.json"
    options = ["--structures", "rank_one", "--cases", "3x2", "--repeats", "1", "--out", str(out)]
    command = [sys.executable, str(ROOT / "scripts/benchmark.py"), "lots", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["structure"], row["grid"], row["images"], row["lots"]) == ("rank_one", 3, 2, 1)
    assert row["speedup"] == row["at_once"]["median_seconds"] / row["in_lots"]["median_seconds"]
    done = subprocess.run([*command, "--cases", "12"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "'12' must be SIDExIMAGES" in done.stderr


@pytest.mark.slow
def test_the_model_benchmark_writes_both_models_and_their_ratio(tmp_path):
    out = tmp_path / "model.json"
    options = ["--sizes", "16", "32", "--batch", "1", "--repeats", "1", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/benchmark.py"), "model", *options],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    rows = json.loads(out.read_text())["rows"]
    assert [row["tokens"] for row in rows] == [1, 4]
    for row in rows:
        assert row["ratio"] == row["pLSTM"]["median_seconds"] / row["ViT"]["median_seconds"]
        assert f"{row['ratio']:.2f}" in done.stdout
        assert min(row[name]["flops_per_second"] for name in ("pLSTM", "ViT")) > 0


@pytest.mark.slow
def test_the_graph_benchmark_times_epochs_of_each_model(tmp_path):
    out = tmp_path / "graphs.json"
    options = ["--sets", "TOY", "--models", "gin", "gcn", "--repeats", "2", "--out", str(out)]
    command = [sys.executable, str(ROOT / "scripts/benchmark.py"), "graphs", *options]
    environment = {**os.environ, "PLSTM_DATA": str(ROOT / "tests/data")}
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment)
    rows = json.loads(out.read_text())["rows"]
    assert [(row["set"], row["model"], row["steps"]) for row in rows] == [("TOY", "gin", 1), ("TOY", "gcn", 1)]
    for row in rows:
        assert len(row["seconds"]) == 2 and row["median_seconds"] > 0 and row["compile_seconds"] > 0
        assert f"{row['median_seconds'] / rows[0]['median_seconds']:.2f}" in done.stdout
