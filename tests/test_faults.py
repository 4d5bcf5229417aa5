"""What goes wrong around a run: damaged checkpoints, disks, W&B, numbers, memory. One line, and the last good state."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from plstm.training.tracking import read_metrics
from tests.test_kills import (  # noqa: F401 (fixtures)
    TINY,
    assert_same,
    numbers,
    run_folder,
    start,
    state_of,
    undisturbed,
    zygote,
)
from tests.zygote import ROOT, wait_for

pytestmark = pytest.mark.slow


def one_error(output: str) -> str:
    """The one line that tells of it."""
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in output
    return line


def killed(start, folder: Path) -> Path:  # noqa: F811
    """A run that was killed at its third checkpoint, of step 12, so that those of 4 and 8 are there; returns them."""
    status, output = start(folder, {"event": "complete", "count": 3, "delay": 0.0})
    assert status == -signal.SIGKILL, output
    return run_folder(folder) / "checkpoints"


def biggest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "one bit": lambda step: flip(biggest(step)),
    "cut": lambda step: os.truncate(biggest(step), biggest(step).stat().st_size // 2),
    "cut to nothing": lambda step: os.truncate(biggest(step), 0),
    "a file missing": lambda step: (step / "state" / "_METADATA").unlink(),
    "the score": lambda step: os.truncate(step / "metrics" / "metrics", 5),
    "the info": lambda step: os.truncate(step / "info" / "metadata", 5),
    "half of it missing": lambda step: [shutil.rmtree(step / "state"), (step / "SHA256SUMS").unlink()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_and_the_run_ends_as_if_undisturbed(undisturbed, start, tmp_path, damage):  # noqa: F811
    checkpoints = killed(start, tmp_path)
    last = max(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())
    DAMAGES[damage](checkpoints / str(last))
    status, output = start(tmp_path)
    assert status == 0, output
    (line,) = [line for line in output.splitlines() if " is damaged: " in line]
    assert line.startswith(f"the checkpoint of step {last} is damaged: ")
    assert line.endswith(f"; set aside as {checkpoints}/damaged/{last}")
    assert f"resumed at step {last - 4}" in output
    assert any((checkpoints / "damaged" / str(last)).iterdir())
    shutil.rmtree(checkpoints / "damaged")
    assert_same(tmp_path, undisturbed)


def test_all_checkpoints_damaged_is_a_start_anew(undisturbed, start, tmp_path):  # noqa: F811
    checkpoints = killed(start, tmp_path)
    steps = [path for path in checkpoints.iterdir() if path.name.isdigit()]
    for step in steps:
        flip(biggest(step))
    status, output = start(tmp_path)
    assert status == 0 and output.count(" is damaged: ") == len(steps) and "resumed" not in output
    shutil.rmtree(checkpoints / "damaged")
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("program", ["eval.py run={run}", "scripts/export.py {run} {folder}/model.safetensors"])
def test_programs_that_read_a_damaged_checkpoint_name_it(undisturbed, tmp_path, program):  # noqa: F811
    run = shutil.copytree(run_folder(undisturbed), tmp_path / run_folder(undisturbed).name)
    damaged = biggest(run / "checkpoints" / "24")
    flip(damaged)
    arguments = [argument.format(run=run, folder=tmp_path) for argument in program.split()]
    ended = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    name = damaged.relative_to(run / "checkpoints" / "24")
    told = f"{run}/checkpoints/24: a damaged checkpoint, {name} has changed since it was written; move it away"
    assert told in one_error(ended.stderr)
    assert not (tmp_path / "model.safetensors").exists()
    assert damaged.exists(), "they only read"


@pytest.mark.parametrize("metric", ["loss", "gradient"])
def test_a_number_that_is_not_finite_stops_the_run(start, tmp_path, metric):  # noqa: F811
    status, output = start(tmp_path, {"not_finite": metric, "step": 6})
    assert status == 2
    name = {"loss": "loss", "gradient": "gradient_norm"}[metric]
    told = f"error: step 6: {name} is not finite; the checkpoint of step 4 is good ({run_folder(tmp_path)}/checkpoints)"
    assert one_error(output).startswith(told)
    assert {path.name for path in (run_folder(tmp_path) / "checkpoints").iterdir()} == {"4"}
    assert not (tmp_path / "results").exists()
    status, output = start(tmp_path, {"not_finite": metric, "step": 99})
    assert status == 0 and "resumed at step 4" in output


def test_a_host_or_device_without_memory_names_the_batch_size(tmp_path):
    """A real failure of XLA, on the CPU: the step wants 150 GB, the process may have 10."""
    command = [sys.executable, "train.py", "debug=smoke", "experiment=arrow/vit", "model.dim=384", "model.heads=2"]
    command += ["model.patch_size=2", "data.train_images=2048", "optim.batch_size=2048", "loop.eval_splits=[val]"]
    command += [f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
    limited = ["bash", "-c", f'ulimit -v {10 * 1024**2}; exec "$@"', "bash", *command]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ended.returncode == 2
    line = one_error(ended.stderr)
    assert line.startswith("error: optim.batch_size=2048: a device ran out of memory, at 2,048 examples a device")
    assert "RESOURCE_EXHAUSTED" in line and "a smaller optim.batch_size" in line and "mesh.fsdp" in line


@pytest.fixture
def small_disk(tmp_path):
    """Function of a size: a small file system, as root."""
    mounted = []

    def mount(size: str) -> Path:
        folder = tmp_path / "small"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("this machine does not let tests mount")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_gets_full_loses_nothing(undisturbed, zygote, start, small_disk):  # noqa: F811
    """It is filled in the third evaluation, and cleared after the run has stopped."""
    folder = small_disk("64m")
    paths = [f"paths.runs={folder}/runs", f"paths.results={folder}/results"]
    output, filler = folder.parent / "output", folder / "filler"
    child = zygote.start([*TINY, *paths], output, {"event": "evaluate", "count": 3, "signal": int(signal.SIGSTOP)})
    wait_for(lambda: output.exists() and "<evaluate>" in output.read_text())
    try:
        assert (run_folder(folder) / "checkpoints" / "4").is_dir(), "complete before that of step 8 is begun"
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
    finally:
        os.kill(child, signal.SIGCONT)
    assert zygote.wait() == 2
    line = one_error(output.read_text())
    assert str(folder) in line and "No space left on device" in line
    filler.unlink()
    status, text = start(folder)
    assert status == 0 and "resumed at step" in text, text
    assert_same(folder, undisturbed)


def test_a_folder_that_can_only_be_read_is_named(undisturbed, start, small_disk):  # noqa: F811
    folder = small_disk("64m")
    shutil.copytree(run_folder(undisturbed), folder / "runs" / run_folder(undisturbed).name)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    paths = [f"paths.runs={folder}/runs", f"paths.results={folder}/results"]
    for more in ([], ["seed=44"]):
        command = [sys.executable, "train.py", *TINY, *paths, *more]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode == 2
        line = one_error(ended.stderr)
        assert str(folder) in line and "Read-only file system" in line and "paths.runs" in line


def children(process: int, word: str) -> list[psutil.Process]:
    found = psutil.Process(process).children(recursive=True)
    return [child for child in found if word in " ".join(child.cmdline())]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_client_that_dies_or_stands_still_changes_nothing(undisturbed, start, tmp_path, number):  # noqa: F811
    since = time.monotonic()
    status, output = start(tmp_path, {"event": "evaluate", "count": 2, "signal": int(number), "to_client": True})
    assert status == 0 and "<evaluate>" in output, output
    assert time.monotonic() - since < 200, "not much longer than the minute that the client is waited for at the end"
    said = [line for line in output.splitlines() if line.startswith("W&B: ")]
    assert len(said) == 2 and said[-1].endswith("; training continues") and "Traceback" not in output
    assert numbers(tmp_path) == numbers(undisturbed)
    for (name, found), (_, expected) in zip(state_of(tmp_path), state_of(undisturbed), strict=True):
        assert found.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("number", [signal.SIGTERM, None], ids=str)
def test_where_the_reading_processes_end_first_the_run_saves(tmp_path, number):
    """Killed while the training waits for a batch, after a signal to it, or for want of memory."""
    paths = [f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
    command = [sys.executable, "-u", "train.py", *TINY, *paths, "optim.epochs=1000", "logger.mode=disabled"]
    command += ["data.placement=stream", "data.workers=1"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: list(tmp_path.glob("runs/*/checkpoints/8")))
    readers = children(process.pid, "spawn_main")
    for reader in readers:
        reader.send_signal(signal.SIGSTOP)
    steps = [-1, 0]
    while steps[-1] != steps[-2]:  # until the batches that were read ahead are used up
        time.sleep(2)
        steps.append(read_metrics(run_folder(tmp_path) / "metrics.jsonl")[-1]["step"])
    if number:
        process.send_signal(number)
    for reader in readers:
        reader.kill()
    since = time.monotonic()
    output, errors = process.communicate(timeout=120)
    assert time.monotonic() - since < 30
    if number:
        assert process.returncode == 128 + number, errors
        assert f"stopped by signal {number} at step {steps[-1]} saved" in output.replace(",", "")
    else:
        assert process.returncode == 2 and "a reading process ended" in one_error(errors)
        assert f"saved at step {steps[-1]};" in output.replace(",", "")
    assert (run_folder(tmp_path) / "checkpoints" / str(steps[-1])).is_dir()


def test_a_server_that_accepts_and_never_answers_does_not_hold_up_the_training(undisturbed, start, tmp_path):  # noqa: F811
    """The client waits for it for half a minute; the training is through before."""
    with socket.socket() as server, pytest.MonkeyPatch.context() as patch:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name, value in {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}.items():
            patch.setenv(name, value)
        patch.delenv("WANDB_MODE", raising=False)
        paths = [f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
        command = [sys.executable, "train.py", *TINY, "logger.mode=online", *paths]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: list((tmp_path / "runs").glob("*/metrics.jsonl")))
        since = time.monotonic()
        wait_for(lambda: any(line["split"] == "test" for line in read_metrics(run_folder(tmp_path) / "metrics.jsonl")))
        training = time.monotonic() - since
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "W&B: could not start online" in errors and "Traceback" not in errors
    assert training < 30, "it waited for the client"
    assert numbers(tmp_path) == numbers(undisturbed)
