"""Locks, also on file systems that have none."""

import errno
import fcntl

import pytest

from plstm.files import lock
from plstm.runs.folders import lock_folder


def test_a_lock_is_held_by_one(tmp_path):
    with open(tmp_path / "a", "w") as first, open(tmp_path / "a", "w") as second:
        lock(first, tmp_path)
        with pytest.raises(BlockingIOError):
            lock(second, tmp_path, wait=False)
        first.close()
        lock(second, tmp_path, wait=False)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_without_locks_a_run_starts_and_a_line_warns(tmp_path, monkeypatch, capsys, code):
    def refuse(*_):
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_folder(tmp_path / "run"):
        pass
    words = f"{tmp_path}/run: cannot be locked (no locks); do not start two processes that write there\n"
    assert capsys.readouterr().err == words
