"""Packages of the index as a source of data: wheels fetched by version and SHA-256 and read as zip files, never
installed or imported, so that no environment changes what is read."""

import hashlib
import io
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.commands import Parser
from plstm.errors import DownloadError, UserError, damage_named
from plstm.files import locked, write_errors, write_file

# Of wheels for one platform, so that every machine fetches the same files.
PLATFORM = (
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux2014_x86_64",
    "--python-version=3.12",
    "--implementation=cp",
    "--abi=cp312",
)
Packages = Mapping[str, tuple[str, str]]  # name, as its wheel has it -> version and the wheel's SHA-256
Archives = dict[str, zipfile.ZipFile]  # by package


def describe(packages: Packages) -> str:
    return ", ".join(f"{name} {version}" for name, (version, _) in packages.items())


def fetch_parser(prog: str, description: str, packages: Packages, what: str) -> tuple[Parser, Any, Parser]:
    """A module's parser with the command `fetch`; its subparsers, to add other commands; and the parent parser of the
    options that commands share. what: ends the help of `fetch`."""
    parser = Parser(prog=f"python -m {prog}", description=description)
    root = Parser(add_help=False)
    root.add_argument("--root", help="folder of all data sets ($PLSTM_DATA, else ~/.cache/plstm/data)")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("fetch", parents=[root], help=f"fetch {describe(packages)} {what}")
    command.add_argument("--wheels", type=Path, metavar="FOLDER", help="take the wheels from there, not from the index")
    return parser, commands, root


def read_wheels(packages: Packages, wheels: Path | None, remedy: str) -> Archives:
    """The wheels by package, of the folder `wheels` or else of the package index. Raises UserError for one that is
    missing, of another version or changed; DownloadError, which ends with `remedy`, for an index without them."""
    with tempfile.TemporaryDirectory() as folder:
        if wheels is None:
            _download(packages, Path(folder), remedy)
        return {
            name: zipfile.ZipFile(io.BytesIO(_checked_bytes(wheels or Path(folder), name, *expected)))
            for name, expected in packages.items()
        }


def _download(packages: Packages, folder: Path, remedy: str) -> None:
    """By pip, which knows the user's index and compares the digests."""
    lines = (f"{name}=={version} --hash=sha256:{sha}" for name, (version, sha) in packages.items())
    (folder / "requirements.txt").write_text("\n".join(lines))
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, *PLATFORM, "-r", "requirements.txt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines or [f"exit status {done.returncode}"]
        raise DownloadError(f"pip download: {errors[-1][:200]}; {remedy}")


def fetch_again(module: str, root: str | None) -> str:
    """How to mend what a `fetch` wrote into a data root."""
    return f"fetch it: python -m {module} fetch" + (f" --root {shlex.quote(root)}" if root else ", and see data.root")


def fetch_arrays(
    path: Path,
    packages: Packages,
    wheels: Path | None,
    module: str,
    arrays_of: Callable[[Archives], dict[str, np.ndarray]],
) -> Path:
    """Writes what `arrays_of` makes of the wheels, of the folder `wheels` or else of the package index, into one file.
    Raises UserError for a wheel that is missing, of another version, or changed."""
    remedy = f"name a folder that has the wheels: python -m {module} fetch --wheels FOLDER"
    with write_errors(path), locked(path.with_name(f".{path.name}.lock")):
        arrays = arrays_of(read_wheels(packages, wheels, remedy))
        write_file(path, lambda file: np.savez_compressed(file, **arrays))
    return path


def load_arrays(path: Path, again: str) -> dict[str, np.ndarray]:
    """What a `fetch` wrote. Raises UserError, which ends with `again`, where the file is missing or damaged."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; {again}")
    with damage_named(path, again), np.load(path) as file:
        return {key: file[key] for key in file.files}


def _checked_bytes(folder: Path, name: str, version: str, sha: str) -> bytes:
    """Of a package's wheel. Raises UserError."""
    found = sorted(folder.glob(f"{name}-*.whl"))
    if not found:
        raise UserError(f"{folder}: has no wheel of {name}; version {version} is needed")
    path = next((path for path in found if path.name.startswith(f"{name}-{version}-")), None)
    if path is None:
        raise UserError(f"{found[0]}: version {version} of {name} is needed")
    content = path.read_bytes()
    if (own := hashlib.sha256(content).hexdigest()) != sha:
        raise UserError(f"{path}: its SHA-256 is {own}, not {sha}; fetch that file again")
    return content
