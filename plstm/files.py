"""This machine: its cores, signals, where data sets live, locks, and writing a file whole or not at all."""

import contextlib
import errno
import fcntl
import glob
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from plstm.errors import UserError

HOME_DATA = "~/.cache/plstm/data"
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # which end a program


def data_root(root: str | None) -> Path:
    """The folder of all data sets: `root`, or $PLSTM_DATA, or ~/.cache/plstm/data (made when missing); UserError where
    one that the user named does not exist, the default cannot be made, or TFDS would not find it."""
    named = root or os.environ.get("PLSTM_DATA")
    folder = Path(os.path.expanduser(named or HOME_DATA)).absolute()
    key = f"data.root={root}" if root else f"PLSTM_DATA={named or ''}"
    if not named and os.path.expanduser("~") == "~":
        raise UserError(f"{key}: this user has no home for data sets; name a folder for them")
    if glob.escape(str(folder)) != str(folder):
        raise UserError(f"{key}: {folder} has one of [ * ?, which TFDS takes for a pattern; name another folder")
    if named and not os.path.isdir(folder):  # Path's raises below a folder that this user may not enter
        raise UserError(f"{key}: no such folder; create it (mkdir -p {shlex.quote(str(folder))}) or name another")
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def write_errors(path: Path, remedy: str = "correct that, or set another data.root") -> Iterator[None]:
    """Failures to write `path`, or below it, become UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}; {remedy}") from error
    except RuntimeError as error:  # array_record raises it on a full disk
        raise UserError(f"{path}: cannot be written ({error}); {remedy}") from error


def check_writable(folder: Path, key: str) -> None:
    """Raises UserError naming the `key` where `folder`, which need not exist, cannot be written."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise UserError(f"{key}: {there} cannot be written; choose another")


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Holds the lock file `path`, made where missing. Yields True, or without `wait` False where another process holds
    it. Raises OSError where it cannot be opened, or is a symbolic link. A file system without locks (Lustre without
    -o flock, NFS without lockd) gets a line on standard error instead."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)) as file:
        is_ours = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            is_ours = False
        except OSError as error:
            why = f"cannot be locked ({error.strerror}); do not start two processes that write there"
            print(f"{path.parent}: {why}", file=sys.stderr, flush=True)
        yield is_ours


def write_file(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file whole or not at all: bytes, or what `content(file)` writes. Its folder is made where missing. An
    OSError names `path`, not the temporary file that is written first."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            os.fsync(file.fileno())  # else a power failure after the rename can leave an empty file
        os.replace(temporary, path)
    except OSError as error:
        # NumPy's error of a full disk has a text alone.
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """The files at any depth, sorted by path, hidden ones left out. Links are followed, but not one that leads back to
    a folder above it. Raises UserError for a broken one."""
    place = folder.resolve()
    if place in above:
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from files_below(folder / entry.name, (*above, place))
        elif entry.is_file():
            yield folder / entry.name
        else:
            raise UserError(f"{folder / entry.name}: neither a file nor a folder (a broken link?); remove it")
