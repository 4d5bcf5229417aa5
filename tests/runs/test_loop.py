"""The loop of train.py: when the host reads from the device, and what a run of several sessions says of them."""

from __future__ import annotations

import itertools
import shutil
import signal

import jax.numpy as jnp
import pytest

import train
from plstm.config import plain_config, run_id, to_config
from plstm.errors import ReadError
from plstm.results.records import commits_of, read_records
from plstm.training import memory
from plstm.training.interrupt import Interrupt
from train import Training


@pytest.fixture
def start(composed, tmp_path):
    """Function without arguments that starts, or resumes, a short run in this process."""
    folders = [f"data.root={tmp_path}", f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
    tiny = ["debug=smoke", "model=vit_small", "model.dim=16", "model.heads=2", "logger.mode=disabled"]
    loop = ["optim.epochs=4", "loop.log_every=5", "loop.eval_every=1000"]
    config = to_config(composed("experiment=demo/vit", *tiny, *loop, *folders))
    run = run_id(plain_config(config))

    def start() -> Training:
        training = Training(config, run, tmp_path / "runs" / run, [], None)
        training.show_banner()
        return training

    return start


def test_a_record_names_the_commits_and_machines_of_all_sessions(start, tmp_path, monkeypatch):
    environment = train.describe_environment(train.ROOT)
    first, second = ({**environment, "commit": digit * 40, "dirty": digit == "a"} for digit in "ab")
    seconds = 0.0
    for session in (first, second, second, None):
        monkeypatch.setattr(train, "describe_environment", lambda root, made=session or environment: made)
        training = start()
        assert training.wall_before == seconds
        with Interrupt() as interrupt:
            interrupt.signal_number = session and signal.SIGTERM  # as if one came during the first step
            assert training.run_loop(interrupt) == (signal.SIGTERM if session else None)
        if session is None:
            training.finish(training.whole_weights())
        training.checkpoints.close()
        assert training.info["wall_seconds"] > seconds
        seconds = training.info["wall_seconds"]
    (record,) = read_records(tmp_path / "results")
    assert record.earlier == [{"until": 1, **first}, {"until": 3, **second}]
    assert (record.commit, record.hardware) == (environment["commit"], environment["hardware"])
    assert {"aaaaaaa*", "bbbbbbb"} < set(commits_of([record]))


def test_the_host_reads_from_the_device_at_log_points_only(start, monkeypatch):
    training = start()

    array, reads = type(jnp.zeros(1)), []
    value = array._value  # what float(), int() and NumPy call for an array's numbers
    monkeypatch.setattr(array, "_value", property(lambda self: reads.append(training.step) or value.fget(self)))
    with Interrupt() as interrupt:
        training.run_loop(interrupt)
    training.checkpoints.close()
    training.tracker.finish(1)
    assert training.steps >= 12
    assert set(reads) == {*range(5, training.steps, 5), training.steps}


def test_where_batches_cannot_be_read_the_run_saves_before_it_ends(start, capsys):
    training = start()
    batches = training.source

    class Broken:
        def from_step(self, step):
            yield from itertools.islice(batches.from_step(step), 7 - step)
            raise ReadError("image 7 is gone")

    training.source = Broken()
    with Interrupt() as interrupt, pytest.raises(ReadError, match="image 7 is gone"):
        training.run_loop(interrupt)
    training.checkpoints.close()
    assert "saved at step 7; the same command goes on" in capsys.readouterr().out
    assert start().start == 7


def test_forgetting_programs_changes_no_digit(start, tmp_path, monkeypatch):
    few = tmp_path / "max_map_count"
    few.write_text("1")
    lines = []
    for limit in (memory.MOST_MAPPINGS, few):
        monkeypatch.setattr(memory, "MOST_MAPPINGS", limit)
        training = start()
        training.eval_every = 4
        with Interrupt() as interrupt:
            training.run_loop(interrupt)
        training.checkpoints.close()
        found = training.metrics.lines()
        lines.append([{name: line[name] for name in line if name != "images_per_second"} for line in found])
        shutil.rmtree(tmp_path / "runs")
    assert lines[0] == lines[1] and len(lines[0]) > 6
