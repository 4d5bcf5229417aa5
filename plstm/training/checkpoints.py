"""Orbax checkpoints of a run: the last ones and the best one, written in the background, restored onto any layout."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from plstm.errors import UserError


class Checkpoints:
    """The folder `checkpoints/` of a run.

    A checkpoint holds the training state and a small JSON dictionary. The newest two and the one with the highest
    `score` are kept. Writing happens in the background and ends in a rename: a killed process leaves whole ones only.
    """

    def __init__(self, folder: str | Path, *, read_only: bool = False):
        """Raises UserError where the folder cannot be made, or, `read_only`, does not exist, or a score is damaged."""
        self.folder = Path(folder).absolute()
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoints there; train the run first")
        latest = checkpoint_managers.LatestN(2)
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
                ),
                item_handlers={"state": ocp.StandardCheckpointHandler(), "info": ocp.JsonCheckpointHandler()},
            )
        except OSError as error:
            raise UserError(f"cannot write checkpoints to {self.folder}: {error.strerror or error}") from error
        except ValueError as error:  # a score that cannot be read
            raise UserError(
                f"{self.folder}: a damaged checkpoint ({_first_line(error)}); move away the one whose metrics/metrics "
                "is not JSON"
            ) from error

    def save(self, step: int, state: Any, info: Mapping[str, Any], score: float) -> None:
        """Keeps `state` (a tree of arrays) and `info` (JSON) as the checkpoint of `step`; returns before it is written.

        The highest `score` marks the best checkpoint. Raises UserError where an earlier one could not be written.
        """
        try:
            if step in self._manager.all_steps():
                return
            self._manager.save(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardSave(state), info=ocp.args.JsonSave(dict(info))),
                metrics={"score": float(score)},
            )
        except (OSError, ValueError) as error:
            raise self._write_error(error) from error

    def last_step(self) -> int | None:
        """The newest checkpoint's step, or None."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step of the checkpoint with the highest score, or None."""
        return self._manager.best_step()

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """The state and info of the checkpoint of `step`.

        Args:
            like: a tree of arrays, or of jax.ShapeDtypeStruct with shardings, onto which the state is restored.

        Raises UserError where the checkpoint is of another model, or damaged.
        """
        path = self.folder / str(step)
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
        try:
            return self._manager.restore(step, args=ocp.args.Composite(info=ocp.args.JsonRestore()))["info"]
        except Exception as error:  # as above
            path = self.folder / str(step)
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

    def _write_error(self, error: Exception) -> UserError:
        reason = f"cannot write the checkpoint in {self.folder}: {_first_line(error)}"
        return UserError(f"{reason}; make room there, then type the same command to go on from the last one")


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
