"""Starts the project's programs as a user does, and reads what they leave."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from plstm.errors import run_script
from plstm.studies.records import Record, read_records
from tests.wandb_files import has_ended, history

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for part in ("", "plstm/**/", "data/**/", "scripts/**/") for path in ROOT.glob(f"{part}*.py"))
# An arrow/vit of the smallest form: six evaluations and checkpoints in 24 steps.
SMALLEST = ["debug=smoke", "experiment=arrow/vit", "model.dim=16", "model.heads=2", "model.depth=1", "optim.epochs=3"]
SMALLEST += ["loop.eval_splits=[val]", "loop.eval_every=4", "loop.log_every=1", "logger.mode=offline"]
SMALLEST += ["loop.final_splits=[val,test]"]  # drawing the pictures of all four takes seconds
# What no two runs have in common, and what a commit made while the tests run changes.
TIMES = {"started", "finished", "wall_seconds", "examples_per_second", "commit", "dirty"}
SPEED = ("examples_per_second", "train/examples_per_second")  # as metrics.jsonl and as W&B name it


def paths(folder: Path) -> list[str]:
    """The overrides that keep a run and its results in a folder."""
    return [f"paths.runs={folder}/runs", f"paths.results={folder}/results"]


def begin(*arguments: object, environment: Mapping[str, str] | None = None, **options) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    environment = os.environ if environment is None else environment
    return subprocess.Popen([sys.executable, "-u", *map(str, arguments)], env=environment, **(pipes | options))


def end(process: subprocess.Popen, status: int = 0, seconds: float = 900) -> tuple[str, str]:
    """What it wrote to standard output and to standard error; checks its exit status."""
    output, errors = process.communicate(timeout=seconds)
    assert process.returncode == status, output + errors
    return output, errors


def call(*arguments: object, status: int = 0, **options) -> str:
    """Runs a program to its end; returns its standard output, or standard error where it is to fail."""
    return end(begin(*arguments, **options), status)[1 if status else 0]


class Ended(NamedTuple):
    """What a script left: its exit status, its standard output and its standard error."""

    status: int
    output: str
    errors: str


def call_here(main: Callable[[], int | None], *arguments: object) -> Ended:
    """Runs a script's `main` in this process, sparing the start of one."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch("sys.argv", ["script", *map(str, arguments)]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        run_script(main)
    return Ended(ended.value.code or 0, output.getvalue(), errors.getvalue())


def refused(main: Callable[[], int | None], *arguments: object) -> str:
    """The one line, without "error: ", by which a script's `main` refuses its arguments before it prints anything."""
    status, output, errors = call_here(main, *arguments)
    assert (status, output) == (2, "") and errors.startswith("error: ") and errors.count("\n") == 1, errors
    return errors.removeprefix("error: ").rstrip("\n")


def one_error(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in output
    return line


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_folder(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def steps_of(checkpoints: Path) -> list[int]:
    return sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())


def read_metrics(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl without what they say of time."""
    lines = read_metrics(run_folder(folder) / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in SPEED} for line in lines]


def record_of(folder: Path) -> Record:
    (record,) = read_records(folder / "results")
    return record


def saved_run(folder: Path) -> dict:
    """The line of the only record and its curve, without times."""
    (path,) = (folder / "results" / "runs").glob("*.jsonl")
    (line,) = map(json.loads, path.read_text().splitlines())
    record = line["record"]
    # A commit made while the tests run gives a run earlier sessions.
    record["earlier"] = [s for s in record["earlier"] if any(s[k] != record[k] for k in ("versions", "hardware"))]
    return line | {"record": {name: value for name, value in record.items() if name not in TIMES}}


def state_of(run: Path) -> dict[str, bytes]:
    """All arrays of the last checkpoint: parameters, optimizer, statistics, step."""
    last = run / "checkpoints" / str(steps_of(run / "checkpoints")[-1])
    leaves = jax.tree_util.tree_leaves_with_path(ocp.StandardCheckpointer().restore(last / "state"))
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


def logged(folder: Path) -> list[dict]:
    """W&B's history without what it measured of time, and without names of files."""
    kinds = ("_step", "train", "val", "test", "epoch")
    rows = [row.items() for row in history(run_folder(folder))]
    return [{name: value for name, value in row if name.split("/")[0] in kinds and name not in SPEED} for row in rows]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def assert_same_numbers(folder: Path, undisturbed: Path) -> None:
    """Bit for bit: the last checkpoint, metrics.jsonl."""
    assert state_of(run_folder(folder)) == state_of(run_folder(undisturbed))
    assert numbers(folder) == numbers(undisturbed)


def assert_same(folder: Path, undisturbed: Path) -> None:
    """Bit for bit, but for times: all that a run leaves."""
    assert_same_numbers(folder, undisturbed)
    assert saved_run(folder) == saved_run(undisturbed)
    assert has_ended(run_folder(folder)), "W&B does not know the end"
    assert files(folder / "results") == files(undisturbed / "results")
    kept, others = ({path.name for path in (run_folder(f) / "checkpoints").iterdir()} for f in (folder, undisturbed))
    assert kept == others, "the same checkpoints, nothing half written, none taken for damaged"


def biggest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def damages(path: Path) -> Iterator[str]:
    """Damages a file in several ways, one after another; at the end it is whole again."""
    whole = path.read_bytes()
    for place in (len(whole) // 3, len(whole) // 2, 0):
        flip(path, place)
        yield f"bit {place}"
        path.write_bytes(whole)
    for content in (whole[: len(whole) // 2], whole[: len(whole) // 2] + bytes(len(whole) // 2), b"", b"null"):
        path.write_bytes(content)
        yield f"{len(content)} bytes"
    path.unlink()
    yield "gone"
    path.write_bytes(whole)


def flip(path: Path, place: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)
