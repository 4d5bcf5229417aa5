"""The scripts that no other test starts, at their smallest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    assert all(row["speedup"] > 0 for row in written["rows"])
