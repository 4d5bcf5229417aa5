"""Fine-tuning: a run that starts from the weights of a finished one, `init_from`."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding

from plstm.config import Config, plain_config, run_id
from plstm.errors import UserError
from plstm.runs.folders import find_run, load_config
from plstm.tasks import TASKS
from plstm.training.checkpoints import Checkpoints
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state

# Keys of `model` that a fine-tuned model may have otherwise: they leave the parameters' meaning as it is.
MAY_DIFFER = ("image_size", "classes", "drop_path", "dtype", "method", "gate_init")
POSITION, HEAD = "position", "head."


def initial_id(init_from: str, runs: Path) -> str:
    """The id of the run that `init_from` names, 12 hexadecimal digits, whether as an id or as a folder.

    So a fine-tuned run's own id follows from what it starts from, and not from where that lies. Raises UserError.
    """
    if not init_from:  # as experiments that fine-tune have it
        raise UserError("init_from: name the run to fine-tune, init_from=<its id or folder>")
    if re.fullmatch(r"[0-9a-f]{12}", init_from):
        return init_from
    config = load_config(find_run(init_from, runs, "init_from"))
    if config.init_from is not None:
        config.init_from = initial_id(config.init_from, runs)
    return run_id(plain_config(config))


class Initial:
    """A finished run, and the checkpoint of it that another run starts from."""

    def __init__(self, run: str, config: Config):
        """The run with this id or folder; `config` is that of the run that starts.

        Raises UserError where there is no such run, it has not finished, or its model is another.
        """
        self.folder = find_run(run, Path(config.paths.runs), "init_from")
        self.config = load_config(self.folder)
        self._refuse_another_model(config)
        self._checkpoints = Checkpoints(self.folder / "checkpoints", read_only=True)
        last = self._checkpoints.last_step()
        if last is None or self._checkpoints.info(last)["final"] is None:
            stopped = f"stopped at step {last:,}" if last else "has no checkpoint"
            raise UserError(f"init_from={self.folder}: this run has not finished ({stopped}); finish it first")
        if config.init_checkpoint == "best" and not self.config.loop.keeps_best:
            raise UserError(f"init_checkpoint=best: {self.folder} kept none ({self.config.loop.why_no_best})")
        self.step = last if config.init_checkpoint == "last" else self._checkpoints.best_step()
        if self.step is None:
            raise UserError(f"init_checkpoint=best: {self.folder} has lost it; take init_checkpoint=last")

    def _refuse_another_model(self, config: Config) -> None:
        theirs, ours = asdict(self.config.model), asdict(config.model)
        for key in dict.fromkeys([*ours, *theirs]):
            if key not in MAY_DIFFER and theirs.get(key) != ours.get(key):
                raise UserError(
                    f"model.{key}={ours.get(key)}: the run {self.folder} has {theirs.get(key)}; "
                    "fine-tune with the same model"
                )

    def load(self, params: Any, layout: Sharding) -> tuple[Any, str]:
        """Its weights in place of the freshly drawn `params`, and a line that says so; as `adapt` does."""
        task = TASKS[self.config.task](self.config)
        optimizer = build_optimizer(self.config.optim, lambda step: 0.0)
        state = jax.eval_shape(lambda: init_state(task.build_model(0), optimizer)[1])
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout), state)
        restored, _ = self._checkpoints.restore(self.step, like)
        params, changes = adapt(restored.params, params)
        return params, "; ".join([f"the weights of {self.folder}, step {self.step:,}", *changes])


def adapt(found: Any, wanted: Any) -> tuple[Any, list[str]]:
    """Trained parameters for a model of another image size or number of classes.

    The position embedding [Y, X, dim] is resized (bicubic, as in evaluation at another size); a head for another number
    of classes stays as `wanted` has it. Any other difference raises UserError naming the parameter.

    Args:
        found: the trained parameters, a tree.
        wanted: those of the new model, with the shapes to reach.

    Returns:
        A tree like `wanted`, and words for what was not simply taken over.
    """
    trained, changes = _named(found), []
    fresh = _named(wanted)
    for name in {**fresh, **trained}:
        if name not in trained or name not in fresh:
            whose = "the new model" if name not in trained else "the trained one"
            raise UserError(f"init_from: parameter {name} is in {whose} only; fine-tune with the same model")
    new_head = trained["head.bias"].shape != fresh["head.bias"].shape
    if new_head:
        classes = [tree["head.bias"].shape[0] for tree in (trained, fresh)]
        changes.append(f"a new head, {classes[0]:,} -> {classes[1]:,} classes")
    leaves = []
    for name, leaf in fresh.items():
        weights = trained[name]
        if name == POSITION and weights.shape != leaf.shape and weights.shape[2:] == leaf.shape[2:]:
            changes.append("position embedding {} x {} -> {} x {}".format(*weights.shape[:2], *leaf.shape[:2]))
            weights = jax.image.resize(weights, leaf.shape, "bicubic")
        elif new_head and name.startswith(HEAD) and weights.shape[:-1] == leaf.shape[:-1]:
            weights = leaf
        if weights.shape != leaf.shape:
            raise UserError(f"init_from: parameter {name} is {weights.shape} there and {leaf.shape} here")
        leaves.append(weights)
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves), changes


def _named(params: Any) -> dict[str, jax.Array]:
    """Dotted name, such as groups.blocks.0.mlp.up.kernel -> array, in the tree's order."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {".".join(str(key.key) for key in path if hasattr(key, "key")): leaf for path, leaf in leaves}
