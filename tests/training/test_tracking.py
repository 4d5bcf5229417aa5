"""Metrics files, and the real W&B client: offline and unreachable."""

import math
import os
import socket
import subprocess
import textwrap
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from plstm.errors import UserError
from plstm.training import tracking
from plstm.training.tracking import MetricsWriter, Tracker, read_metrics
from tests.commands import begin, end
from tests.wandb_files import has_ended, history

RUN = dict(id="0123abcd", name="arrow-plstm-s43", group="arrow", job_type="train", tags=["small"])


def test_resumed_metrics_equal_uninterrupted_ones(tmp_path):
    whole, resumed = MetricsWriter(tmp_path / "whole.jsonl"), MetricsWriter(tmp_path / "resumed.jsonl")
    for step in (100, 200, 300):
        whole.write(step, step / 390.5, "train", {"loss": 1 / step})
    assert read_metrics(whole.path)[0] == {"step": 100, "epoch": 100 / 390.5, "split": "train", "loss": 0.01}
    for step in (100, 200):
        resumed.write(step, step / 390.5, "train", {"loss": 1 / step})
    with resumed.path.open("a") as file:
        file.write('{"step": 300, "epo')  # the process was killed while it wrote
    resumed.truncate_after(100, evaluated=100)
    for step in (200, 300):
        resumed.write(step, step / 390.5, "train", {"loss": 1 / step})
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"whole.jsonl", "resumed.jsonl"}


def test_evaluations_that_the_checkpoint_does_not_know_are_dropped(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.truncate_after(100, evaluated=100)
    assert not list(tmp_path.iterdir()), "nothing was written yet"
    for step in (100, 200):
        writer.write(step, step, "train", {"loss": 1.0})
        for split in ("train", "val"):
            writer.write(step, step, split, {"loss": 1.0, "count": 7})
        writer.write(step, step, "model", {"gate": math.nan, "mark": math.inf, "norm": np.float32(0.5)})
    lines = writer.lines()
    assert lines[-1] == {"step": 200, "epoch": 200, "split": "model", "gate": None, "mark": None, "norm": 0.5}
    writer.truncate_after(200, evaluated=100)  # saved by a signal before the evaluation of step 200
    assert writer.lines() == lines[:5]


def test_reading_leaves_out_a_torn_last_line_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    assert read_metrics(path) == [{"step": 1}]
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl line 2 "):
        read_metrics(path)
    with pytest.raises(UserError, match=r"none\.jsonl: No such file"):
        read_metrics(tmp_path / "none.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_full_disk_names_the_path(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"metrics\.jsonl: No space left on device; free space"):
        MetricsWriter(path).write(1, 0.1, "train", {"loss": 1.0})


def run_script(folder: Path, script: str, *arguments: str, **environment: str) -> tuple[str, str]:
    """What `script` writes, a process of its own with the function `start` of a mode, which makes a tracker."""
    lines = [
        "from plstm.training import tracking",
        f"folder, RUN = {str(folder)!r}, {RUN!r}",
        'start = lambda mode: tracking.Tracker(mode, dir=folder, config={"optim": {"peak_lr": 0.00123}}, **RUN)',
        textwrap.dedent(script),
    ]
    return end(begin("-c", "\n".join(lines), *arguments, environment=os.environ | environment))


def test_offline_run_holds_what_was_logged_and_no_secret(tmp_path):
    folder = tmp_path / "runs of a user" / "0123abcd"
    folder.mkdir(parents=True)
    Image.new("L", (8, 8), 200).save(folder / "gating.png")
    script = """
        tracker = start("auto")
        for step in (1, 2):
            line = {"step": step, "epoch": 0.5 * step}
            tracker.log(line | {"split": "train", "loss": 0.4375 + step, "count": 7})
            tracker.log(line | {"split": "val", "loss": None, "accuracy": 0.25})
        tracker.image("gating", folder + "/gating.png", step=step)
        tracker.summary({"best_accuracy": 0.8125})
        print("console line")
        tracker.finish()
    """
    secrets = {"PLANTED_TOKEN": "planted-environment", "WANDB_API_KEY": "planted-key-" + "0" * 40}
    output, errors = run_script(folder, script, "--password=planted-argument", **secrets)
    assert output == "console line\n"
    said = f"W&B: offline; upload with: wandb sync '{folder}/wandb/offline-run-'*-0123abcd"
    assert errors.splitlines() == [said]
    assert subprocess.run(["bash", "-c", f"ls -d {said.split('sync ')[1]}"], capture_output=True).returncode == 0
    rows = history(folder)
    assert [row["_step"] for row in rows] == [1, 2] and has_ended(folder)
    assert [row["train/loss"] for row in rows] == [1.4375, 2.4375]
    assert [row["val/accuracy"] for row in rows] == [0.25, 0.25]
    assert all(not {"val/loss", "train/count"} & row.keys() for row in rows), "nothing that is no number, no counts"
    files = {path: path.read_bytes() for path in (folder / "wandb").rglob("*") if path.is_file()}
    for wanted in (b"0.00123", b"1.4375", b"2.4375", b"0.8125", b"arrow-plstm-s43", b"gating"):
        assert any(wanted in content for content in files.values()), wanted
    for path, content in files.items():
        for unwanted in (b"planted", b"PLANTED_TOKEN", b"console line", b"--password"):
            assert unwanted not in content, f"{unwanted} is in {path}"
    assert {path.suffix for path in files} == {".wandb", ".log", ".png"}, "no code, requirements or metadata"


@pytest.mark.parametrize("listens", [False, True])
def test_without_an_answer_one_line_ends_the_tracking_not_the_run(tmp_path, listens):
    script = """
        tracking.INIT_TIMEOUT = 2
        tracker = start("online")
        tracker.log({"step": 1, "epoch": 0.5, "split": "train", "loss": 0.4375})
        tracker.finish()
        print("trained")
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:  # and never answers
            server.listen(64)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        output, errors = run_script(tmp_path, script, WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40)
    assert output == "trained\n"
    (line,) = errors.splitlines()
    assert line.startswith("W&B: could not start (CommError: ") and line.endswith("; training continues")


def test_first_failure_is_said_once_and_ends_the_calls(tmp_path, monkeypatch, capsys):
    run = Mock(**{"log.side_effect": RuntimeError("first line\nsecond line")})
    monkeypatch.setattr(tracking, "_start_client", lambda mode, **_: run)
    tracker = Tracker("offline", dir=tmp_path, **RUN)
    for step in range(3):
        tracker.log({"step": step, "epoch": step / 4, "split": "train", "loss": 1.0})
    tracker.summary({"best_accuracy": 0.5})
    tracker.finish()
    assert [name for name, *_ in run.method_calls] == ["log"]
    assert capsys.readouterr().err == "W&B: could not log (RuntimeError: first line); training continues\n"


@pytest.mark.parametrize(
    ("mode", "environment", "netrc", "started"),
    [
        ("auto", {}, "", "offline"),
        ("auto", {}, "machine api.wandb.ai login user password 0\n", "online"),
        ("auto", {}, "machine example.org login user password 0\n", "offline"),
        ("auto", {"WANDB_API_KEY": "0"}, "", "online"),
        ("auto", {"WANDB_API_KEY": "0", "WANDB_MODE": "offline"}, "", "offline"),
        ("auto", {"WANDB_BASE_URL": "https://example.org"}, "machine example.org login user password 0\n", "online"),
        ("online", {"WANDB_MODE": "offline"}, "", "online"),
        ("offline", {"WANDB_API_KEY": "0"}, "", "offline"),
        ("disabled", {"WANDB_API_KEY": "0"}, "", None),
        ("auto", {"WANDB_MODE": "disabled"}, "", None),
    ],
)
def test_mode_follows_the_login_unless_it_is_given(tmp_path, monkeypatch, mode, environment, netrc, started):
    (tmp_path / "netrc").write_text(netrc)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    modes = []
    monkeypatch.setattr(tracking, "_start_client", lambda mode, **_: modes.append(mode))
    Tracker(mode, dir=tmp_path, **RUN)
    assert modes == ([started] if started else [])
    with pytest.raises(UserError, match="'onlin': choose one of auto, online, offline, disabled"):
        Tracker("onlin", dir=tmp_path, **RUN)
