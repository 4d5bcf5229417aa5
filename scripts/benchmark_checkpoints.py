"""What checksums cost: seconds of saving and of checking a checkpoint of a given size, and of saving without them.

    python scripts/benchmark_checkpoints.py --megabytes 1032      # the training state of a model of 86 M parameters

Saving goes on in the background, beside the training; what is timed is until it is on disk.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
from absl import logging

from plstm.errors import run_script
from plstm.training import checkpoints
from plstm.training.environment import describe_environment
from scripts.measuring import ROOT, positive, write_results

TENSOR = 8_000_000  # bytes


def save(folder: Path, step: int, state: dict) -> float:
    kept = checkpoints.Checkpoints(folder)
    start = time.perf_counter()
    kept.save(step, state, {}, 0.0)
    kept.wait()
    seconds = time.perf_counter() - start
    kept.close()
    return seconds


def measure(folder: Path, state: dict) -> dict[str, float]:
    """Seconds of each part, of one checkpoint written with and one without checksums."""
    shutil.rmtree(folder, ignore_errors=True)
    with mock.patch.object(checkpoints, "_write_checksums", lambda folder: None):
        without = save(folder / "without", 1, state)
    found = {"save_without": without, "save": save(folder / "with", 1, state)}
    start = time.perf_counter()
    damage = checkpoints._damage(folder / "with" / "1")
    found["check"] = time.perf_counter() - start
    assert damage is None, damage
    kept = checkpoints.Checkpoints(folder / "with", read_only=True)
    with mock.patch.object(checkpoints, "_damage", lambda folder: None):
        start = time.perf_counter()
        jax.block_until_ready(kept.restore(1, state))
        found["restore_without"] = time.perf_counter() - start
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=positive, default=1032, help="of the state (default: %(default)s)")
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "checkpoints", help="emptied first and last")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks" / "checkpoints.json")
    arguments = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    count = -(-arguments.megabytes * 1_000_000 // TENSOR)
    keys = jax.random.split(jax.random.key(0), count)
    state = {f"tensor{n}": jax.random.normal(key, (TENSOR // 4,), jnp.float32) for n, key in enumerate(keys)}
    rounds = [measure(arguments.work, state) for _ in range(arguments.repeats)]
    shutil.rmtree(arguments.work)
    seconds = {name: round(statistics.median(row[name] for row in rounds), 3) for name in rounds[0]}
    report = {
        "command": shlex.join(["python", "scripts/benchmark_checkpoints.py", *sys.argv[1:]]),
        **describe_environment(ROOT),
        "megabytes": count * TENSOR / 1e6,
        "repeats": arguments.repeats,
        "median_seconds": seconds,
        "rounds": rounds,
    }
    write_results(arguments.out, report)
    print(f"{report['megabytes']:,.0f} MB: {seconds}")


if __name__ == "__main__":
    run_script(main)
