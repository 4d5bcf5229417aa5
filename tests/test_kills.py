"""A run ended at any moment and started again by the same command ends as one that nobody disturbed.

Three moments in the default tests; at least fifty, most of them at random, in the slow one, which prints its count.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from plstm.training.tracking import read_metrics
from tests.wandb_files import has_ended, history
from tests.zygote import Zygote, wait_for

TINY = ["debug=smoke", "experiment=arrow/vit", "model.dim=16", "model.heads=2", "model.depth=1", "optim.epochs=3"]
TINY += ["loop.eval_splits=[val]", "loop.eval_every=4", "loop.log_every=1", "logger.mode=offline"]
TINY += ["loop.final_splits=[val,test]"]  # drawing the pictures of all four takes seconds
# What no two runs have in common, and what a commit made while the tests run changes.
TIMES = {"started", "finished", "wall_seconds", "images_per_second", "commit", "dirty"}
KILLS = 60  # of the slow test


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    zygote = Zygote({"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})  # all but the first start compile nothing
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def start(zygote):
    """Function of (folder, plan, overrides): runs TINY there to its end; returns exit status and output."""

    def start(folder: Path, plan: dict | None = None, *overrides: str) -> tuple[int, str]:
        folder.mkdir(exist_ok=True)
        paths = [f"paths.runs={folder}/runs", f"paths.results={folder}/results"]
        return zygote.run([*TINY, *overrides, *paths], folder / "output", plan)

    return start


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    status, output = start(folder)
    assert status == 0, output
    return folder


def run_folder(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def state_of(folder: Path) -> list:
    """All arrays of the last checkpoint: parameters, optimizer, step."""
    last = max((path for path in (run_folder(folder) / "checkpoints").iterdir()), key=lambda path: int(path.name))
    state = ocp.StandardCheckpointer().restore(last / "state")
    return [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]


def without(fields: dict, *names: str) -> dict:
    return {name: value for name, value in fields.items() if name not in names}


def record_of(folder: Path) -> dict:
    (path,) = (folder / "results" / "runs").glob("*.json")
    return without(json.loads(path.read_text()), *TIMES)


def numbers(folder: Path) -> list[dict]:
    return [without(line, "images_per_second") for line in read_metrics(run_folder(folder) / "metrics.jsonl")]


def logged(folder: Path) -> list[dict]:
    """W&B's history without what it measured of time, and without names of files."""
    rows = history(run_folder(folder))
    return [
        {key: value for key, value in row.items() if key.split("/")[0] in ("_step", "train", "val", "test", "epoch")}
        for row in ([without(row, "train/images_per_second") for row in rows])
    ]


def assert_same(folder: Path, undisturbed: Path) -> None:
    """Bit for bit, but for times."""
    for (name, found), (_, expected) in zip(state_of(folder), state_of(undisturbed), strict=True):
        assert found.tobytes() == expected.tobytes(), name
    assert numbers(folder) == numbers(undisturbed)
    assert record_of(folder) == record_of(undisturbed)
    (curve,), (other) = (folder / "results" / "curves").iterdir(), next((undisturbed / "results" / "curves").iterdir())
    assert curve.read_bytes() == other.read_bytes()
    assert logged(folder) == logged(undisturbed)
    assert has_ended(run_folder(folder)), "W&B was not told the end"
    assert files(folder / "results") == files(undisturbed / "results")
    kept, others = ({path.name for path in (run_folder(f) / "checkpoints").iterdir()} for f in (folder, undisturbed))
    assert kept == others, "the same checkpoints, nothing half written, none taken for damaged"


@pytest.mark.slow
def test_the_checks_of_this_file_see_a_difference(undisturbed, start, tmp_path):
    status, _ = start(tmp_path, None, "optim.peak_lr=2e-4")
    assert status == 0
    for check in (state_of, numbers, record_of, logged):
        assert str(check(tmp_path)) != str(check(undisturbed)), check.__name__
    assert [row["_step"] for row in logged(undisturbed)] == list(range(1, 25))


@pytest.mark.parametrize(
    "plan",
    [
        {"event": "sums", "count": 2},  # in the midst of writing the second checkpoint
        {"event": "evaluate", "count": 3, "delay": 0.003},
        {"event": "file", "count": 2},  # the curve is there, the record is not
    ],
    ids=lambda plan: plan["event"],
)
def test_a_killed_run_ends_as_if_undisturbed(undisturbed, start, tmp_path, plan):
    status, output = start(tmp_path, plan)
    assert status == -signal.SIGKILL, output
    assert not list((tmp_path / "results").glob("runs/*.json"))
    status, output = start(tmp_path)
    assert status == 0 and "resumed at step" in output, output
    assert_same(tmp_path, undisturbed)


def random_plan(chance: random.Random) -> dict:
    """Of every phase of a run, and within it at any time."""
    event, most, seconds = chance.choice(
        [
            ("start", 1, 6.0),
            ("build", 1, 3.0),
            ("loop", 1, 1.5),
            ("loop", 1, 1.5),
            ("evaluate", 5, 0.02),
            ("save", 5, 0.1),
            ("save", 5, 0.1),
            ("sums", 4, 0.01),
            ("complete", 4, 0.01),
            ("finish", 1, 1.5),
            ("draw", 1, 1.0),
            ("tracker", 1, 0.1),
        ]
    )
    return {"event": event, "count": chance.randint(1, most), "delay": chance.uniform(0, seconds)}


EXACT = [  # moments too short to be met by chance
    {"event": "start"},
    {"event": "build"},
    {"event": "save"},
    {"event": "sums"},
    {"event": "complete"},
    {"event": "line", "count": 7},
    {"event": "evaluate", "count": 2},
    {"event": "finish"},
    {"event": "draw"},
    {"event": "tracker"},
    {"event": "file"},
    {"event": "half"},
    {"event": "written"},
    {"event": "half", "count": 2},
    {"event": "file", "count": 2},
]


@pytest.mark.slow
def test_sixty_kills(undisturbed, start, tmp_path):
    """Runs are killed again and again until they end; each ends as if undisturbed."""
    chance = random.Random(11)
    plans = [*EXACT, *(random_plan(chance) for _ in range(2 * KILLS))]
    kills, runs, resumed, chain = Counter(), 0, 0, []
    while sum(kills.values()) < KILLS:
        folder = tmp_path / str(runs)
        status, chain = None, []
        for _ in range(chance.randint(1, 6)):
            plan = plans.pop(0)
            status, output = start(folder, plan)
            assert status in (0, -signal.SIGKILL), output
            assert "damaged" not in output
            if status == 0:  # the run had ended before the event
                break
            chain.append(plan)
            kills[plan["event"]] += 1
        if status != 0:
            status, output = start(folder)
            resumed += "resumed at step" in output
        assert status == 0, (chain, output)
        assert_same(folder, undisturbed)
        runs += 1
    line = f"{sum(kills.values())} kills in {runs} runs, {resumed} of which went on from a checkpoint: {dict(kills)}"
    print(line)
    if "PLSTM_KILLS_LOG" in os.environ:
        Path(os.environ["PLSTM_KILLS_LOG"]).write_text(line + "\n")


@pytest.mark.parametrize(
    ("number", "event", "count"),
    [
        (signal.SIGTERM, "evaluate", 2),
        pytest.param(signal.SIGINT, "evaluate", 6, marks=pytest.mark.slow),  # the last one, over all splits
        pytest.param(signal.SIGINT, "save", 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "build", 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "draw", 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "tracker", 1, marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_answered_in_time(undisturbed, zygote, start, tmp_path, number, event, count):
    paths = [f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
    output = tmp_path / "output"
    zygote.start([*TINY, *paths], output, {"event": event, "count": count, "signal": int(number)})
    wait_for(lambda: output.exists() and f"<{event}>" in output.read_text())
    since = time.monotonic()
    status = zygote.wait()
    assert time.monotonic() - since < 30
    assert status == 128 + number, output.read_text()
    (said,) = [line for line in output.read_text().splitlines() if line.startswith("stopped by signal")]
    nothing_yet = event == "build"
    assert said.startswith(f"stopped by signal {int(number)}")
    assert said.endswith("nothing to save yet" if nothing_yet else "saved; the same command goes on")
    assert not list((tmp_path / "results").glob("runs/*.json"))
    if event == "evaluate":
        steps = {int(path.name) for path in (run_folder(tmp_path) / "checkpoints").iterdir() if path.name.isdigit()}
        assert min(4 * count, 24) in steps, "saved in the midst of the evaluation"
    status, text = start(tmp_path)
    assert status == 0 and ("resumed at step" in text) is not nothing_yet
    assert_same(tmp_path, undisturbed)


@pytest.mark.slow
def test_of_two_starts_at_once_the_second_refuses(undisturbed, zygote, start, tmp_path):
    other = Zygote({"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})
    paths = [f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
    plan = {"event": "evaluate", "signal": int(signal.SIGSTOP)}  # stands still in its first evaluation
    first = zygote.start([*TINY, *paths], tmp_path / "first", plan)
    try:
        wait_for(lambda: (tmp_path / "first").exists() and "<evaluate>" in (tmp_path / "first").read_text())
        before = read_metrics(run_folder(tmp_path) / "metrics.jsonl")
        status, output = other.run([*TINY, *paths], tmp_path / "second")
        assert status == 2
        told = f"error: {run_folder(tmp_path)}: this run is being trained by another process; wait for it or stop it"
        assert output.splitlines() == [told]
        assert read_metrics(run_folder(tmp_path) / "metrics.jsonl") == before
    finally:
        os.kill(first, signal.SIGCONT)
        other.close()
    assert zygote.wait() == 0
    assert_same(tmp_path, undisturbed)
