"""The launcher of Slurm jobs; with its plugin installed (extra `slurm`) it composes and starts jobs."""

import importlib.util

import pytest
from hydra import compose

from plstm.studies.records import read_records
from tests.commands import call, paths

has_plugin = importlib.util.find_spec("submitit") is not None
needs_plugin = pytest.mark.skipif(not has_plugin, reason="hydra-submitit-launcher is not installed (extra slurm)")


@needs_plugin
@pytest.mark.parametrize(("name", "gpus", "cores"), [("slurm", 1, 8), ("slurm_node", 8, 64)])
def test_the_launchers_compose(composed, name, gpus, cores):
    overrides = [f"hydra/launcher={name}", "hydra.launcher.partition=gpu", "hydra.launcher.nodes=2"]
    launcher = compose("train", overrides=overrides, return_hydra_config=True).hydra.launcher
    assert launcher._target_.endswith(".SlurmLauncher")
    assert (launcher.partition, launcher.nodes, launcher.tasks_per_node) == ("gpu", 2, 1)
    assert (launcher.gpus_per_node, launcher.cpus_per_task) == (gpus, cores)
    assert launcher.signal_delay_s < 60 * launcher.timeout_min and launcher.max_num_timeout > 0


@needs_plugin
@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("slurm", ["SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"]),
        ("slurm_node", ["SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "SLURM_KILL_BAD_EXIT=1"]),
    ],
)
def test_the_step_of_a_job_has_its_cores_and_ends_where_one_of_its_processes_does(composed, name, variables):
    """What sbatch is given, with a step by srun, which reads these variables."""
    from submitit.slurm.slurm import _make_sbatch_string

    overrides = [f"hydra/launcher={name}", "hydra.launcher.nodes=2"]
    launcher = compose("train", overrides=overrides, return_hydra_config=True).hydra.launcher
    script = _make_sbatch_string("train", "jobs", nodes=launcher.nodes, setup=list(launcher.setup)).splitlines()
    step = next(number for number, line in enumerate(script) if line.startswith("srun "))
    assert all(script.index(f"export {variable}") < step for variable in variables)


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
