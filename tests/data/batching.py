"""What the tests of batches share."""

import itertools
import zlib
from collections.abc import Callable, Iterable

import jax
import numpy as np
import pytest


def take(batches, steps: int, start: int = 0) -> list[dict]:
    """Some batches from a step on; the reading ends with them."""
    stream = batches.from_step(start)
    found = list(itertools.islice(stream, steps))
    stream.close()
    return found


def crc(arrays: Iterable[np.ndarray]) -> str:
    """Of their bytes, 8 hexadecimal digits."""
    return f"{zlib.crc32(b''.join(array.tobytes() for array in arrays)):08x}"


def joined(parts: list[list[dict]]) -> list[dict]:
    """The batches of several processes as one list."""
    return [{name: np.concatenate([part[name] for part in row]) for name in row[0]} for row in zip(*parts, strict=True)]


def assert_same(actual: list[dict], expected: list[dict]) -> None:
    """Arrays of the same dtypes and values under the same names."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


def assert_parts_make_up(batches: Callable[[], list[dict]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `batches` gives each of two processes, side by side, is what it gives a single one."""
    whole, parts = batches(), []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for number in range(2):
        monkeypatch.setattr(jax, "process_index", lambda number=number: number)
        parts.append(batches())
    assert_same(joined(parts), whole)
