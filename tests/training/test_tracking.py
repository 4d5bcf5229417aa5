"""Metrics files, and the real W&B client: offline, resumed, unreachable and killed."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from plstm.errors import UserError
from plstm.training import tracking
from plstm.training.tracking import MetricsWriter, Tracker, read_metrics
from tests.wandb_files import has_ended, history

ROOT = Path(__file__).resolve().parents[2]
RUN = dict(run_id="0123abcd", name="arrow-plstm-s43", group="arrow", job_type="train", tags=["small"])


def test_written_metrics_are_read_back(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(100, 0.256, "train", {"loss": np.float32(0.5), "accuracy": 0.75})
    writer.write(200, 0.512, "val", {"loss": math.nan, "accuracy": math.inf})
    assert read_metrics(writer.path) == [
        {"step": 100, "epoch": 0.256, "split": "train", "loss": 0.5, "accuracy": 0.75},
        {"step": 200, "epoch": 0.512, "split": "val", "loss": None, "accuracy": None},
    ]


def test_resumed_metrics_equal_uninterrupted_ones(tmp_path):
    whole, resumed = MetricsWriter(tmp_path / "whole.jsonl"), MetricsWriter(tmp_path / "resumed.jsonl")
    for step in (100, 200, 300):
        whole.write(step, step / 390.5, "train", {"loss": 1 / step})
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
    for step in (100, 200):
        writer.write(step, step, "train", {"loss": 1.0})
        for split in ("train", "val"):
            writer.write(step, step, split, {"loss": 1.0, "count": 7})
        writer.write(step, step, "model", {"gate": 1.0})
    lines = writer.lines()
    writer.truncate_after(200, evaluated=100)  # saved by a signal before the evaluation of step 200
    assert writer.lines() == lines[:5]


def test_truncating_metrics_that_were_never_written_writes_none(tmp_path):
    MetricsWriter(tmp_path / "metrics.jsonl").truncate_after(100, evaluated=100)
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl: No space left on device; free space"):
        MetricsWriter(path).write(1, 0.1, "train", {"loss": 1.0})


def run_script(folder: Path, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs `script` as a process of its own; it finds `folder` and the arguments of a run, `RUN`, defined."""
    lines = [
        "from plstm.training import tracking",
        "from plstm.training.tracking import Tracker",
        f"folder, RUN = {str(folder)!r}, {RUN!r}",
        textwrap.dedent(script),
    ]
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines), *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """A run tracked offline in two parts, as after an interruption, with secrets planted around it."""
    folder = tmp_path_factory.mktemp("runs of a user") / "0123abcd"
    folder.mkdir()
    Image.new("L", (8, 8), 200).save(folder / "gating.png")
    script = """
        import time
        lines = []
        for step in (1, 2):
            time.sleep(1.1 * (step - 1))  # the client names its folders by the second
            config = {"optim": {"peak_lr": 0.00123}}
            tracker = Tracker.start(**RUN, config=config, directory=folder, mode="auto", lines=lines)
            lines.append({"step": step, "epoch": 0.5 * step, "split": "train", "loss": 0.4375 + step, "count": 7})
            tracker.log(lines[-1])
            lines.append({"step": step, "epoch": 0.5 * step, "split": "val", "loss": None, "accuracy": 0.25})
            tracker.log(lines[-1])
            if step == 1:
                tracker.image("gating", folder + "/gating.png", step=step)
            tracker.summary({"best_accuracy": 0.8125})
            print("console line")
            tracker.finish()
    """
    secrets = {"PLANTED_TOKEN": "planted-environment", "WANDB_API_KEY": "planted-key-" + "0" * 40}
    return folder, run_script(folder, script, "--password=planted-argument", **secrets)


def test_offline_run_says_one_line_on_how_to_sync_each_time_it_starts(offline):
    folder, process = offline
    assert process.returncode == 0 and process.stdout == "console line\n" * 2
    said = f"W&B: offline; upload with: wandb sync '{folder}/wandb/offline-run-'*-0123abcd"
    assert process.stderr.splitlines() == [said] * 2
    pattern = said.split("sync ")[1]
    listed = subprocess.run(["bash", "-c", f"ls -d {pattern}"], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 1, "what is uploaded is one run, though it was started twice"
    assert len(list((folder / "wandb" / "earlier").iterdir())) == 1


def test_a_run_started_twice_has_one_history_with_each_step_once(offline):
    rows = history(offline[0])
    assert [row["_step"] for row in rows] == [1, 2]
    assert [row["train/loss"] for row in rows] == [1.4375, 2.4375]
    assert [row["val/accuracy"] for row in rows] == [0.25, 0.25]
    assert all(not {"val/loss", "train/count"} & row.keys() for row in rows), "nothing that is no number, no counts"
    assert has_ended(offline[0])


def test_offline_run_holds_what_was_logged_and_no_secret(offline):
    folder, _ = offline
    files = {path: path.read_bytes() for path in (folder / "wandb").rglob("*") if path.is_file()}
    for wanted in (b"0.00123", b"1.4375", b"2.4375", b"0.8125", b"arrow-plstm-s43", b"gating"):
        assert any(wanted in content for content in files.values()), wanted
    for path, content in files.items():
        for unwanted in (b"planted", b"PLANTED_TOKEN", b"console line", b"--password"):
            assert unwanted not in content, f"{unwanted} is in {path}"
    assert {path.suffix for path in files} == {".wandb", ".log", ".png"}, "no code, requirements or metadata"


@pytest.mark.parametrize("answer", ["refuses", pytest.param("never answers", marks=pytest.mark.slow)])
def test_without_a_server_the_run_continues_offline_and_nothing_is_held_up(tmp_path, answer):
    script = """
        import time
        tracking.INIT_TIMEOUT_SECONDS = 2
        start = time.monotonic()
        tracker = Tracker.start(**RUN, config={}, directory=folder, mode="online")
        tracker.log({"step": 1, "epoch": 0.5, "split": "train", "loss": 0.4375})
        print("training after", time.monotonic() - start < 1)
        tracker.finish()
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if answer == "never answers":
            server.listen()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = run_script(tmp_path, script, WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40)
    assert process.returncode == 0 and process.stdout == "training after True\n"
    first, second = process.stderr.splitlines()
    assert first.startswith("W&B: could not start online (CommError: ")
    assert first.endswith("; training continues")
    assert second.startswith("W&B: offline; upload with: wandb sync ")
    assert [row["train/loss"] for row in history(tmp_path)] == [0.4375]


def test_killed_client_ends_the_tracking_not_the_run(tmp_path):
    script = """
        import time, psutil
        tracker = Tracker.start(**RUN, config={}, directory=folder, mode="offline")
        tracker.log({"step": 0, "epoch": 0.0, "split": "train", "loss": 1.0})
        while tracker._waiting.qsize():
            time.sleep(0.1)
        for child in psutil.Process().children(recursive=True):
            child.kill()
        time.sleep(0.2)
        for step in range(1, 4):
            tracker.log({"step": step, "epoch": 0.5, "split": "train", "loss": 1.0})
        tracker.summary({"best_accuracy": 0.5})
        tracker.finish()
        print("trained")
    """
    process = run_script(tmp_path, script)
    assert process.returncode == 0 and process.stdout == "trained\n"
    lines = process.stderr.splitlines()
    assert len(lines) == 2 and lines[1].startswith("W&B: could not log (")


STALLED = """
    import signal, time, psutil
    tracking.MOST_WAITING = 100
    tracker = Tracker.start(**RUN, config={}, directory=folder, mode="offline")
    tracker.log({"step": 0, "epoch": 0.0, "split": "train", "loss": 1.0})
    while tracker._waiting.qsize():
        time.sleep(0.1)
    for child in psutil.Process().children(recursive=True):
        child.send_signal(signal.SIGSTOP)
    longest = 0.0
    for step in range(1, int(sys.argv[1])):
        start = time.monotonic()
        tracker.log({"step": step, "epoch": 0.5, "split": "train", "loss": 1.0} | {f"m{n}": n for n in range(50)})
        longest = max(longest, time.monotonic() - start)
    start = time.monotonic()
    tracker.finish(seconds=2)
    print("trained", longest < 1, time.monotonic() - start < 10)
"""


@pytest.mark.parametrize(
    ("steps", "said"),
    [("5", "no answer in 2 seconds"), pytest.param("5000", "no answer while ", marks=pytest.mark.slow)],
)
def test_a_client_that_stands_still_holds_nothing_up(tmp_path, steps, said):
    start = time.monotonic()
    process = run_script(tmp_path, "    import sys\n" + STALLED.lstrip("\n"), steps)
    assert process.returncode == 0 and process.stdout == "trained True True\n", process.stderr
    lines = process.stderr.splitlines()
    assert len(lines) == 2 and lines[1].startswith(f"W&B: {said}") and lines[1].endswith("; training continues")
    assert time.monotonic() - start < 60, "the end of the process does not wait for the client, either"


class Run:
    """A client's run that the server has up to the step before `step`."""

    def __init__(self, step=0, fails=False):
        self.step, self.fails, self.logged, self.calls = step, fails, [], 0

    def log(self, row, step):
        self.calls += 1
        if self.fails:
            raise RuntimeError("first line\nsecond line")
        self.logged.append((step, row["train/loss"]))

    def finish(self):
        pass


def line(step):
    return {"step": step, "epoch": step / 4, "split": "train", "loss": float(step)}


def test_first_failure_is_said_once_and_ends_the_calls(capsys):
    run = Run(fails=True)
    tracker = Tracker(lambda: run)
    for step in range(3):
        tracker.log(line(step))
    tracker.finish()
    assert run.calls == 1
    assert capsys.readouterr().err == "W&B: could not log (RuntimeError: first line); training continues\n"


@pytest.mark.parametrize(("on_the_server", "logged"), [(0, [1, 2, 3, 4]), (3, [3, 4]), (6, [4])])
def test_a_run_continued_online_gets_the_steps_that_it_has_not(tmp_path, monkeypatch, on_the_server, logged):
    run = Run(step=on_the_server)
    monkeypatch.setattr(tracking, "_start_client", lambda mode, **_: run)
    tracker = Tracker.start(**RUN, config={}, directory=tmp_path, mode="online", lines=map(line, (1, 2, 3)))
    tracker.log(line(4))  # the client itself drops what the server has
    tracker.finish()
    assert run.logged == [(step, float(step)) for step in logged]


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
    monkeypatch.setattr(tracking, "_start_client", lambda mode, **_: modes.append(mode) or Run())
    Tracker.start(**RUN, config={}, directory=tmp_path, mode=mode).finish()
    assert modes == ([started] if started else [])


def test_unknown_mode_names_the_choices(tmp_path):
    with pytest.raises(UserError, match="'onlin': choose one of auto, online, offline, disabled"):
        Tracker.start(**RUN, config={}, directory=tmp_path, mode="onlin")
