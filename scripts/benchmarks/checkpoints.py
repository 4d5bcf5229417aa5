"""What checksums cost: seconds of saving and restoring a checkpoint, against Orbax alone.

Saving continues in the background, beside the training; what is timed is until it is on disk.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging

from plstm.training.checkpoints import Checkpoints
from scripts.benchmarks.harness import Row, Subject, alternate, option, ratio, timing

TENSOR_BYTES = 8_000_000


def save(folder: Path, state: Any) -> None:
    """Our way, until it is on disk."""
    shutil.rmtree(folder, ignore_errors=True)
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, state, {}, 0.0)
    checkpoints.close()


def save_by_orbax(folder: Path, state: Any) -> None:
    """The yardstick."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state, force=True)


def restore_by_orbax(folder: Path, state: Any) -> Any:
    """The yardstick."""
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, state)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Saving and restoring a checkpoint with checksums, which restoring compares, against Orbax alone."""
    logging.set_verbosity(logging.ERROR)
    keys = jax.random.split(jax.random.key(0), -(-options.megabytes * 1_000_000 // TENSOR_BYTES))
    state = {f"tensor{n}": jax.random.normal(key, (TENSOR_BYTES // 4,), jnp.float32) for n, key in enumerate(keys)}
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "orbax").resolve()
        runs = {
            "save": partial(save, ours, state),
            "save_orbax": partial(save_by_orbax, theirs, state),
            "restore": lambda: Checkpoints(ours, read_only=True).restore(1, state)[0],
            "restore_orbax": partial(restore_by_orbax, theirs, state),
        }
        found = {name: timing(seconds) for name, seconds in alternate(runs, options.repeats).items()}
    ratios = ratio(found, "save", "save_orbax", "save_ratio") | ratio(
        found, "restore", "restore_orbax", "restore_ratio"
    )
    yield {"megabytes": len(keys) * TENSOR_BYTES / 1e6, **found, **ratios}


SIZE = option(1032, "of the state: a model of 86 M parameters")
WORK = option(None, "an existing folder to write in (default: the system's temporary one)", str)
SUBJECTS = {"checkpoints": Subject(measure, {"--megabytes": SIZE, "--work": WORK})}
