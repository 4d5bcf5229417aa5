"""What the data sets that TFDS prepares share: no needless output, and damaged examples that are named."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging

from plstm.errors import damage_named


@contextlib.contextmanager
def quiet_tfds() -> Iterator[contextlib.ExitStack]:
    """TFDS without notes on standard output, hints, and progress bars where no terminal shows them."""
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    with contextlib.ExitStack() as stack:
        stack.callback(logging.set_verbosity, logging.get_verbosity())
        logging.set_verbosity(logging.ERROR)
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        yield stack


class TfdsSource(Sequence):
    """The examples of a TFDS data source at `positions`, picklable; a damaged one raises ReadError with `remedy`."""

    def __init__(self, source: Sequence, positions: np.ndarray, folder: os.PathLike, remedy: str):
        self._source = source
        self._positions = positions
        self._folder = str(folder)
        self._remedy = remedy

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> dict[str, Any]:
        position = int(self._positions[index])
        with damage_named(f"{self._folder}: image {position}", self._remedy):
            return self._source[position]

    def part(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """The examples from start to stop - 1, read at once: three times as fast as one by one."""
        with damage_named(f"{self._folder}: an image from {start} to {stop - 1}", self._remedy):
            return self._source.__getitems__(self._positions[start:stop].tolist())
