"""Runs of train.py in two processes, as on two hosts: real processes that find each other over loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plstm.results.records import read_records
from plstm.training.tracking import read_metrics

ROOT = Path(__file__).resolve().parents[1]
TINY = ["debug=smoke", "experiment=arrow/vit", "model.dim=64", "model.heads=2", "optim.epochs=2"]
TINY += ["loop.eval_splits=[val]", "loop.eval_every=4", "loop.log_every=1"]

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]


def start(
    folder: Path, count: int, *overrides: str, variables=lambda number, count, port: {}
) -> list[subprocess.Popen]:
    """The processes of one run; `variables` are the environment of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [f"paths.runs={folder}/runs", f"paths.results={folder}/results"]
    return [
        subprocess.Popen(
            [sys.executable, "-u", str(ROOT / "train.py"), *TINY, *overrides, *paths],
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu"} | variables(number, count, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]


def by_variables(number: int, count: int, port: int) -> dict[str, str]:
    return {"COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "NUM_PROCESSES": str(count), "PROCESS_ID": str(number)}


def as_slurm_step(number: int, count: int, port: int) -> dict[str, str]:
    """What srun sets for a step of one task a node; two nodes of one name."""
    return {
        "SLURM_JOB_ID": str(port),
        "SLURM_STEP_NODELIST": "localhost,localhost",
        "SLURM_STEP_NUM_NODES": str(count),
        "SLURM_NTASKS": str(count),
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": "0",
        "JAX_COORDINATOR_PORT": str(port),
    }


def wait(processes: list[subprocess.Popen], status: int = 0) -> list[str]:
    """What each printed to its standard output."""
    outputs = [process.communicate(timeout=900) for process in processes]
    assert [process.returncode for process in processes] == [status] * len(processes), outputs
    return [output for output, _ in outputs]


def last_metrics(folder: Path) -> dict:
    (record,) = read_records(folder / "results")
    return record.metrics["last"]


def metrics_file(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run / "metrics.jsonl"


def numbers(folder: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in read_metrics(metrics_file(folder))]


def assert_close(found: list[dict], expected: list[dict]) -> None:
    assert len(found) == len(expected)
    for line, other in zip(found, expected, strict=True):
        assert line.keys() == other.keys() and line["split"] == other["split"]
        for name in other.keys() - {"split"}:
            assert line[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    wait(start(folder, 1))
    return folder


@pytest.mark.parametrize(
    ("variables", "overrides"),
    [(by_variables, []), (by_variables, ["mesh.fsdp=2", "data.placement=stream"]), (as_slurm_step, ["mesh.fsdp=2"])],
)
def test_two_processes_train_to_the_numbers_of_one(alone, tmp_path, variables, overrides):
    first, second = wait(start(tmp_path, 2, *overrides, variables=variables))
    assert "2 processes" in first and "finished; record in" in first
    assert "step " not in second and "finished" not in second
    assert metrics_file(tmp_path).parent.name == metrics_file(alone).parent.name
    assert_close(numbers(tmp_path), numbers(alone))
    for split, values in last_metrics(alone).items():
        assert last_metrics(tmp_path)[split] == pytest.approx(values, rel=1e-3)
    (run,) = (tmp_path / "runs").iterdir()
    assert {path.suffix for path in (run / "figures").iterdir()} == {".png", ".svg"}
    first, second = wait(start(tmp_path, 2, *overrides, variables=variables))
    assert "has finished" in first and "has finished" not in second


def test_a_signal_to_one_stops_both_and_another_layout_goes_on(alone, tmp_path):
    processes = start(tmp_path, 2, "mesh.fsdp=2", variables=by_variables)
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("runs/*/checkpoints/4")):
        assert time.monotonic() < deadline and processes[0].poll() is None
        time.sleep(0.01)
    processes[1].send_signal(signal.SIGTERM)
    first, _ = wait(processes, 128 + signal.SIGTERM)
    assert "stopped by signal 15 at step" in first
    (output,) = wait(start(tmp_path, 1))
    assert "resumed at step" in output
    assert_close(numbers(tmp_path), numbers(alone))


def test_all_processes_leave_a_damaged_checkpoint(alone, tmp_path):
    processes = start(tmp_path, 2, "mesh.fsdp=2", variables=by_variables)
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("runs/*/checkpoints/8")):
        assert time.monotonic() < deadline and processes[0].poll() is None
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.communicate()
    (checkpoints,) = tmp_path.glob("runs/*/checkpoints")
    last = max(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())
    biggest = max((checkpoints / str(last)).rglob("d/*"), key=lambda path: path.stat().st_size)
    data = bytearray(biggest.read_bytes())
    data[len(data) // 2] ^= 1
    biggest.write_bytes(data)
    first, second = wait(start(tmp_path, 2, "mesh.fsdp=2", variables=by_variables))
    assert first.count(f"the checkpoint of step {last} is damaged: ") == 1
    assert "damaged" not in second
    assert f"resumed at step {last - 4}" in first
    assert_close(numbers(tmp_path), numbers(alone))


def test_different_commands_are_refused(tmp_path):
    ports = []

    def one_port(number: int, count: int, port: int) -> dict[str, str]:
        ports.append(port)
        return by_variables(number, 2, ports[0]) | {"PROCESS_ID": str(len(ports) - 1)}

    processes = [*start(tmp_path, 1, variables=one_port), *start(tmp_path, 1, "seed=44", variables=one_port)]
    _, errors = processes[1].communicate(timeout=300)
    assert processes[1].returncode == 2
    assert "error: process 1: process 1 was started with another command" in errors
    processes[0].kill()
    processes[0].communicate()


def test_an_error_in_one_process_ends_the_others(tmp_path):
    def only_second_has_data(number: int, count: int, port: int) -> dict[str, str]:
        (tmp_path / "data").mkdir(exist_ok=True)
        return by_variables(number, count, port) | {"PLSTM_DATA": str(tmp_path / ("data" if number else "none"))}

    processes = start(tmp_path, 2, variables=only_second_has_data)
    for process in processes:
        process.wait(timeout=300)
    assert processes[0].returncode == 2 and "PLSTM_DATA" in processes[0].stderr.read()
    assert processes[1].returncode != 0
