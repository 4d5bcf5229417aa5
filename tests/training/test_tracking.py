"""Metrics files, and the real W&B client: offline and unreachable."""

import json
import math
import os
import shlex
import socket
import textwrap
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from plstm.errors import UserError
from plstm.training import tracking
from plstm.training.tracking import MetricsWriter, Tracker, long_name
from tests.commands import begin, end, read_metrics
from tests.wandb_files import has_ended, history
from tests.wandb_server import wandb_server

RUN = dict(id="0123abcd", name="arrow-plstm-s43", group="arrow", job_type="train", tags=["small"], project="plstm")


def lines_until(step: int) -> list[dict]:
    writer = MetricsWriter(Path(os.devnull), [], enabled=False)
    for number in range(1, step + 1):
        writer.write(number, number / 390.5, "train", {"loss": 1 / number, "norm": np.float32(0.5), "gate": math.nan})
    return writer.lines


def test_the_file_has_every_line_and_null_for_what_is_not_finite(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl", [])
    assert not list(tmp_path.iterdir()), "nothing was written yet"
    for line in lines_until(3):
        writer.write(*(line[name] for name in ("step", "epoch", "split")), {"loss": line["loss"], "mark": math.inf})
    assert read_metrics(writer.path) == writer.lines
    assert writer.lines[1] == {"step": 2, "epoch": 2 / 390.5, "split": "train", "loss": 0.5, "mark": None}


DAMAGES = {
    "nothing": lambda whole, kept: whole,
    "half a line more": lambda whole, kept: whole + b'{"step": 9, "epo',
    "NULs after the checkpoint": lambda whole, kept: kept + bytes(500),
    "nothing after the checkpoint": lambda whole, kept: kept,
    "no UTF-8": lambda whole, kept: whole[:50] + b"\xff" + whole[51:],
    "a digit": lambda whole, kept: whole.replace(b'"loss": 0.5', b'"loss": 0.4'),
    "another key": lambda whole, kept: whole.replace(b'"epoch"', b'"epocg"', 1),
    "cut in half": lambda whole, kept: whole[: len(kept) // 2],
    "without a line": lambda whole, kept: b"".join(whole.splitlines(True)[1:]),
    "a line twice": lambda whole, kept: whole.splitlines(True)[0] + whole,
    "ends in NULs": lambda whole, kept: kept[:-60] + bytes(60),
    "empty": lambda whole, kept: b"",
    "missing": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_happened_to_the_file_a_resumed_run_has_the_lines_of_its_checkpoint(tmp_path, capsys, damage):
    path = tmp_path / "metrics.jsonl"
    whole, kept = (
        "".join(json.dumps(line) + "\n" for line in lines).encode() for lines in (lines_until(5), lines_until(3))
    )
    if DAMAGES[damage]:
        path.write_bytes(DAMAGES[damage](whole, kept))
    resumed = MetricsWriter(path, lines_until(3))
    assert path.read_bytes() == kept
    is_whole = list(DAMAGES).index(damage) < 4
    assert capsys.readouterr().out == ("" if is_whole else f"{path}: was damaged; restored from the checkpoint\n")
    for line in lines_until(5)[3:]:
        values = {name: math.nan if line[name] is None else line[name] for name in ("loss", "norm", "gate")}
        resumed.write(line["step"], line["epoch"], "train", values)
    assert path.read_bytes() == whole and resumed.lines == lines_until(5)
    assert [other.name for other in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_full_disk_names_the_path(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"metrics\.jsonl: No space left on device; free space"):
        MetricsWriter(path, []).write(1, 0.1, "train", {"loss": 1.0})


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
    assert errors == f"W&B: offline; to upload: wandb sync '{folder}/wandb'\n"
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


@pytest.mark.slow
def test_the_offered_command_uploads_a_run_and_its_later_parts_and_one_of_a_sweep(tmp_path):
    script = """
        import sys
        tracker = start("offline")
        step = int(sys.argv[1])
        tracker.log({"step": step, "epoch": 0.5 * step, "split": "train", "loss": 0.25 * step})
        tracker.image("gating", folder + "/gating.png", step)
        tracker.summary({"last": step})
        tracker.finish()
    """
    said = {}
    for step, environment in ((1, {}), (2, {}), (3, {"WANDB_SWEEP_ID": "abcd1234"})):
        place = tmp_path / ("of a sweep" if environment else "alone")
        place.mkdir(exist_ok=True)
        Image.new("L", (8, 8), 200).save(place / "gating.png")
        said[run_script(place, script, str(step), **environment)[1]] = environment
    with wandb_server() as server:
        login = {"WANDB_BASE_URL": server.address, "WANDB_API_KEY": "0" * 40}
        folders = [word for line in said for word in shlex.split(line.partition("to upload: wandb sync ")[2])]
        end(begin("-m", "wandb", "sync", *folders, environment=os.environ | login))
    assert len(said) == 2, "both parts of the first run offer the same"
    run = server.runs.pop(RUN["id"])
    about = {key: run.about[key] for key in ("displayName", "groupName", "jobType", "tags", "project")}
    assert about == {
        "displayName": RUN["name"],
        "groupName": "arrow",
        "jobType": "train",
        "tags": ["small"],
        "project": "plstm",
    }
    assert run.config["optim"] == {"peak_lr": 0.00123}
    assert [(row["step"], row["train/loss"]) for row in run.history.values()] == [(1, 0.25), (2, 0.5)]
    assert all(row["gating"]["path"] in server.uploads for row in run.history.values())
    assert run.summary["last"] == 2
    (swept,) = server.runs.values()  # under an id of W&B's
    assert swept.about["sweep"] == "abcd1234" and [row["step"] for row in swept.history.values()] == [3]


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
    assert line.startswith("W&B: could not start (CommError: ") and line.endswith("; the program continues")


def test_runs_of_a_sweep_have_names_of_their_own():
    typed = ["experiment=arrow/plstm", "variant=d_mode", "++seed=43", "+optim.peak_lr=0.001", "model.modes=[P,D]"]
    assert long_name("arrow-plstm-s43", typed) == "arrow-plstm-s43 peak_lr=0.001 modes=[P,D]"
    assert len(long_name("a", ["optim.peak_lr=0.001"] * 30)) == 128


def test_first_failure_is_said_once_and_ends_the_calls(tmp_path, monkeypatch, capsys):
    run = Mock(**{"log.side_effect": RuntimeError("first line\nsecond line")})
    monkeypatch.setattr(tracking, "_start_client", lambda mode, **_: run)
    tracker = Tracker("offline", dir=tmp_path, **RUN)
    for step in range(3):
        tracker.log({"step": step, "epoch": step / 4, "split": "train", "loss": 1.0})
    tracker.summary({"best_accuracy": 0.5})
    tracker.finish()
    assert [name for name, *_ in run.method_calls] == ["log"]
    assert capsys.readouterr().err == "W&B: could not log (RuntimeError: first line); the program continues\n"


@pytest.mark.parametrize(("mode", "counted"), [("online", {}), ("offline", {"step": 24})])
def test_online_no_row_is_logged_at_a_step_that_the_server_may_have_had(tmp_path, monkeypatch, mode, counted):
    run = Mock()
    monkeypatch.setattr(tracking, "_start_client", lambda mode, **_: run)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    Tracker(mode, dir=tmp_path, **RUN).log({"step": 24, "epoch": 2.0, "split": "val", "loss": 1.0})
    run.log.assert_called_once_with({"val/loss": 1.0, "epoch": 2.0, "step": 24}, **counted)


@pytest.mark.parametrize(
    ("mode", "environment", "netrc", "started"),  # "settings": what `wandb login --host` writes
    [
        ("auto", {}, "", "offline"),
        ("auto", {}, "machine api.wandb.ai login user password 0\n", "online"),
        ("auto", {}, "machine example.org login user password 0\n", "offline"),
        ("auto", {"WANDB_API_KEY": "0"}, "", "online"),
        ("auto", {"WANDB_API_KEY": "0", "WANDB_MODE": "offline"}, "", "offline"),
        ("auto", {"WANDB_BASE_URL": "https://example.org"}, "machine example.org login user password 0\n", "online"),
        ("auto", {"settings": "[default]\nbase_url = https://own.org\n"}, "machine own.org password 0\n", "online"),
        ("auto", {"settings": "no settings"}, "machine api.wandb.ai password 0\n", "online"),
        ("online", {"WANDB_API_KEY": "0", "WANDB_MODE": "offline"}, "", "online"),
        ("offline", {"WANDB_API_KEY": "0"}, "", "offline"),
        ("disabled", {"WANDB_API_KEY": "0"}, "", None),
        ("auto", {"WANDB_MODE": "disabled"}, "", None),
    ],
)
def test_mode_follows_the_login_unless_it_is_given(tmp_path, monkeypatch, mode, environment, netrc, started):
    (tmp_path / "netrc").write_text(netrc)
    (tmp_path / "settings").write_text(environment.get("settings", ""))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in environment.keys() - {"settings"}:
        monkeypatch.setenv(name, environment[name])
    modes = []
    monkeypatch.setattr(tracking, "_start_client", lambda mode, **_: modes.append(mode))
    Tracker(mode, dir=tmp_path, **RUN)
    assert modes == ([started] if started else [])
    with pytest.raises(UserError, match="'onlin': choose one of auto, online, offline, disabled"):
        Tracker("onlin", dir=tmp_path, **RUN)
