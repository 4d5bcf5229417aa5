"""Runs of train.py in two processes, as on two hosts: real processes that find each other over loopback."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.commands import begin, biggest, end, flip, free_port, numbers, paths, record_of, run_folder, steps_of
from tests.fork_server import wait_for

TINY = ["debug=smoke", "experiment=arrow/vit", "model.dim=64", "model.heads=2", "optim.epochs=2"]
TINY += ["loop.eval_splits=[val]", "loop.eval_every=4", "loop.log_every=1"]

pytestmark = pytest.mark.slow


def by_variables(number: int, count: int, port: int) -> dict[str, str]:
    return {"COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "NUM_PROCESSES": str(count), "PROCESS_ID": str(number)}


def as_slurm_step(number: int, count: int, port: int) -> dict[str, str]:
    """What srun sets for a step of one task a node; two nodes of one name."""
    step = {"STEP_NODELIST": "localhost,localhost", "STEP_NUM_NODES": count, "NTASKS": count, "PROCID": number}
    step |= {"JOB_ID": port, "LOCALID": 0}
    return {f"SLURM_{name}": str(value) for name, value in step.items()} | {"JAX_COORDINATOR_PORT": str(port)}


def start_one(folder: Path, *overrides: str, **variables: str) -> subprocess.Popen:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    return begin("train.py", *TINY, *overrides, *paths(folder), environment=environment)


def start_two(folder: Path, *overrides: str, variables=by_variables) -> list[subprocess.Popen]:
    """The processes of one run; `variables` are the environment of each."""
    port = free_port()
    return [start_one(folder, *overrides, **variables(number, 2, port)) for number in range(2)]


def wait_for_checkpoint(folder: Path, step: int, processes: list[subprocess.Popen]) -> None:
    def is_there() -> bool:
        assert all(process.poll() is None for process in processes)
        return bool(list(folder.glob(f"runs/*/checkpoints/{step}")))

    wait_for(is_there, 600)


def assert_close(folder: Path, other: Path) -> None:
    """The numbers of two runs whose sums have another order."""
    found, expected = numbers(folder), numbers(other)
    assert len(found) == len(expected)
    for line, wanted in zip(found, expected, strict=True):
        assert line.keys() == wanted.keys() and line["split"] == wanted["split"]
        for name in wanted.keys() - {"split"}:
            assert line[name] == pytest.approx(wanted[name], rel=1e-3, abs=1e-5), name
    for split, values in record_of(other).metrics["last"].items():
        assert record_of(folder).metrics["last"][split] == pytest.approx(values, rel=1e-3)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    end(start_one(folder))
    return folder


@pytest.mark.parametrize(
    ("variables", "overrides"),
    [(by_variables, []), (as_slurm_step, ["mesh.fsdp=2"])],
)
def test_two_processes_train_to_the_numbers_of_one(alone, tmp_path, variables, overrides):
    first, second = (end(each)[0] for each in start_two(tmp_path, *overrides, variables=variables))
    assert "2 processes" in first and "finished, see" in first
    assert "step " not in second and "finished" not in second
    assert run_folder(tmp_path).name == run_folder(alone).name
    assert_close(tmp_path, alone)
    assert {path.suffix for path in (run_folder(tmp_path) / "figures").iterdir()} == {".png"}
    first, second = (end(each)[0] for each in start_two(tmp_path, *overrides, variables=variables))
    assert "has finished" in first and "has finished" not in second


def test_a_signal_to_one_stops_both_and_another_layout_resumes(alone, tmp_path):
    processes = start_two(tmp_path, "mesh.fsdp=2")
    wait_for_checkpoint(tmp_path, 4, processes)
    processes[1].send_signal(signal.SIGTERM)
    first, _ = (end(each, 128 + signal.SIGTERM)[0] for each in processes)
    assert "stopped by signal 15 at step" in first
    assert "resumed at step" in end(start_one(tmp_path))[0]
    assert_close(tmp_path, alone)


def test_all_processes_leave_a_damaged_checkpoint(alone, tmp_path):
    processes = start_two(tmp_path, "mesh.fsdp=2")
    wait_for_checkpoint(tmp_path, 8, processes)
    for process in processes:
        process.kill()
        process.communicate()
    checkpoints = run_folder(tmp_path) / "checkpoints"
    last = steps_of(checkpoints)[-1]
    flip(biggest(checkpoints / str(last)))
    first, second = (end(each)[0] for each in start_two(tmp_path, "mesh.fsdp=2"))
    assert first.count(f"the checkpoint of step {last} is damaged: ") == 1
    assert "damaged" not in second
    assert f"resumed at step {last - 4}" in first
    assert_close(tmp_path, alone)


def test_different_commands_are_refused(tmp_path):
    port = free_port()
    first = start_one(tmp_path, **by_variables(0, 2, port))
    second = start_one(tmp_path, "seed=44", **by_variables(1, 2, port))
    _, errors = end(second, 2, seconds=300)
    assert "error: process 1: process 1 was started with another command" in errors
    first.kill()
    first.communicate()


def test_an_error_in_one_process_ends_the_others(tmp_path):
    (tmp_path / "data").mkdir()
    port = free_port()
    data = [str(tmp_path / name) for name in ("none", "data")]  # only the second process has its data
    first, second = (start_one(tmp_path, **by_variables(n, 2, port), PLSTM_DATA=data[n]) for n in range(2))
    assert "PLSTM_DATA" in end(first, 2, seconds=300)[1]
    second.communicate(timeout=300)
    assert second.returncode != 0
