"""Orbax checkpoints of a run: the last ones and the best one, written in the background, restored onto any layout.

Orbax itself reads back whatever lies there. So a checkpoint holds SHA256SUMS, the digests of its files, from before the
rename that completes it, and one whose files have changed or gone is not taken for whole. `sha256sum -c` reads it, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers
from orbax.checkpoint._src.path.atomicity import AtomicRenameTemporaryPath

from plstm.errors import UserError
from plstm.training.processes import from_main, is_main

SUMS = "SHA256SUMS"
UNSUMMED = (SUMS, "_CHECKPOINT_METADATA", "commit_success.txt")  # at the top; Orbax writes the last two at the rename
DAMAGED, DELETED = "damaged", "deleted"  # folders beside the steps
NEWEST = 2  # checkpoints that are kept, beside the best


class Checkpoints:
    """The folder `checkpoints/` of a run.

    A checkpoint holds the training state and a small JSON dictionary. The newest two and the one with the highest
    `score` are kept. Writing happens in the background and ends in a rename: a killed process leaves whole ones only.
    """

    def __init__(self, folder: str | Path, *, read_only: bool = False, say: Callable[[str], None] = print):
        """Opens the folder; damaged checkpoints are set aside in `damaged/`, each with a line, unless `read_only`.

        Raises UserError where the folder cannot be made, or, `read_only`, does not exist, or a score is damaged.
        """
        self.folder, self._read_only = Path(folder).absolute(), read_only
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoints there; train the run first")
        if not read_only:
            if is_main():
                self._set_damaged_aside(say)
            from_main(0)  # the other processes look when that is done
        latest = checkpoint_managers.LatestN(NEWEST)
        best = checkpoint_managers.BestN(get_metric_fn=lambda metrics: metrics["score"], n=1)
        sys.unraisablehook = _without_closed_loops
        try:
            self._manager = ocp.CheckpointManager(
                self.folder,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=checkpoint_managers.AnyPreservationPolicy([latest, best]),
                    best_fn=lambda metrics: metrics["score"],
                    create=not read_only,
                    read_only=read_only,
                    cleanup_tmp_directories=not read_only,
                    temporary_path_class=_Summed,
                    todelete_subdir=None if read_only else DELETED,  # a rename: none is ever half deleted
                ),
                item_handlers={"state": ocp.StandardCheckpointHandler(), "info": ocp.JsonCheckpointHandler()},
            )
        except OSError as error:
            raise UserError(f"cannot write checkpoints to {self.folder}: {error.strerror or error}") from error
        except ValueError as error:  # a score that cannot be read
            damaged = [path for path in _steps(self.folder) if _damage(path)] or [self.folder]
            raise UserError(f"{damaged[0]}: a damaged checkpoint ({_first_line(error)}); move it away") from error
        if not read_only:
            self._remove_superfluous()

    def _remove_superfluous(self) -> None:
        """Removes what Orbax had yet to remove, after the newest was complete, when the process was killed."""
        best = self._manager.best_step()
        for step in sorted(self._manager.all_steps())[:-NEWEST]:
            if step != best:
                self._manager.delete(step)

    def _set_damaged_aside(self, say: Callable[[str], None]) -> None:
        for path in _steps(self.folder):
            if damage := _damage(path):
                aside = self.folder / DAMAGED / path.name
                try:
                    aside.parent.mkdir(exist_ok=True)
                    while aside.exists():
                        aside = aside.with_name(aside.name + "-again")
                    path.rename(aside)
                except OSError as error:
                    raise UserError(f"{path}: {damage}; cannot move it away ({error.strerror})") from error
                say(f"the checkpoint of step {int(path.name):,} is damaged: {damage}; set aside as {aside}")

    def save(self, step: int, state: Any, info: Mapping[str, Any], score: float) -> None:
        """Keeps `state` (a tree of arrays) and `info` (JSON) as the checkpoint of `step`; returns before it is written.

        One of the same step gives way. The highest `score` marks the best checkpoint. Raises UserError where an earlier
        one could not be written.
        """
        try:
            self._manager.wait_until_finished()
            if step in self._manager.all_steps():
                self._manager.delete(step)
            if is_main():
                shutil.rmtree(self.folder / DELETED, ignore_errors=True)
            self._manager.save(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardSave(state), info=ocp.args.JsonSave(dict(info))),
                metrics={"score": float(score), "sums": 1},
            )
        except (OSError, ValueError) as error:
            raise self._write_error(error) from error

    def last_step(self) -> int | None:
        """The newest checkpoint's step, or None."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step of the checkpoint with the highest score, or None where none has one from 0."""
        step = self._manager.best_step()
        return None if step is None or self._manager.metrics(step)["score"] < 0 else step

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """The state and info of the checkpoint of `step`.

        Args:
            like: a tree of arrays, or of jax.ShapeDtypeStruct with shardings, onto which the state is restored.

        Raises UserError where the checkpoint is of another model, or damaged.
        """
        path = self._undamaged(step)
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target), info=ocp.args.JsonRestore())
        try:
            difference = _first_difference(_shapes(target), _shapes(self._manager.item_metadata(step)["state"]))
            restored = None if difference else self._manager.restore(step, args=args)
        except Exception as error:  # what Orbax makes of a damaged file may be a plain Exception
            raise UserError(f"{path}: the checkpoint cannot be read ({_first_line(error)}); move it away") from error
        if difference:
            raise UserError(f"{path}: a checkpoint of another model or optimizer ({difference})")
        return restored["state"], restored["info"]

    def info(self, step: int) -> dict[str, Any]:
        """The info alone of the checkpoint of `step`. Raises UserError where it is damaged."""
        path = self._undamaged(step)
        try:
            return self._manager.restore(step, args=ocp.args.Composite(info=ocp.args.JsonRestore()))["info"]
        except Exception as error:  # as above
            raise UserError(f"{path}: the checkpoint cannot be read ({_first_line(error)}); move it away") from error

    def wait(self) -> None:
        """Returns when all that was saved is on disk. Raises UserError where it could not be written."""
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError) as error:
            raise self._write_error(error) from error

    def close(self) -> None:
        """Waits, then lets go of the folder."""
        self.wait()
        self._manager.close()
        if is_main() and not self._read_only:
            shutil.rmtree(self.folder / DELETED, ignore_errors=True)

    def _undamaged(self, step: int) -> Path:
        """The folder of a step. Raises UserError where its files are not those that were written."""
        path = self.folder / str(step)
        damage = _damage(path) if self._read_only else None  # otherwise looked at on opening
        if damage:
            raise UserError(f"{path}: a damaged checkpoint, {damage}; move it away to take the one before")
        return path

    def _write_error(self, error: Exception) -> UserError:
        code = re.search(r"os_error_code='(\d+)'", str(error))  # at the end of TensorStore's long words
        told = os.strerror(int(code[1])) if code else _first_line(error)
        reason = f"cannot write the checkpoint in {self.folder}: {told}"
        return UserError(f"{reason}; make room there, then type the same command to go on from the last one")


class _Summed(AtomicRenameTemporaryPath):
    """What Orbax writes a checkpoint into, until all of it is there: then SHA256SUMS is added, and it is renamed."""

    async def finalize(self) -> None:
        if self.get_final().name.isdigit():  # a step, and not one of the items in it
            await asyncio.to_thread(_write_sums, Path(self.get()))
        await super().finalize()


def _steps(folder: Path) -> list[Path]:
    """The folders of the complete checkpoints, the newest first."""
    found = [path for path in folder.glob("*") if path.name.isdigit() and path.is_dir()]
    return sorted(found, key=lambda path: -int(path.name))


def _write_sums(folder: Path) -> None:
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in _summed_files(folder)]
    with open(folder / SUMS, "w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def _summed_files(folder: Path) -> list[str]:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [name for name in names if name not in UNSUMMED]


def _damage(folder: Path) -> str | None:
    """In words, how the files of a checkpoint differ from SHA256SUMS, or None."""
    if not (folder / SUMS).exists():
        return f"{SUMS} is missing" if _was_summed(folder) else None
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        wanted = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except ValueError:
        return f"{SUMS} cannot be read"
    if not wanted:
        return f"{SUMS} is empty"
    for name, digest in wanted.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        try:
            if _sha256(path) != digest:
                return f"{name} has changed since it was written"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    for name in _summed_files(folder):
        if name not in wanted and not Path(name).name.startswith("."):  # hidden ones are a file system's or viewer's
            return f"{SUMS} does not name {name}"  # cut at the end of a line
    return None


def _was_summed(folder: Path) -> bool:
    """Whether SHA256SUMS belongs there: checkpoints of the first versions have none."""
    try:
        return "sums" in json.loads((folder / "metrics" / "metrics").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_closed_loops(unraisable) -> None:
    """Leaves out what TensorStore's threads print of a write that failed; the failure itself is raised as ours."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every leaf by its dotted path; the same for a tree and for what Orbax tells of its copy on disk."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = (".".join(_path_name(key) for key in path) for path, _ in leaves)
    return {name: tuple(leaf.shape) for name, (_, leaf) in zip(names, leaves, strict=True)}


def _path_name(key: Any) -> str:
    return str(next(getattr(key, kind) for kind in ("key", "name", "idx") if hasattr(key, kind)))


def _first_difference(wanted: dict[str, tuple], found: dict[str, tuple]) -> str | None:
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            return f"{name} is {found.get(name, 'missing')} there and {wanted.get(name, 'missing')} here"
    return None


def _first_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
