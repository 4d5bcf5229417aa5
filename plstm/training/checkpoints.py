"""Checkpoints of a run: the newest and the best, written in the background, restored onto any layout of devices.

Orbax does not notice a changed file. So each checkpoint holds SHA256SUMS, the digests of its files, which is written
before the rename that completes the checkpoint, and one whose files do not match is not used. `sha256sum -c` reads it.
"""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint import checkpoint_managers
from orbax.checkpoint.path import atomicity

from plstm.errors import UserError, first_line
from plstm.training.processes import from_main, is_main
from plstm.training.steps import named_leaves

CHECKSUMS = "SHA256SUMS"
WITHOUT_CHECKSUM = (CHECKSUMS, "_CHECKPOINT_METADATA", "commit_success.txt")  # Orbax writes the last two at the rename
DAMAGED = "damaged"  # a folder beside the steps
DELETED = "deleted"  # likewise
NEWEST = 2  # checkpoints that are kept, beside the best
SECONDS_TO_LIST = 120  # NFS may keep a listing for one minute
NO_SCORE = -1e30  # of a checkpoint that was not evaluated
_score = itemgetter("score")


class Checkpoints:
    """The folder `checkpoints/` of a run: the newest two and that of the highest `score`, complete once renamed."""

    def __init__(self, folder: str | Path, run: str, *, read_only: bool = False):
        """Opens the folder of the run with the id `run`, or raises UserError.

        Unless `read_only`, damaged checkpoints, and those of other runs, are set aside, a line each.
        """
        self.folder = Path(folder).absolute()
        self.run = run
        self._read_only = read_only
        logging.set_verbosity(logging.ERROR)  # Orbax warns about what is done here on purpose
        self._whole: set[int] = set()  # steps found undamaged, if `read_only`
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoints there; train the run first")
        sys.unraisablehook = _without_closed_loops
        latest = checkpoint_managers.LatestN(NEWEST)
        best = checkpoint_managers.BestN(get_metric_fn=_score, n=1)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.AnyPreservationPolicy([latest, best]),
            best_fn=_score,
            create=not read_only,
            read_only=read_only,
            cleanup_tmp_directories=not read_only,
            temporary_path_class=_ChecksummedPath,
            todelete_subdir=None if read_only else DELETED,  # a rename: none is ever half deleted
        )
        handlers = {"state": ocp.StandardCheckpointHandler(), "info": ocp.JsonCheckpointHandler()}
        try:
            if not read_only and is_main():
                self._bring_back()
                self._set_damaged_aside()
            from_main(0)  # the other processes look at the folder after that
            self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)
            self._wait_for_listing()
        except OSError as error:
            how = "read checkpoints in" if read_only else "write checkpoints to"
            raise UserError(f"cannot {how} {self.folder}: {first_line(error)}") from error
        except ValueError as error:  # a score that cannot be read
            damaged = next((path for path in _steps(self.folder) if _damage(path)), self.folder)
            raise UserError(f"{damaged}: a damaged checkpoint ({first_line(error)}); move it away") from error
        # Orbax removes an old checkpoint after a new one is complete; a kill in between leaves one too many.
        for step in sorted(self._manager.all_steps())[: 0 if read_only else -NEWEST]:
            if step != self._manager.best_step():
                self._manager.delete(step)

    def _wait_for_listing(self) -> None:
        """Returns when this process sees the checkpoints that process 0 sees, on network disks perhaps later: which of
        them to restore and to remove, each process then decides alike."""
        own = sorted(self._manager.all_steps())
        count = from_main(len(own))
        expected = [from_main(own[n] if n < len(own) else 0) for n in range(count)]
        end = time.monotonic() + SECONDS_TO_LIST
        while (own := sorted(self._manager.all_steps())) != expected:
            if time.monotonic() > end:
                seen = f"process 0 sees the checkpoints {expected}, process {jax.process_index()} {own}"
                raise UserError(f"{self.folder}: {seen}; all processes need the same paths.runs, on a shared disk")
            time.sleep(1)
            self._manager.reload()

    def _bring_back(self) -> None:
        """Undoes the removal of a step that was to be written anew, where a kill came in between. A step that is not
        whole there was being removed for good."""
        for path in _steps(self.folder / DELETED):
            if not (self.folder / path.name).exists() and not _damage(path):
                path.rename(self.folder / path.name)

    def _set_damaged_aside(self) -> None:
        for path in _steps(self.folder):
            if damage := _damage(path) or self._mismatch(path):
                aside = self.folder / DAMAGED / path.name
                shutil.rmtree(aside, ignore_errors=True)  # an earlier one of the same step
                aside.parent.mkdir(exist_ok=True)
                path.rename(aside)
                what = f"the checkpoint of step {int(path.name):,} is damaged: {damage}"
                print(f"{what}; set aside as {aside}", flush=True)

    def _mismatch(self, path: Path) -> str | None:
        """How a whole checkpoint differs from one of this run and of the step in its name, in words, or None."""
        try:
            info = {} | json.loads((path / "info" / "metadata").read_text(encoding="utf-8"))
        except (OSError, TypeError, ValueError, RecursionError) as error:
            return f"info/metadata cannot be read ({first_line(error)})"
        run = info.get("run")
        step = str(info.get("step"))
        if run != self.run:
            return f"it is of run {run}, and the config of run {self.run}"
        return None if step == path.name else f"it is of step {step}"

    def save(self, step: int, state: Any, info: Mapping[str, Any], score: float) -> None:
        """Starts to save a tree of arrays and JSON; UserError says that an earlier checkpoint could not be written."""
        self.wait()
        with self._writing():
            self._empty_deleted()
            if step in self._manager.all_steps():
                self._manager.delete(step)  # into the folder just emptied, until the new one is there
            info = {**info, "run": self.run, "step": step}
            args = ocp.args.Composite(state=ocp.args.StandardSave(state), info=ocp.args.JsonSave(info))
            self._manager.save(step, args=args, metrics={"score": float(score)})

    def last_step(self) -> int | None:
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step of the checkpoint with the highest score, or None if none has one."""
        step = self._manager.best_step()
        return None if step is None or self._manager.metrics(step)["score"] == NO_SCORE else step

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """The state, placed as the arrays or shapes of `like`, and info; UserError if damaged or of another model."""
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target), info=ocp.args.JsonRestore())
        with self._reading(step) as path:
            here = _shapes(target)
            there = _shapes(self._manager.item_metadata(step)["state"])
            for name in here | there:
                if here.get(name) != there.get(name):
                    found = f"{name} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
                    raise UserError(f"{path}: a checkpoint of another model or optimizer ({found})")
            restored = self._manager.restore(step, args=args)
        return restored["state"], restored["info"]

    def info(self, step: int) -> dict[str, Any]:
        """The info alone of the checkpoint of `step`. Raises UserError if it is damaged."""
        with self._reading(step):
            return self._manager.restore(step, args=ocp.args.Composite(info=ocp.args.JsonRestore()))["info"]

    def wait(self) -> None:
        """Returns when everything saved is on disk. Raises UserError if it could not be written."""
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        self.wait()
        self._manager.close()
        self._empty_deleted()

    def _empty_deleted(self) -> None:
        if is_main() and not self._read_only:
            shutil.rmtree(self.folder / DELETED, ignore_errors=True)

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[Path]:
        """Gives the folder of a step. Raises UserError if it is damaged or Orbax cannot read it."""
        path = self.folder / str(step)
        if self._read_only and step not in self._whole:  # otherwise checked on opening
            if damage := _damage(path) or self._mismatch(path):
                raise UserError(f"{path}: a damaged checkpoint, {damage}; move it away to take the one before")
            self._whole.add(step)
        try:
            yield path
        except UserError:
            raise
        except Exception as error:  # Orbax raises plain Exceptions, too, for damaged files
            lacks_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
            remedy = "free memory" if lacks_memory else "move it away"
            raise UserError(f"{path}: the checkpoint cannot be read ({first_line(error)}); {remedy}") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            code = re.search(r"os_error_code='(\d+)'", str(error))  # at the end of TensorStore's long message
            reason = os.strerror(int(code[1])) if code else first_line(error)
            number = int(code[1]) if code else getattr(error, "errno", None)
            remedy = "free space there" if number in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
            if isinstance(error, TimeoutError):  # Orbax's, by the clock
                reason = "it took too long, or the clock jumped"
                remedy = "see whether the disk answers"
            remedy += ", then rerun the same command to resume from the last one"
            raise UserError(f"cannot write the checkpoint in {self.folder}: {reason}; {remedy}") from error


class _ChecksummedPath(atomicity.AtomicRenameTemporaryPath):
    """The folder that Orbax writes a checkpoint into; once it is complete, adds SHA256SUMS and renames it."""

    async def finalize(self) -> None:
        if _is_step(self.get_final()):  # and not one of the items in it
            await asyncio.to_thread(_write_checksums, Path(self.get()))
        await super().finalize()


def _steps(folder: Path) -> list[Path]:
    """The folders of the complete checkpoints, newest first."""
    found = [path for path in folder.glob("*") if _is_step(path) and path.is_dir()]
    return sorted(found, key=lambda path: -int(path.name))


def _is_step(path: Path) -> bool:
    return re.fullmatch("[0-9]+", path.name) is not None  # such as ², which is a digit, are no number


def _write_checksums(folder: Path) -> None:
    with open(folder / CHECKSUMS, "w", encoding="utf-8") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in _digests(folder).items())
        file.flush()
        os.fsync(file.fileno())


def _digests(folder: Path, names: Iterable[str] = ()) -> dict[str, str]:
    """SHA256 by name of all files that have a checksum; what is hidden, file or folder, is a file system's or
    a viewer's. `names`: files that a listing, on a network disk, may not show yet."""
    digests = {}
    inside = (path.relative_to(folder) for path in folder.rglob("*"))
    listed = (str(path) for path in inside if not any(part.startswith(".") for part in path.parts))
    for name in sorted({*listed, *names} - {*WITHOUT_CHECKSUM}):
        if (folder / name).is_file():
            with open(folder / name, "rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _damage(folder: Path) -> str | None:
    """How the files of a checkpoint differ from SHA256SUMS, in words, or None."""
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
        expected = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        found = _digests(folder, expected)
    except OSError as error:
        return f"{error.filename or CHECKSUMS} cannot be read ({first_line(error)})"
    except ValueError:
        return f"{CHECKSUMS} is damaged"
    for name in expected | found:
        if expected.get(name) != found.get(name):
            what = "has changed since it was written" if name in expected else f"is not in {CHECKSUMS}"
            return f"{name} {what}" if name in found else f"{name} is missing"
    return None if expected else f"{CHECKSUMS} is empty"


def _without_closed_loops(unraisable) -> None:
    """Hides what TensorStore's threads print about a failed write, which is raised as a UserError anyway."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Of the leaves of a tree, or of Orbax's description of one on disk."""
    return {name.removesuffix(".value"): tuple(leaf.shape) for name, leaf in named_leaves(tree).items()}
