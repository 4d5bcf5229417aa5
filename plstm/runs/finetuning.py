"""Fine-tuning: the run or file that a run starts from, and what becomes of its weights."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import Sharding

from plstm.config import Config
from plstm.errors import UserError
from plstm.limits import ID_DIGITS
from plstm.models import MODELS
from plstm.models.sequence import WINDOWED
from plstm.models.weights import load, read_info
from plstm.nn.layers import resize
from plstm.runs.folders import find_run, load_config, open_checkpoint, restore_state
from plstm.runs.identity import run_id
from plstm.runs.weights import is_weights_file
from plstm.tasks import TASKS
from plstm.training.checkpoints import Checkpoints
from plstm.training.state import RunState
from plstm.training.steps import has_part, named_leaves

# Keys of `model` in which the two models may differ: they do not change the parameters' meaning.
MAY_DIFFER = (
    "image_size",
    "classes",
    "drop_path",
    "dropout",
    "dtype",
    "transition_dtype",
    "method",
    "gate_init",
    "remat",
    "window",
    "sinks",
)
POSITION = "position"
HEAD = "head."


def initial_id(init_from: str, runs: Path) -> str:
    """What `init_from` is in a new run's config, wherever the weights lie: a run's id, or the first 12 digits of the
    SHA256 of a file's weights."""
    if not init_from:  # as experiments that fine-tune have it
        raise UserError("init_from: name the run or the .safetensors file to fine-tune, init_from=<id, folder or file>")
    if is_weights_file(init_from):
        return read_info(init_from).sha256[:ID_DIGITS]
    if re.fullmatch(r"[0-9a-f]{12}", init_from):
        return init_from
    return run_id(load_config(find_run(init_from, runs, "init_from")))


def check_start(init_from: str, config: Config) -> None:
    """Raises UserError unless `init_from` names weights of the model of `config`, and of a run that has finished."""
    if is_weights_file(init_from):
        _check_file(init_from, config)
    else:
        _open_run(init_from, config)


def initial_weights(init_from: str, config: Config, params: Any, sharding: Sharding) -> tuple[dict[str, Any], str]:
    """What a run with `config` starts from, {"params": ..., "statistics": ...}, and a line that describes it. params:
    the run's fresh parameters, which every process has whole. Raises UserError as `check_start`."""
    if is_weights_file(init_from):
        _check_file(init_from, config)
        model = load(init_from)
        _, found, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
        trained, statistics = jax.device_put((found, statistics or None), sharding)
        names = model.info.class_names
        source = init_from
    else:
        config_there, checkpoints, step = _open_run(init_from, config)
        _, state, run = restore_state(checkpoints, step, config_there, sharding)
        trained, statistics = state.params, state.statistics
        names = run.class_names
        source = f"{checkpoints.folder.parent}, step {step:,}"
    ours = TASKS[config.task](config).class_names
    is_other = bool(names and ours) and [*names] != [*ours]
    params, changes = adapt(trained, params, MODELS[config.model.family].resize, config.init_new, is_other)
    return {"params": params, "statistics": statistics}, "; ".join([f"the weights of {source}", *changes])


def _check_file(file: str, config: Config) -> None:
    if config.init_checkpoint != "last":
        raise UserError(f"init_checkpoint={config.init_checkpoint}: a weights file has one step only; leave it out")
    _check_model(file, read_info(file).config, config.model)


def _open_run(run: str, config: Config) -> tuple[Config, Checkpoints, int]:
    """The config and checkpoints of the run to fine-tune, and the step to start from."""
    folder = find_run(run, Path(config.paths.runs), "init_from")
    trained = load_config(folder)
    _check_model(f"the run {folder}", trained.model, config.model)
    checkpoints, step = open_checkpoint(folder, trained, config.init_checkpoint, "init_checkpoint")
    last = checkpoints.last_step()
    if RunState.from_json(checkpoints.info(last), folder).final is None:
        raise UserError(f"init_from={folder}: this run has not finished (stopped at step {last:,}); finish it first")
    return trained, checkpoints, step


def _check_model(source: str, trained: Any, new: Any) -> None:
    theirs = asdict(trained)
    ours = asdict(new)
    for key in ours | theirs:
        if key not in MAY_DIFFER and not _fits(key, theirs.get(key), ours.get(key)):
            has = f"{source} has {theirs.get(key)}; fine-tune with the same model"
            raise UserError(f"model.{key}={ours.get(key)}: {has}")


def _fits(key: str, theirs: Any, ours: Any) -> bool:
    """Whether the key's two values are equal, where `blocks` may have a student in the place of its teacher."""
    if key != "blocks" or theirs is None or len(theirs) != len(ours):
        return theirs == ours
    return all(new == old or (old == "attention" and new in WINDOWED) for old, new in zip(theirs, ours, strict=True))


def adapt(
    trained_params: Any,
    fresh_params: Any,
    resize: Callable = resize,
    new: Sequence[str] = (),
    has_other_classes: bool = False,
) -> tuple[Any, list[str]]:
    """The trained parameters as a tree like the fresh ones, and a description of each change.

    The position embedding [Y, X, dim] is resized by `resize`, the model family's. The whole head stays fresh with
    `has_other_classes`, or where the last axis of one of its parameters, the classes, has another size. Parameters that
    the trained model lacks stay fresh if a part of their dotted names is in `new`. Any other difference raises
    UserError naming the parameter; so does an entry of `new` that is in no such name.
    """
    trained = named_leaves(trained_params)
    fresh = named_leaves(fresh_params)
    leaves = []
    changes = []
    drawn = {name for name in fresh.keys() - trained.keys() if has_part(name, new)}
    if drawn:
        changes.append(f"{len(drawn)} tensors of {', '.join(new)} drawn")
    trained |= {name: fresh[name] for name in drawn}
    if others := sorted(fresh.keys() ^ trained.keys()):
        whose = "the new model" if others[0] in fresh else "the trained one"
        raise UserError(f"init_from: parameter {others[0]} is in {whose} only; fine-tune with the same model")
    if unused := [part for part in new if not any(has_part(name, [part]) for name in drawn)]:
        raise UserError(f"init_new: the trained model lacks no parameter with {unused[0]} in its name; leave it out")
    classes = [(trained[name].shape[-1], fresh[name].shape[-1]) for name in fresh if name.startswith(HEAD)]
    resized_head = next((pair for pair in classes if pair[0] != pair[1]), None)
    has_new_head = has_other_classes or resized_head is not None
    if resized_head:
        changes.append("a new head, {:,} -> {:,} classes".format(*resized_head))
    elif has_new_head:
        changes.append("a new head, for other classes")
    for name, leaf in fresh.items():
        weights = trained[name]
        if name == POSITION and weights.shape != leaf.shape and weights.shape[2:] == leaf.shape[2:]:
            changes.append("position embedding {} x {} -> {} x {}".format(*weights.shape[:2], *leaf.shape[:2]))
            weights = resize(weights, leaf.shape[:2])
        elif has_new_head and name.startswith(HEAD) and weights.shape[:-1] == leaf.shape[:-1]:
            weights = leaf
        if weights.shape != leaf.shape:
            raise UserError(f"init_from: parameter {name} is {weights.shape} there and {leaf.shape} here")
        leaves.append(weights)
    return jax.tree.unflatten(jax.tree.structure(fresh_params), leaves), changes
