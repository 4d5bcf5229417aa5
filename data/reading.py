"""grain's reading processes: how they start and how they end, and what becomes of their failures."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plstm.errors import ReadError

if TYPE_CHECKING:
    import grain

SECONDS_TO_SAVE = 60


def read(dataset: grain.MapDataset, workers: int, threads: int) -> Iterator[Any]:
    """The elements of a dataset in order, made ahead in `workers` processes or, without them, `threads` of this one.

    Raises ReadError where a process ends before the time; what is raised in one is raised here.
    """
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # grain's workers ask for flags, which programs of Hydra never parse
        flags.FLAGS.mark_as_parsed()
    ahead = 0 if workers else threads
    elements = dataset.to_iter_dataset(grain.ReadOptions(num_threads=ahead, prefetch_buffer_size=ahead))
    if workers:
        elements = elements.mp_prefetch(grain.MultiprocessingOptions(workers), worker_init_fn=_start_worker)
    iterator = iter(elements)
    try:
        while (element := next(iterator, None)) is not None:
            yield element
            del element
    except RuntimeError as error:
        why = str(error).splitlines()[0] if str(error) else "no message"
        raise ReadError(f"a reading process ended ({why}); where memory ran out, take fewer data.workers") from error
    finally:
        iterator.close()
        if workers:
            del iterator
            gc.collect()  # grain's threads leave their last batches in reference cycles


def _start_worker(worker: int, workers: int) -> None:
    """Runs first in a reading process."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # leave the accelerators alone
    # Ctrl-C and Slurm signal all processes of a job, but the training wants its batches until it has saved.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(SECONDS_TO_SAVE))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
