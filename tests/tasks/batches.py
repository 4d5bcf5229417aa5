"""What the batches of every task without files have in common."""

from collections.abc import Callable, Mapping

import numpy as np

from plstm.tasks.streams import StreamTask
from tests.data.batching import crc


def assert_batches_depend_on_seed_and_step(
    make: Callable[..., StreamTask], *overrides: str, pinned: str
) -> tuple[StreamTask, StreamTask, Mapping[str, np.ndarray]]:
    """Returns the task, the task with another seed, and the batch of step 7 drawn by a third one.

    pinned: `crc` of that batch's arrays, without those of floats, which another processor may round otherwise.
    """
    task = make(*overrides)
    other = make(*overrides, "seed=44")
    again = make(*overrides).draw_batch(7)
    for name, array in task.draw_batch(7).items():
        np.testing.assert_array_equal(array, again[name])
        assert (array != task.draw_batch(8)[name]).any() and (array != other.draw_batch(7)[name]).any()
    assert crc(array for array in again.values() if array.dtype.kind != "f") == pinned
    return task, other, again
