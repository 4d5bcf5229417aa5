"""Whole runs as a user starts them: train, evaluate, stop, kill, resume. Real processes on tiny models."""

import json
import os
from pathlib import Path

import pytest

from plstm.runs.folders import lock_folder
from plstm.studies.records import read_curve, record_problems
from tests.commands import begin, call, end, one_error, paths, read_metrics, record_of, run_folder, steps_of
from tests.wandb_files import assert_complete, summary

TINY = ["debug=smoke", "model.dim=16", "model.heads=2", "optim.epochs=2", "loop.eval_splits=[val]", "loop.eval_every=4"]
PLSTM = [*TINY, "experiment=arrow/plstm"]


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train(folder, *PLSTM, "logger.mode=offline")
    return folder


def test_a_run_leaves_its_record_curve_and_pictures(finished):
    record, results = record_of(finished), finished / "results"
    assert (record.experiment, record.steps, record.epochs) == ("arrow/plstm", 16, 2)
    assert record.metrics["last"]["test_ext"]["count"] == 64
    assert record.config["model"]["dim"] == 16
    assert record.command.startswith("python train.py debug=smoke ")
    assert str(finished) not in str(record), "paths of this machine do not belong in a record"
    curve = read_curve(record, results)
    assert {point.split for point in curve} == {"train", "val", "val_ext", "test", "test_ext"}
    assert [point.step for point in curve if (point.split, point.metric) == ("val", "accuracy")] == [4, 8, 12, 16]
    lines = read_metrics(run_folder(finished) / "metrics.jsonl")
    assert any(key.startswith("gates/") for line in lines if line["split"] == "model" for key in line)
    assert {path.suffix for path in (run_folder(finished) / "figures").iterdir()} == {".png"}
    assert record_problems(record, results) == []


def test_wandb_gets_all_of_it_and_no_panel_has_the_name_of_a_run(finished):
    assert_complete(run_folder(finished), record_of(finished), pictures={"samples", "gating"})


def test_eval_prints_the_digits_of_the_end_of_training_and_of_the_best_step(finished):
    run = run_folder(finished)
    logged = summary(run)
    with lock_folder(run):
        output, errors = end(begin("eval.py", f"run={run.name[:6]}", *paths(finished)))
    assert errors.startswith(f"W&B: nothing is logged ({run}: another process trains or evaluates this run")
    assert summary(run) == logged, "a training would log into the same W&B run"
    _, *lines = output.splitlines()
    assert len(lines) == 4
    for line in lines:
        split, _, loss, _, accuracy, *_ = line.split()
        values = record_of(finished).metrics["last"][split]
        assert (loss, accuracy) == (f"{values['loss']:.6f}", f"{values['accuracy']:.6f}")
    best = record_of(finished).metrics["best"]
    arguments = [f"run={run}", "checkpoint=best", "data.split=val", "figures=true", *paths(finished)]
    header, line, *pictures = call("eval.py", *arguments).splitlines()
    assert pictures and all("-best-val-" in path and Path(path).is_file() for path in pictures)
    assert {Path(path).parent for path in pictures} == {run / "figures"}
    assert header.endswith(f"step {best['step']:,}")
    assert f"loss {best['val']['loss']:.6f}  accuracy {best['val']['accuracy']:.6f}" in line
    now = summary(run)
    assert (now["eval/val/accuracy"], now["eval/val/step"]) == (best["val"]["accuracy"], best["step"])
    kept = {key: value for key, value in logged.items() if key.startswith(("final/", "train/", "val/"))}
    assert kept.items() <= now.items(), "an upload of this part replaces the summary"


def test_probes_of_the_run_start_from_its_test_accuracy(finished):
    run = run_folder(finished).name[:6]
    call("scripts/probe_arrow.py", run, f"--runs={finished}/runs", "--count=64", f"--results={finished}/probed")
    (path,) = (finished / "probed/probes").iterdir()
    rows = json.loads(path.read_text())["rows"]
    assert [(row["canvas_pixels"], row["probe"]) for row in rows[::4]] == [(48, "as given"), (96, "as given")]
    for row, split in zip(rows[::4], ("test", "test_ext"), strict=True):  # which have 64 images in this run
        assert row["accuracy"] == pytest.approx(record_of(finished).metrics["last"][split]["accuracy"], abs=1e-5)
        assert row["images"] == 64


@pytest.mark.slow
def test_what_the_layers_carry_is_drawn_for_both_sizes(finished):
    run, out = run_folder(finished).name, finished / "flow.png"
    call("scripts/draw_flow.py", run, f"--runs={finished}/runs", "--count=1", f"--out={out}")
    assert out.stat().st_size > 10_000


def test_the_same_command_again_says_that_the_run_has_finished_and_changes_nothing(finished, train):
    written = [path for part in ("runs", "results") for path in (finished / part).rglob("*")]
    before = [path.stat().st_mtime_ns for path in written]
    assert "has finished; its record is" in train(finished, *PLSTM, "data.generate=false", "data.root=/nowhere")
    assert [path.stat().st_mtime_ns for path in written] == before


@pytest.mark.slow
def test_a_number_that_is_not_finite_stops_the_run_at_its_last_good_checkpoint(tmp_path):
    wild = ["experiment=arrow/vit", "optim.peak_lr=1e30", "optim.warmup_epochs=1", "loop.eval_every=1"]  # from 0 on
    for _ in range(2):
        line = one_error(call("train.py", *TINY, *wild, *paths(tmp_path), status=2))
        checkpoints = run_folder(tmp_path) / "checkpoints"
        told = f"error: step 2: parameter_norm is not finite; the checkpoint of step 1 is good ({checkpoints})"
        assert line.startswith(told) and steps_of(checkpoints) == [1] and not (tmp_path / "results").exists()


@pytest.mark.slow
def test_wandb_gets_the_run_offline_and_nothing_gets_a_secret(tmp_path):
    names = ["WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "GITHUB_TOKEN", "PLSTM_PLANTED"]
    names += ["SLURM_PLANTED", "JAX_PLANTED", "XLA_PLANTED", "HYDRA_PLANTED", "DATABASE_URL", "my_password"]
    secrets = {name: f"{name.lower()}-is-not-to-be-seen-{number}" for number, name in enumerate(names)}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    netrc = tmp_path.parent / f"{tmp_path.name}-netrc"
    netrc.write_text("machine api.wandb.ai login me password netrc-is-not-to-be-seen\n")
    data = os.environ.get("PLSTM_DATA") or str(Path("~/.cache/plstm/data").expanduser())
    environment |= {"NETRC": str(netrc), "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")} | secrets
    command = ["train.py", *TINY, "experiment=arrow/vit", "optim.epochs=1", "logger.mode=offline", *paths(tmp_path)]
    command += [f"data.root={data}"] if Path(data).is_dir() else []
    output, errors = end(begin(*command, environment=environment))
    run = run_folder(tmp_path)
    assert list(run.glob(f"wandb/offline-run-*/run-{run.name}.wandb"))
    written = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written |= {"what it printed": (output + errors).encode()}
    assert len(written) > 20 and any(run.name.encode() in content for content in written.values())
    for name, content in written.items():
        assert b"is-not-to-be-seen" not in content and b"PLANTED" not in content, name
