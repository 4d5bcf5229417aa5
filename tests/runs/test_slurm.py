"""The launcher of Slurm jobs, with its plugin (extra `slurm`) and without."""

import importlib.util

import pytest

from plstm.studies.records import read_records
from tests.commands import call, paths

has_plugin = importlib.util.find_spec("submitit") is not None
needs_plugin = pytest.mark.skipif(not has_plugin, reason="hydra-submitit-launcher is not installed (extra slurm)")


@needs_plugin
@pytest.mark.slow
def test_a_job_of_the_plugin_trains(tmp_path):
    """Through submitit's own local executor: a job gets the task by pickle, in a process that imports nothing else."""
    tiny = ["debug=smoke", "experiment=arrow/vit", "model.dim=16", "model.heads=2", "optim.epochs=1"]
    call("train.py", "-m", "hydra/launcher=submitit_local", "seed=1,2", *tiny, *paths(tmp_path))
    assert [record.seed for record in read_records(tmp_path / "results")] in ([1, 2], [2, 1])


@pytest.mark.skipif(has_plugin, reason="it is installed")
def test_without_the_plugin_one_line_says_how_to_get_it():
    said = call("train.py", "-m", "hydra/launcher=slurm", "experiment=arrow/vit", status=2)
    assert said == "error: hydra/launcher: this one needs the Slurm plugin; install it: make setup EXTRA=slurm\n"
