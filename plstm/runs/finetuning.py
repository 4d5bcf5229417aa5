"""Fine-tuning: the run that another starts from, and what becomes of its weights."""

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding

from plstm.config import Config
from plstm.errors import UserError
from plstm.models import MODELS
from plstm.nn.layers import resize
from plstm.runs.folders import find_run, load_config, open_checkpoint, restore_state
from plstm.runs.identity import run_id
from plstm.runs.weights import is_weights_file
from plstm.training.checkpoints import Checkpoints
from plstm.training.steps import named_leaves

# Keys of `model` in which the two models may differ: they do not change the parameters' meaning.
MAY_DIFFER = ("image_size", "classes", "drop_path", "dropout", "dtype", "method", "gate_init", "remat")
POSITION = "position"
HEAD = "head."


def initial_id(init_from: str, runs: Path) -> str:
    """The id of the run that `init_from` names by id or folder: a new run's id must not follow from where it lies."""
    if not init_from:  # as experiments that fine-tune have it
        raise UserError("init_from: name the run to fine-tune, init_from=<its id or folder>")
    if is_weights_file(init_from):
        raise UserError(f"init_from={init_from}: takes a run, its id or folder, and not a file of weights")
    if re.fullmatch(r"[0-9a-f]{12}", init_from):
        return init_from
    return run_id(load_config(find_run(init_from, runs, "init_from")))


def initial_run(run: str, config: Config) -> tuple[Config, Checkpoints, int]:
    """The config and checkpoints of the run to fine-tune, and the step to start from. Raises UserError unless it has
    finished, with the model of `config`."""
    folder = find_run(run, Path(config.paths.runs), "init_from")
    trained = load_config(folder)
    theirs = asdict(trained.model)
    ours = asdict(config.model)
    for key in ours | theirs:
        if key not in MAY_DIFFER and theirs.get(key) != ours.get(key):
            has = f"the run {folder} has {theirs.get(key)}; fine-tune with the same model"
            raise UserError(f"model.{key}={ours.get(key)}: {has}")
    checkpoints, step = open_checkpoint(folder, trained, config.init_checkpoint, "init_checkpoint")
    last = checkpoints.last_step()
    if checkpoints.info(last)["final"] is None:
        raise UserError(f"init_from={folder}: this run has not finished (stopped at step {last:,}); finish it first")
    return trained, checkpoints, step


def initial_weights(run: str, config: Config, params: Any, sharding: Sharding) -> tuple[dict[str, Any], str]:
    """A finished run's `params` and `statistics` for a run with `config` and the new `params`, which every process has
    whole, and a line on them; else UserError."""
    trained, checkpoints, step = initial_run(run, config)
    _, state, _ = restore_state(checkpoints, step, trained, sharding)
    params, changes = adapt(state.params, params, MODELS[config.model.family].resize)
    origin = "; ".join([f"the weights of {checkpoints.folder.parent}, step {step:,}", *changes])
    return {"params": params, "statistics": state.statistics}, origin


def adapt(trained_params: Any, fresh_params: Any, resize: Callable = resize) -> tuple[Any, list[str]]:
    """The trained parameters as a tree like the fresh ones, and a description of each change.

    The position embedding [Y, X, dim] is resized by `resize`, a model's own. If any parameter of the head has another
    number of classes (its last axis), the whole head stays fresh. Any other difference raises UserError naming the
    parameter.
    """
    trained = named_leaves(trained_params)
    fresh = named_leaves(fresh_params)
    leaves = []
    changes = []
    if others := sorted(fresh.keys() ^ trained.keys()):
        whose = "the new model" if others[0] in fresh else "the trained one"
        raise UserError(f"init_from: parameter {others[0]} is in {whose} only; fine-tune with the same model")
    classes = [(trained[name].shape[-1], fresh[name].shape[-1]) for name in fresh if name.startswith(HEAD)]
    new_head = next((pair for pair in classes if pair[0] != pair[1]), None)
    if new_head:
        changes.append("a new head, {:,} -> {:,} classes".format(*new_head))
    for name, leaf in fresh.items():
        weights = trained[name]
        if name == POSITION and weights.shape != leaf.shape and weights.shape[2:] == leaf.shape[2:]:
            changes.append("position embedding {} x {} -> {} x {}".format(*weights.shape[:2], *leaf.shape[:2]))
            weights = resize(weights, leaf.shape[:2])
        elif new_head and name.startswith(HEAD) and weights.shape[:-1] == leaf.shape[:-1]:
            weights = leaf
        if weights.shape != leaf.shape:
            raise UserError(f"init_from: parameter {name} is {weights.shape} there and {leaf.shape} here")
        leaves.append(weights)
    return jax.tree.unflatten(jax.tree.structure(fresh_params), leaves), changes
