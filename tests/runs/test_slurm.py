"""The launcher of Slurm jobs; with its plugin installed (extra `slurm`) it composes and starts jobs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose

from plstm.results.records import read_records

ROOT = Path(__file__).resolve().parents[2]
has_plugin = importlib.util.find_spec("submitit") is not None
needs_plugin = pytest.mark.skipif(not has_plugin, reason="hydra-submitit-launcher is not installed (extra slurm)")


@needs_plugin
def test_the_launcher_composes(composed):
    overrides = ["hydra/launcher=slurm", "hydra.launcher.partition=gpu", "hydra.launcher.nodes=2"]
    launcher = compose("train", overrides=overrides, return_hydra_config=True).hydra.launcher
    assert launcher._target_.endswith(".SlurmLauncher")
    assert (launcher.partition, launcher.nodes, launcher.tasks_per_node, launcher.gpus_per_node) == ("gpu", 2, 1, 8)
    assert launcher.signal_delay_s < 60 * launcher.timeout_min and launcher.max_num_timeout > 0


@needs_plugin
@pytest.mark.slow
def test_a_job_of_the_plugin_trains(tmp_path):
    """Through submitit's own local executor: a job gets the task by pickle, in a process that imports nothing else."""
    command = [sys.executable, "train.py", "-m", "hydra/launcher=submitit_local", "debug=smoke", "seed=1,2"]
    command += ["experiment=arrow/vit", "model.dim=16", "model.heads=2", "optim.epochs=1"]
    command += [f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert [record.seed for record in read_records(tmp_path / "results")] in ([1, 2], [2, 1])


@pytest.mark.skipif(has_plugin, reason="it is installed")
def test_without_the_plugin_one_line_says_how_to_get_it():
    command = [sys.executable, "train.py", "-m", "hydra/launcher=slurm", "experiment=arrow/vit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: hydra/launcher: this one needs the Slurm plugin; install it: make setup EXTRA=slurm\n"
