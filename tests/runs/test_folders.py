"""Runs are found by their folder or the first digits of their id."""

import os

import pytest

from plstm.errors import UserError
from plstm.runs import folders
from plstm.runs.compose import compose_experiment
from plstm.runs.folders import find_run, write_config


def test_runs_of_the_demo_and_of_smoke_are_found_as_well(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    monkeypatch.setattr(folders, "OTHER_RUNS", (tmp_path / "demo", tmp_path / "smoke"))
    own = runs / "1a2b"
    demo = tmp_path / "demo/1f39"
    smoke = tmp_path / "smoke/33"
    for folder in (own, demo, smoke):
        (folder / ".hydra").mkdir(parents=True)
    for name, folder in (("1a", own), ("1f", demo), (str(demo), demo), ("3", smoke)):
        assert find_run(name, runs) == folder
    assert find_run("1f", tmp_path / "demo") == demo
    with pytest.raises(UserError, match=f"run=1: 2 runs begin so: {own}, {demo}"):
        find_run("1", runs)
    write_config(smoke, compose_experiment("arrow/vit"), [])
    for age, folder in enumerate((smoke, own, demo)):
        os.utime(folder, (-age, -age))
    with pytest.raises(UserError, match=r"run=2: no such run in .*; there are 33 \(arrow-vit-s\d+\), 1a2b, 1f39;"):
        find_run("2", runs)
    (tmp_path / "smoke/1a2b/.hydra").mkdir(parents=True)  # the same run trained again elsewhere
    assert find_run("1a2b", runs) == find_run("1a", runs) == own
