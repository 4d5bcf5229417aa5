"""Trained weights, of a run or of a .safetensors file, as a model that is ready to use.

    model = from_checkpoint("1f392a")  # a run's id or the first digits of it, its folder, or a file
    plstm.save(model, "model.safetensors")

`plstm.models.weights` describes the file.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flax import nnx
from omegaconf.errors import OmegaConfBaseException

from plstm.config import Config
from plstm.errors import UserError, first_line
from plstm.models import Info
from plstm.models.weights import load, read_info, weights_digest
from plstm.runs.compose import from_file
from plstm.runs.folders import find_run, load_config, open_checkpoint, restore_state
from plstm.runs.identity import portable_config, run_id
from plstm.tasks import TASKS
from plstm.training.state import RunState
from plstm.training.steps import TrainState


def from_checkpoint(source: str | os.PathLike, *, runs: str | os.PathLike = "runs", checkpoint: str = "last") -> Any:
    """The model with trained weights, deterministic unless called with a key; its `info` is a `plstm.models.Info`.

    source: a .safetensors file, or a run: its folder, its id or the first digits of it, in the folder `runs`.
    checkpoint: "last" or "best" of a run. Raises UserError where there is no such file or run, or it is damaged.
    """
    if is_weights_file(source):
        if checkpoint != "last":
            raise UserError(f"checkpoint={checkpoint}: {source} is a file of weights, which has one step only")
        return load(source)
    folder = find_run(str(source), Path(runs))
    config = load_config(folder)
    graphdef, state, run = _restore_newest(folder, config, checkpoint)
    model: Any = nnx.merge(graphdef, state.weights)
    model.info = trained_info(model, config, run.sizes, run.class_names, run_id(config), run.step)
    return model


def trained_info(
    model: Any, config: Config, sizes: Mapping[str, int], class_names: Sequence[str], run: str = "", step: int = 0
) -> Info:
    """The info of a model whose weights a training with `config` made."""
    training = portable_config(config)
    del training["model"]
    preprocessing = TASKS[config.task](config).preprocessing
    sha256 = weights_digest(model)
    return Info(config.model, sizes, tuple(class_names), preprocessing, run, step, training, sha256)


def training_config(info: Info, path: str | os.PathLike) -> Config:
    """The config of the training that made the weights in the file `path`. Raises UserError where no training is known
    or its config is damaged."""
    if info.training is None:
        raise UserError(
            f"{path}: these weights come from no run of train.py, so their task is not known; use them from Python"
        )
    try:
        return from_file({**info.training, "model": asdict(info.config)})
    except (TypeError, ValueError, RecursionError, UserError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: metadata that do not fit this code ({first_line(error)})") from error


def config_of(source: str | os.PathLike, runs: str | os.PathLike = "runs") -> Config:
    """The config that the weights were trained with, without reading them; arguments as for `from_checkpoint`."""
    if is_weights_file(source):
        return training_config(read_info(source), source)
    return load_config(find_run(str(source), Path(runs)))


def is_weights_file(source: str | os.PathLike) -> bool:
    return str(source).endswith(".safetensors") or os.path.isfile(source)


def _restore_newest(folder: Path, config: Config, which: str) -> tuple[nnx.GraphDef, TrainState, RunState]:
    """As `restore_state`; a run that is training may delete a checkpoint while it is read, and has then a newer one."""
    while True:
        checkpoints, step = open_checkpoint(folder, config, which)
        try:
            return restore_state(checkpoints, step, config)
        except UserError:
            if (checkpoints.folder / str(step)).exists():
                raise
