"""What goes wrong around a run: damaged checkpoints, disks, W&B, numbers, memory. One line, and the last good state."""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from plstm.training.tracking import read_metrics
from tests import commands
from tests.commands import SMALLEST, assert_same, begin, biggest, call, end, flip, one_error, paths, run_folder
from tests.fork_server import wait_for

pytestmark = pytest.mark.slow


def killed(start, folder: Path) -> Path:
    """A run that was killed at its third checkpoint, of step 12, so that those of 4 and 8 are there; returns them."""
    status, output = start(folder, {"event": "complete", "count": 3, "delay": 0.0})
    assert status == -signal.SIGKILL, output
    return run_folder(folder) / "checkpoints"


DAMAGES = {
    "one bit": lambda step: flip(biggest(step)),
    "cut": lambda step: os.truncate(biggest(step), biggest(step).stat().st_size // 2),
    "cut to nothing": lambda step: os.truncate(biggest(step), 0),
    "a file missing": lambda step: (step / "state" / "_METADATA").unlink(),
    "the score": lambda step: os.truncate(step / "metrics" / "metrics", 5),
    "the info": lambda step: os.truncate(step / "info" / "metadata", 5),
    "half of it missing": lambda step: [shutil.rmtree(step / "state"), (step / "SHA256SUMS").unlink()],
}


@pytest.mark.parametrize("damage", [*DAMAGES, "one bit of each"])
def test_a_damaged_checkpoint_is_set_aside_and_the_run_ends_as_if_undisturbed(undisturbed, start, tmp_path, damage):
    """It resumes from the checkpoint before, or starts anew where there is none."""
    checkpoints = killed(start, tmp_path)
    *before, last = commands.steps_of(checkpoints)
    if damage == "one bit of each":
        for step in before:
            flip(biggest(checkpoints / str(step)))
    DAMAGES.get(damage, DAMAGES["one bit"])(checkpoints / str(last))
    status, output = start(tmp_path)
    assert status == 0, output
    line, *others = [line for line in output.splitlines() if " is damaged: " in line]
    assert line.startswith(f"the checkpoint of step {last} is damaged: ")
    assert line.endswith(f"; set aside as {checkpoints}/damaged/{last}")
    if damage == "one bit of each":
        assert len(others) == len(before) and "resumed" not in output
    else:
        assert not others and f"resumed at step {last - 4}" in output
    assert any((checkpoints / "damaged" / str(last)).iterdir())
    shutil.rmtree(checkpoints / "damaged")
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("program", ["eval.py run={run}", "scripts/export.py {run} {folder}/model.safetensors"])
def test_programs_that_read_a_damaged_checkpoint_name_it(undisturbed, tmp_path, program):
    run = shutil.copytree(run_folder(undisturbed), tmp_path / run_folder(undisturbed).name)
    damaged = biggest(run / "checkpoints" / "24")
    flip(damaged)
    output = call(*(argument.format(run=run, folder=tmp_path) for argument in program.split()), status=2)
    name = damaged.relative_to(run / "checkpoints" / "24")
    told = f"{run}/checkpoints/24: a damaged checkpoint, {name} has changed since it was written; move it away"
    assert told in one_error(output)
    assert not (tmp_path / "model.safetensors").exists()
    assert damaged.exists(), "they only read"


@pytest.mark.parametrize("metric", ["loss", "gradient"])
def test_a_number_that_is_not_finite_stops_the_run(start, tmp_path, metric):
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
    command = ["train.py", "debug=smoke", "experiment=arrow/vit", "model.dim=384", "model.heads=2", *paths(tmp_path)]
    command += ["model.patch_size=2", "data.train_images=2048", "optim.batch_size=2048", "loop.eval_splits=[val]"]
    memory = 10 * 2**30
    options = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))}
    line = one_error(end(begin(*command, environment=os.environ | {"JAX_PLATFORMS": "cpu"}, **options), 2)[1])
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


def test_a_disk_that_gets_full_loses_nothing(undisturbed, fork_server, start, small_disk):
    """It is filled in the third evaluation, and cleared after the run has stopped."""
    folder = small_disk("64m")
    output, filler = folder.parent / "output", folder / "filler"
    plan = {"event": "evaluate", "count": 3, "signal": int(signal.SIGSTOP)}
    child = fork_server.start([*SMALLEST, *paths(folder)], output, plan)
    wait_for(lambda: output.exists() and "<evaluate>" in output.read_text())
    try:
        assert (run_folder(folder) / "checkpoints" / "4").is_dir(), "complete before that of step 8 is begun"
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
    finally:
        os.kill(child, signal.SIGCONT)
    assert fork_server.wait() == 2
    line = one_error(output.read_text())
    assert str(folder) in line and "No space left on device" in line
    filler.unlink()
    status, text = start(folder)
    assert status == 0 and "resumed at step" in text, text
    assert_same(folder, undisturbed)


def test_a_disk_too_small_for_a_checkpoint_is_named_and_keeps_no_record(small_disk):
    folder = small_disk("3m")
    larger = ["model.dim=128", "model.depth=4", "logger.mode=disabled"]
    output = call("train.py", *SMALLEST, *larger, *paths(folder), status=2)
    line = one_error(output)
    assert line.startswith("error: cannot write the checkpoint") and str(folder) in line
    assert not list(folder.glob("results/runs/*"))


def test_a_folder_that_can_only_be_read_is_named(undisturbed, small_disk):
    folder = small_disk("64m")
    shutil.copytree(run_folder(undisturbed), folder / "runs" / run_folder(undisturbed).name)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    for more in ([], ["seed=44"]):
        line = one_error(call("train.py", *SMALLEST, *paths(folder), *more, status=2))
        assert str(folder) in line and "Read-only file system" in line and "paths.runs" in line


def test_a_client_that_dies_changes_nothing(undisturbed, start, tmp_path):
    status, output = start(tmp_path, {"event": "evaluate", "count": 2, "to_client": True})
    assert status == 0 and "<evaluate>" in output, output
    said = [line for line in output.splitlines() if line.startswith("W&B: ")]
    assert len(said) == 2 and said[-1].endswith("; training continues") and "Traceback" not in output
    commands.assert_same_numbers(tmp_path, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGTERM, None], ids=str)
def test_where_the_reading_processes_end_first_the_run_saves(tmp_path, number):
    """Killed while the training waits for a batch: after a signal to it, or by a system without memory."""
    command = ["train.py", *SMALLEST, *paths(tmp_path), "optim.epochs=1000", "logger.mode=disabled"]
    process = begin(*command, "data.placement=stream", "data.workers=1", start_new_session=True)
    wait_for(lambda: list(tmp_path.glob("runs/*/checkpoints/8")))
    children = psutil.Process(process.pid).children(recursive=True)
    readers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
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
    output, errors = end(process, 128 + number if number else 2, seconds=120)
    assert time.monotonic() - since < 30
    said = f"stopped by signal {number} at step {steps[-1]} saved" if number else f"saved at step {steps[-1]};"
    assert said in output.replace(",", "")
    assert number or "a reading process ended" in one_error(errors)
    assert (run_folder(tmp_path) / "checkpoints" / str(steps[-1])).is_dir()


def test_a_server_that_accepts_and_never_answers_holds_up_the_start_alone(undisturbed, tmp_path):
    """The client waits for it for half a minute."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
        environment |= {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}
        process = begin("train.py", *SMALLEST, "logger.mode=online", *paths(tmp_path), environment=environment)
        _, errors = end(process, seconds=300)
    assert "W&B: could not start (" in errors and "Traceback" not in errors
    assert commands.numbers(tmp_path) == commands.numbers(undisturbed)
