"""`results/SHA256SUMS`: a digest of every file of the results, as `sha256sum` writes it, so that no digit moves unseen.

Records and curves are written once and never change; the files of folds, a run a line, only grow; tables, figures and
measurements are made anew at times. So `write_sums` takes new files and changed ones of the last kind, and refuses
changed records, of folds, too.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from data.files import write_file
from plstm.errors import UserError

NAME = "SHA256SUMS"
WRITTEN_ONCE, GROWING = ("runs/", "curves/"), ("folds/",)


def found_sums(results_dir: Path) -> dict[str, str]:
    """Path below the folder -> hexadecimal digest of every file that is there; hidden ones are passed over."""
    paths = (path for path in results_dir.rglob("*") if path.is_file() and path.name != NAME)
    names = sorted(path.relative_to(results_dir).as_posix() for path in paths)
    shown = [name for name in names if not re.search(r"(^|/)\.", name)]
    return {name: hashlib.sha256((results_dir / name).read_bytes()).hexdigest() for name in shown}


def read_sums(results_dir: Path) -> dict[str, str]:
    """What the file says; nothing where there is none. Raises UserError at a line of another form."""
    path = results_dir / NAME
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if not re.fullmatch(r"[0-9a-f]{64}  \S.*", line):
            raise UserError(f"{path}, line {number}: must be a SHA-256 digest, two spaces and a path")
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def write_sums(results_dir: Path) -> Path:
    """Writes the file. Raises UserError where a record or curve is not what it was when it was first written down."""
    found, known = found_sums(results_dir), read_sums(results_dir)
    for name, digest in found.items():
        if name.startswith((*WRITTEN_ONCE, *GROWING)) and known.get(name, digest) not in _earlier(results_dir, name):
            raise UserError(
                f"{results_dir / name}: changed since {NAME} was written; records and curves never change: restore it, "
                f"or, if it belongs to another run now, delete its line in {NAME} first"
            )
    path = results_dir / NAME
    write_file(path, "".join(f"{digest}  {name}\n" for name, digest in found.items()).encode())
    return path


def _earlier(results_dir: Path, name: str) -> set[str]:
    """The digests that a record's file may have had: its own, and where it grows, those of its first lines."""
    data = (results_dir / name).read_bytes()
    if not name.startswith(GROWING):
        return {hashlib.sha256(data).hexdigest()}
    so_far, digests = hashlib.sha256(), set()
    for line in data.splitlines(keepends=True):
        so_far.update(line)
        digests.add(so_far.hexdigest())
    return digests


def refresh_sums(results_dir: Path) -> None:
    """Writes the file anew where there is one: the results of a demo need none."""
    if (results_dir / NAME).is_file():
        write_sums(results_dir)


def sums_problems(results_dir: Path) -> list[str]:
    """One line for each file that changed or is missing, and one for those that are not listed."""
    found, known = found_sums(results_dir), read_sums(results_dir)
    new = sorted(found.keys() - known.keys())
    others = f", and {len(new) - 1} more files," if len(new) > 1 else ""
    words = [f"{results_dir / new[0]}{others}: not in {NAME}; run: make tables"] if new else []
    for name in sorted(known):
        path = results_dir / name
        if name not in found:
            words.append(f"{path}: is in {NAME}, but missing; restore it, or run: make tables")
        elif found[name] != known[name]:
            anew = "" if name.startswith(WRITTEN_ONCE) else ", or, if it was made anew: make tables"
            words.append(f"{path}: changed since {NAME} was written; restore it{anew}")
    return words
