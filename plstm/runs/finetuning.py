"""Fine-tuning: a run that starts from the weights of a finished one, `init_from`."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding

from plstm.config import Config, run_id
from plstm.errors import UserError
from plstm.runs.folders import find_run, load_config
from plstm.runs.weights import restore_state
from plstm.training.checkpoints import Checkpoints
from plstm.training.trees import named_leaves

# Keys of `model` in which the two models may differ: they do not change the parameters' meaning.
MAY_DIFFER = ("image_size", "classes", "drop_path", "dtype", "method", "gate_init", "remat")
POSITION, HEAD = "position", "head."


def initial_id(init_from: str, runs: Path) -> str:
    """The id of the run that `init_from` names, 12 hexadecimal digits, whether as an id or as a folder.

    So a fine-tuned run's own id follows from what it starts from, and not from where that lies. Raises UserError.
    """
    if not init_from:  # as experiments that fine-tune have it
        raise UserError("init_from: name the run to fine-tune, init_from=<its id or folder>")
    if re.fullmatch(r"[0-9a-f]{12}", init_from):
        return init_from
    return run_id(load_config(find_run(init_from, runs, "init_from")))


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

    def load(self, params: Any, sharding: Sharding) -> tuple[Any, str]:
        """Its weights in place of the freshly drawn `params`, and a line that says so; as `adapt` does."""
        _, state, _ = restore_state(self._checkpoints, self.step, self.config, sharding)
        params, changes = adapt(state.params, params)
        return params, "; ".join([f"the weights of {self.folder}, step {self.step:,}", *changes])


def adapt(found: Any, wanted: Any) -> tuple[Any, list[str]]:
    """Trained parameters for a model of another image size or number of classes.

    The position embedding [Y, X, dim] is resized (bicubic, as in evaluation at another size). If any parameter of the
    head has another number of classes (its last axis), the whole head stays as `wanted` has it. Any other difference
    raises UserError naming the parameter.

    Args:
        found: the trained parameters, a tree.
        wanted: those of the new model, with the shapes to reach.

    Returns:
        A tree like `wanted`, and words for what was not simply taken over.
    """
    trained, fresh, changes = named_leaves(found), named_leaves(wanted), []
    for name in {**fresh, **trained}:
        if name not in trained or name not in fresh:
            whose = "the new model" if name not in trained else "the trained one"
            raise UserError(f"init_from: parameter {name} is in {whose} only; fine-tune with the same model")
    heads = [name for name in fresh if name.startswith(HEAD)]
    new_head = next((name for name in heads if trained[name].shape[-1] != fresh[name].shape[-1]), None)
    if new_head:
        classes = [tree[new_head].shape[-1] for tree in (trained, fresh)]
        changes.append(f"a new head, {classes[0]:,} -> {classes[1]:,} classes")
    leaves = []
    for name, leaf in fresh.items():
        weights = trained[name]
        if name == POSITION and weights.shape != leaf.shape and weights.shape[2:] == leaf.shape[2:]:
            changes.append("position embedding {} x {} -> {} x {}".format(*weights.shape[:2], *leaf.shape[:2]))
            weights = jax.image.resize(weights, leaf.shape, "bicubic")
        elif new_head and name in heads and weights.shape[:-1] == leaf.shape[:-1]:
            weights = leaf
        if weights.shape != leaf.shape:
            raise UserError(f"init_from: parameter {name} is {weights.shape} there and {leaf.shape} here")
        leaves.append(weights)
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves), changes
