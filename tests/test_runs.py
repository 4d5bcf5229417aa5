"""Whole runs as a user starts them: train, evaluate, stop, kill, resume. Real processes on tiny models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from plstm.results.records import read_curve, read_records
from plstm.results.verify import record_problems, rerun_problems
from plstm.training.tracking import read_metrics

ROOT = Path(__file__).resolve().parents[1]
TINY = ["debug=smoke", "model.dim=16", "model.heads=2", "optim.epochs=2", "loop.eval_splits=[val]", "loop.eval_every=4"]


def start(folder: Path, *overrides: str) -> subprocess.Popen:
    paths = [f"paths.runs={folder}/runs", f"paths.results={folder}/results"]
    flags = [override for override in overrides if override.startswith("-")]  # Hydra takes them before overrides only
    rest = [override for override in overrides if not override.startswith("-")]
    command = [sys.executable, "-u", str(ROOT / "train.py"), *flags, *TINY, *rest, *paths]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def train(folder: Path, *overrides: str) -> str:
    process = start(folder, *overrides)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def evaluate(folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, str(ROOT / "eval.py"), *arguments, f"paths.runs={folder}/runs"]
    command += [f"paths.results={folder}/results"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def run_folder(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def without_speed(path: Path) -> list[dict]:
    return [{key: value for key, value in line.items() if key != "images_per_second"} for line in read_metrics(path)]


def last_lines(folder: Path) -> dict:
    return json.loads(next((folder / "results" / "runs").glob("*.json")).read_text())["metrics"]["last"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of arrow/plstm's smallest form that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder, "experiment=arrow/plstm")
    return folder


def test_a_run_leaves_its_record_curve_and_pictures(finished):
    (record,) = read_records(finished / "results")
    assert record.experiment == "arrow/plstm"
    assert record.steps == 16
    assert record.epochs == 2
    assert record.metrics["last"]["test_ext"]["count"] == 64
    assert record.config["model"]["dim"] == 16
    assert record.command.startswith("python train.py debug=smoke ")
    assert str(finished) not in json.dumps(asdict(record)), "paths of this machine do not belong in a record"
    curve = read_curve(record, finished / "results")
    assert {point.split for point in curve} == {"train", "val", "val_ext", "test", "test_ext"}
    assert [point.step for point in curve if (point.split, point.metric) == ("val", "accuracy")] == [4, 8, 12, 16]
    assert {path.suffix for path in (run_folder(finished) / "figures").iterdir()} == {".png", ".svg"}


def test_eval_prints_the_digits_of_the_end_of_training(finished):
    printed = evaluate(finished, f"run={run_folder(finished).name[:6]}")
    (record,) = read_records(finished / "results")
    assert len(printed) == 5
    for line in printed[1:]:
        split, _, loss, _, accuracy, *_ = line.split()
        assert loss == f"{record.metrics['last'][split]['loss']:.6f}"
        assert accuracy == f"{record.metrics['last'][split]['accuracy']:.6f}"


def test_eval_of_one_split_and_the_best_checkpoint(finished):
    (record,) = read_records(finished / "results")
    best = record.metrics["best"]
    header, line = evaluate(finished, f"run={run_folder(finished)}", "checkpoint=best", "data.split=val")
    assert header.endswith(f"step {best['step']:,}")
    assert f"accuracy {best['val']['accuracy']:.6f}" in line


def test_probes_of_the_run_start_from_its_test_accuracy(finished):
    out, runs = finished / "probe.json", finished / "runs"
    command = [sys.executable, str(ROOT / "scripts/probe_arrow.py"), run_folder(finished).name[:6], f"--runs={runs}"]
    subprocess.run([*command, "--count=64", f"--out={out}"], cwd=ROOT, check=True, capture_output=True)
    rows = json.loads(out.read_text())["rows"]
    assert [(row["canvas_pixels"], row["probe"]) for row in rows[::5]] == [(48, "as given"), (96, "as given")]
    for row, split in zip(rows[::5], ("test", "test_ext"), strict=True):  # which have 64 images in this run
        assert row["accuracy"] == last_lines(finished)[split]["accuracy"]
        assert sum(part["images"] for part in row["by_distance"]) == row["images"] == 64


def test_the_same_command_again_says_that_the_run_has_finished(finished):
    assert "has finished; its record is" in train(finished, "experiment=arrow/plstm")


def test_a_checkpoint_of_another_model_is_refused(finished, tmp_path):
    train(tmp_path, "experiment=arrow/vit", "optim.epochs=1", "loop.final_splits=[val]")
    (run_folder(tmp_path) / "checkpoints").rename(tmp_path / "other")
    checkpoints = run_folder(finished) / "checkpoints"
    subprocess.run(["cp", "-r", str(checkpoints), str(run_folder(tmp_path) / "checkpoints")], check=True)
    command = [sys.executable, str(ROOT / "eval.py"), f"run={run_folder(tmp_path)}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "another model" in ended.stderr
    assert str(run_folder(tmp_path) / "checkpoints") in ended.stderr
    assert "Traceback" not in ended.stderr


def kill_and_resume(folder: Path, checkpoint: int, kill: int) -> str:
    """Starts the undisturbed run's twin, kills it once it has the checkpoint of that step, and starts it again."""
    process = start(folder, "experiment=arrow/plstm", "loop.log_every=1")
    wanted = None
    deadline = time.monotonic() + 300
    while wanted is None or not wanted.exists():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
        if wanted is None and (folder / "runs").is_dir() and list((folder / "runs").iterdir()):
            wanted = run_folder(folder) / "checkpoints" / str(checkpoint)
    process.send_signal(kill)
    process.communicate()
    assert process.returncode == (-kill if kill == signal.SIGKILL else 128 + kill)
    return train(folder, "experiment=arrow/plstm", "loop.log_every=1")


@pytest.fixture(scope="module")
def logged_each_step(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("each_step")
    train(folder, "experiment=arrow/plstm", "loop.log_every=1")
    return folder


@pytest.mark.parametrize(
    ("checkpoint", "kill"),
    [
        (4, signal.SIGKILL),
        (8, signal.SIGKILL),
        (12, signal.SIGKILL),
        (4, signal.SIGINT),
        (8, signal.SIGTERM),
    ],
)
@pytest.mark.slow  # tests/test_kills.py has some of these in the default tests, with a smaller model
def test_a_killed_run_resumes_to_the_same_numbers(logged_each_step, tmp_path, checkpoint, kill):
    output = kill_and_resume(tmp_path, checkpoint, kill)
    assert "resumed at step" in output
    assert run_folder(tmp_path).name == run_folder(logged_each_step).name
    ours, theirs = (without_speed(run_folder(f) / "metrics.jsonl") for f in (tmp_path, logged_each_step))
    assert ours == theirs
    assert last_lines(tmp_path) == last_lines(logged_each_step)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    process = start(tmp_path, "experiment=arrow/vit", "optim.peak_lr=1e30", "optim.warmup_epochs=0", "loop.log_every=1")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "not finite" in output
    assert "step " in output
    assert not (tmp_path / "results").exists()


def test_streaming_trains_to_the_same_numbers_as_the_device(finished, tmp_path):
    train(tmp_path, "experiment=arrow/plstm", "data.placement=stream")
    assert run_folder(tmp_path).name == run_folder(finished).name
    assert last_lines(tmp_path) == last_lines(finished)


@pytest.mark.slow
def test_verify_evaluates_a_run_again_and_sees_a_changed_digit(finished):
    record = read_records(finished / "results")[0]
    problems, line = rerun_problems(record, run_folder(finished))
    assert not problems and line.endswith("evaluated again (last and best checkpoint): the same digits")
    record.metrics["last"]["test"]["loss"] += 1e-9
    (problem,) = rerun_problems(record, run_folder(finished))[0]
    assert "last checkpoint: test loss" in problem
    assert not record_problems(read_records(finished / "results")[0], finished / "results")


@pytest.mark.slow
def test_sweeps_make_one_run_a_setting(tmp_path):
    process = start(tmp_path, "-m", "experiment=arrow/vit,arrow/plstm", "seed=1,2", "optim.epochs=1")
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    found = {(record.experiment, record.seed) for record in read_records(tmp_path / "results")}
    assert found == {(f"arrow/{model}", seed) for model in ("vit", "plstm") for seed in (1, 2)}


@pytest.mark.slow
def test_seeds_change_the_numbers_and_the_same_seed_does_not(finished, tmp_path):
    train(tmp_path / "same", "experiment=arrow/plstm")
    train(tmp_path / "other", "experiment=arrow/plstm", "seed=44")
    assert last_lines(tmp_path / "same") == last_lines(finished)
    assert last_lines(tmp_path / "other") != last_lines(finished)


def test_wandb_gets_the_run_offline_and_nothing_gets_a_secret(tmp_path):
    secrets = {
        name: f"{name.lower()}-is-not-to-be-seen-{number}"
        for number, name in enumerate(
            ["WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "GITHUB_TOKEN", "PLSTM_PLANTED"]
            + ["SLURM_PLANTED", "JAX_PLANTED", "XLA_PLANTED", "HYDRA_PLANTED", "DATABASE_URL", "my_password"]
        )
    }
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    netrc = tmp_path.parent / f"{tmp_path.name}-netrc"
    netrc.write_text("machine api.wandb.ai login me password netrc-is-not-to-be-seen\n")
    data = os.environ.get("PLSTM_DATA") or str(Path("~/.cache/plstm/data").expanduser())
    environment |= {"NETRC": str(netrc), "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")} | secrets
    command = [sys.executable, str(ROOT / "train.py"), *TINY, "experiment=arrow/vit", "optim.epochs=1"]
    command += ["logger.mode=offline", f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
    command += [f"data.root={data}"] if Path(data).is_dir() else []
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "wandb sync" in ended.stderr
    run = run_folder(tmp_path)
    (folder,) = (run / "wandb").glob("offline-run-*")
    assert folder.name.endswith(run.name)
    assert (folder / f"run-{run.name}.wandb").stat().st_size > 1000
    written = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written |= {"stdout": ended.stdout.encode(), "stderr": ended.stderr.encode()}
    assert len(written) > 20 and any(run.name.encode() in content for content in written.values())
    for name, content in written.items():
        assert b"is-not-to-be-seen" not in content and b"PLANTED" not in content, name
