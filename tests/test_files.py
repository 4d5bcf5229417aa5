"""Locks, also on file systems that have none."""

import errno
import fcntl

import pytest

from plstm.files import locked
from plstm.runs.folders import lock_folder


def test_a_lock_is_held_by_one(tmp_path):
    with locked(tmp_path / "a") as first, locked(tmp_path / "a", wait=False) as second:
        assert first and not second
    with locked(tmp_path / "a", wait=False) as again:
        assert again


def test_a_lock_follows_no_link_and_changes_no_file(tmp_path):
    (tmp_path / "a").write_text("precious")
    with locked(tmp_path / "a"):
        pass
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "broken").symlink_to("b")
    for name in ("link", "broken"):
        with pytest.raises(OSError, match=name), locked(tmp_path / name):
            pass
    assert (tmp_path / "a").read_text() == "precious" and not (tmp_path / "b").exists()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_without_locks_a_run_starts_and_a_line_warns(tmp_path, monkeypatch, capsys, code):
    def refuse(*_):
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_folder(tmp_path / "run"):
        pass
    words = f"{tmp_path}/run: cannot be locked (no locks); do not start two processes that write there\n"
    assert capsys.readouterr().err == words
