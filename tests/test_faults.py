"""What goes wrong around a run: damaged checkpoints, disks, W&B, numbers, memory. One line, and the last good state."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests import commands
from tests.commands import SMALLEST, assert_same, begin, biggest, call, end, flip, one_error, paths, run_folder
from tests.fork_server import wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("every", [False, True])
def test_a_damaged_checkpoint_is_set_aside_and_the_run_ends_as_if_undisturbed(undisturbed, start, tmp_path, every):
    """It resumes from the checkpoint before, or starts anew where there is none; test_checkpoints.py damages more."""
    status, output = start(tmp_path, {"event": "complete", "count": 3})  # at the checkpoint of step 12, after 4 and 8
    assert status == -signal.SIGKILL, output
    checkpoints = run_folder(tmp_path) / "checkpoints"
    *before, last = commands.steps_of(checkpoints)
    for step in [*before, last] if every else [last]:
        flip(biggest(checkpoints / str(step)))
    status, output = start(tmp_path)
    assert status == 0, output
    line, *others = [line for line in output.splitlines() if " is damaged: " in line]
    assert line.startswith(f"the checkpoint of step {last} is damaged: ")
    assert line.endswith(f"; set aside as {checkpoints}/damaged/{last}")
    if every:
        assert len(others) == len(before) and "resumed" not in output
    else:
        assert not others and f"resumed at step {last - 4}" in output
    assert any((checkpoints / "damaged" / str(last)).iterdir())
    shutil.rmtree(checkpoints / "damaged")
    assert_same(tmp_path, undisturbed)


def test_a_host_or_device_without_memory_names_the_batch_size(tmp_path):
    """A real failure of XLA, on the CPU: attention over 36,864 patches wants more than the 10 GiB of the process."""
    command = ["train.py", "debug=smoke", "experiment=arrow/vit", "data.size=192", "model.patch_size=1"]
    command += ["loop.eval_splits=[val]", "loop.final_splits=[val]", *paths(tmp_path)]
    memory = 10 * 2**30
    options = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))}
    line = one_error(end(begin(*command, environment=os.environ | {"JAX_PLATFORMS": "cpu"}, **options), 2)[1])
    assert line.startswith("error: optim.batch_size=32: a device ran out of memory, at 32 examples a device")
    assert "RESOURCE_EXHAUSTED" in line and "a smaller optim.batch_size" in line and "mesh.fsdp" in line


def test_a_run_whose_output_is_lost_ends_as_if_undisturbed(undisturbed, fork_server, tmp_path):
    fork_server.start([*SMALLEST, *paths(tmp_path)], Path("/dev/full"))
    assert fork_server.wait() == 0
    assert_same(tmp_path, undisturbed)


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
    runs, elsewhere = f"paths.runs={folder}/runs", f"paths.results={folder.parent}/results"
    for more in ([], ["seed=44"]):
        line = one_error(call("train.py", *SMALLEST, runs, elsewhere, *more, status=2))
        assert str(folder) in line and "Read-only file system" in line and "paths.runs" in line
    line = one_error(call("train.py", *SMALLEST, *paths(folder), status=2))
    assert line.startswith(f"error: paths.results={folder}/results: {folder} cannot be written")


def test_a_client_that_dies_changes_nothing(undisturbed, start, tmp_path):
    status, output = start(tmp_path, {"event": "evaluate", "count": 2, "to_client": True})
    assert status == 0 and "<evaluate>" in output, output
    said = [line for line in output.splitlines() if line.startswith("W&B: ")]
    assert len(said) == 2 and said[-1].endswith("; the program continues") and "Traceback" not in output
    commands.assert_same_numbers(tmp_path, undisturbed)
