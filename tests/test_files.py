"""Locks, also on file systems that have none, and files that cannot be written."""

import errno
import fcntl
import pwd

import pytest

from plstm.errors import UserError
from plstm.files import data_root, locked, write_errors, write_file
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


def test_a_full_disk_is_named_by_the_text_of_an_error_without_a_number(tmp_path):
    def save(_):  # as NumPy's tofile
        raise OSError("720 requested and 512 written")

    path = tmp_path / "bank.npy"
    with pytest.raises(UserError, match=f"{path}: 720 requested and 512 written; correct that"), write_errors(path):
        write_file(path, save)


@pytest.mark.parametrize("name", ["[x]", "a*", "a?", "a[1-3].b"])
def test_a_data_folder_that_tfds_takes_for_a_pattern_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / name / "data").mkdir(parents=True)
    with pytest.raises(UserError, match="has one of .*, which TFDS takes for a pattern; name another folder"):
        data_root(f"{tmp_path}/{name}/data")
    monkeypatch.setenv("HOME", f"{tmp_path}/{name}")
    monkeypatch.delenv("PLSTM_DATA", raising=False)
    with pytest.raises(UserError, match="which TFDS takes for a pattern"):
        data_root(None)


def test_a_user_without_a_home_names_the_folder_of_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    monkeypatch.setenv("PLSTM_DATA", "")
    with pytest.raises(UserError, match="PLSTM_DATA=: this user has no home for data sets; name a folder for them"):
        data_root(None)
    assert not list(tmp_path.iterdir()) and data_root(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_without_locks_a_run_starts_and_a_line_warns(tmp_path, monkeypatch, capsys, code):
    def refuse(*_):
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_folder(tmp_path / "run"):
        pass
    words = f"{tmp_path}/run: cannot be locked (no locks); do not start two processes that write there\n"
    assert capsys.readouterr().err == words
