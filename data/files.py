"""Files on this machine: where data sets live, and writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from plstm.errors import UserError


def data_root(root: str | None) -> Path:
    """The folder of all data sets: `root`, or $PLSTM_DATA, or ~/.cache/plstm/data (made when missing).

    Raises UserError when a folder that the user named does not exist, or when the default cannot be made.
    """
    named = root or os.environ.get("PLSTM_DATA")
    if not named:
        default = Path("~/.cache/plstm/data").expanduser()
        with told_by_path(default):
            default.mkdir(parents=True, exist_ok=True)
        return default
    folder = Path(named).expanduser().absolute()
    if not folder.is_dir():
        key = f"data.root={root}" if root else f"PLSTM_DATA={named}"
        raise UserError(f"{key}: no such folder; create it (mkdir -p {shlex.quote(str(folder))}) or name another")
    return folder


@contextlib.contextmanager
def told_by_path(path: Path) -> Iterator[None]:
    """Failures to write below `path` as UserError."""
    try:
        yield
    except OSError as error:
        why = f"{error.filename or path}: {error.strerror or error}"
        raise UserError(f"{why}; correct that, or set another data.root") from error
    except RuntimeError as error:  # what array_record makes of a full disk
        raise UserError(f"{path}: cannot be written ({error}); correct that, or set another data.root") from error


def write_file(path: Path, data: bytes) -> None:
    """Write a file at once or not at all; its folder is made where missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
