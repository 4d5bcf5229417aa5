"""A run ended at any moment and started again by the same command ends as one that nobody disturbed.

One moment in the default tests; at least sixty, most of them at random, in the slow one, which prints its count.
"""

import random
import signal
import time
from collections import Counter

import pytest

from tests import commands
from tests.commands import SMALLEST, assert_same, paths, run_folder, steps_of
from tests.fork_server import EVENTS, wait_for

KILLS = 60  # of the slow test
EXACT = [{"event": event, "count": {"line": 7, "evaluate": 2}.get(event, 1)} for event in EVENTS]
# Of every phase of a run, and within it at any time: event, its highest count, most seconds after it.
RANDOM = [("start", 1, 6.0), ("build", 1, 3.0), ("loop", 1, 1.5), ("loop", 1, 1.5), ("evaluate", 5, 0.02)]
RANDOM += [("save", 5, 0.1), ("save", 5, 0.1), ("checksums", 4, 0.01), ("complete", 4, 0.01)]
RANDOM += [("finish", 1, 1.5), ("draw", 1, 1.0), ("tracker", 1, 0.1)]


def random_plan(chance: random.Random) -> dict:
    event, most, seconds = chance.choice(RANDOM)
    return {"event": event, "count": chance.randint(1, most), "delay": chance.uniform(0, seconds)}


@pytest.mark.slow
def test_the_checks_of_this_file_see_a_difference(undisturbed, start, tmp_path):
    status, _ = start(tmp_path, None, "seed=44")
    assert status == 0
    for check in (commands.numbers, commands.saved_run, commands.logged):
        assert check(tmp_path) != check(undisturbed), check.__name__
    assert commands.state_of(run_folder(tmp_path)) != commands.state_of(run_folder(undisturbed))
    assert [row["_step"] for row in commands.logged(undisturbed)] == list(range(1, 25))


@pytest.mark.parametrize(
    "plan",
    [
        {"event": "checksums", "count": 2},  # in the midst of writing the second checkpoint
        pytest.param({"event": "half"}, marks=pytest.mark.slow),  # the record is written, but not renamed
    ],
    ids=lambda plan: plan["event"],
)
def test_a_killed_run_ends_as_if_undisturbed(undisturbed, start, tmp_path, plan):
    status, output = start(tmp_path, plan)
    assert status == -signal.SIGKILL, output
    assert not list((tmp_path / "results").glob("runs/*.jsonl"))
    written = {path: path.stat().st_mtime_ns for path in (run_folder(tmp_path) / ".hydra").iterdir()}
    status, output = start(tmp_path)
    assert status == 0 and "resumed at step" in output, output
    assert len(written) == 2 and all(path.stat().st_mtime_ns == then for path, then in written.items())
    assert_same(tmp_path, undisturbed)


@pytest.mark.slow
def test_sixty_kills(undisturbed, start, tmp_path):
    """Runs are killed again and again until they end; each ends as if undisturbed."""
    chance = random.Random(11)
    plans = [*EXACT, *(random_plan(chance) for _ in range(2 * KILLS))]
    kills, runs, resumed = Counter(), 0, 0
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
    print(f"{sum(kills.values())} kills in {runs} runs, {resumed} of which resumed from a checkpoint: {dict(kills)}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "event", "count"),
    [
        (signal.SIGTERM, "evaluate", 2),
        (signal.SIGINT, "evaluate", 6),  # the last one, over all splits
        (signal.SIGINT, "save", 2),
        (signal.SIGHUP, "evaluate", 3),
        (signal.SIGTERM, "build", 1),
        (signal.SIGINT, "draw", 1),
        (signal.SIGTERM, "tracker", 1),
    ],
)
def test_a_signal_is_answered_in_time(undisturbed, fork_server, start, tmp_path, number, event, count):
    output = tmp_path / "output"
    plan = {"event": event, "count": count, "signal": int(number)}
    fork_server.start([*SMALLEST, *paths(tmp_path)], output, plan)
    wait_for(lambda: output.exists() and f"<{event}>" in output.read_text())
    since = time.monotonic()
    status = fork_server.wait()
    assert time.monotonic() - since < 30
    assert status == 128 + number, output.read_text()
    (said,) = [line for line in output.read_text().splitlines() if line.startswith("stopped by signal")]
    nothing_yet = event == "build"
    assert said.startswith(f"stopped by signal {int(number)}")
    assert said.endswith("nothing to save yet" if nothing_yet else "saved; the same command resumes the run")
    assert not list((tmp_path / "results").glob("runs/*.jsonl"))
    if event == "evaluate":
        assert min(4 * count, 24) in steps_of(run_folder(tmp_path) / "checkpoints"), "saved during the evaluation"
    status, text = start(tmp_path)
    assert status == 0 and ("resumed at step" in text) is not nothing_yet
    assert_same(tmp_path, undisturbed)
