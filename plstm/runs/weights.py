"""Trained weights, of a run or of a .safetensors file, as a model that is ready to use.

    model = from_checkpoint("model.safetensors")  # or a run: its folder, its id or the first digits of it
    logits = model(model.info.preprocessing(image)[None])

The file holds every parameter, and every running statistic of a batch norm, as float32 under its dotted name, such as
head.kernel; axis 0 of those under `groups` counts the groups of blocks. Its metadata, all of it text, are format
("plstm"), format_version, run (id), step, sha256 (of the tensors), and as JSON config (of the training; its `model` is
the architecture), sizes (that only the data know), class_names, and preprocessing (size in pixels, crop_ratio, mean and
deviation of pixels in [0, 1]; null for a model that takes no pictures). Reading executes nothing.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field, Json, NonNegativeInt, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from plstm.config import Config
from plstm.errors import UserError, first_line, first_problem
from plstm.files import write_file
from plstm.models import build_model, named_variables
from plstm.runs.compose import from_file
from plstm.runs.folders import find_run, load_config, open_checkpoint, restore_state
from plstm.runs.identity import portable_config, run_id
from plstm.tasks import TASKS
from plstm.tasks.vision import Preprocessing
from plstm.training.steps import TrainState

FORMAT = "plstm"
VERSION = "3"
SAVED = nnx.Any(nnx.Param, nnx.BatchStat)


@dataclass(frozen=True)
class Info:
    """Where a model's weights come from, and what it needs to be used."""

    run: str  # its id
    step: int  # how many it had taken
    class_names: tuple[str, ...]  # the meaning of the logits, in order
    preprocessing: Preprocessing | None  # from a picture to what the model takes
    sizes: Mapping[str, int] = field(hash=False)  # see `plstm.models.Family`; nnx.jit needs the rest to be hashable
    config: Config = field(compare=False, repr=False)  # config.model is the architecture


class _Metadata(BaseModel, strict=True):
    """What a file has beside its tensors."""

    run: str
    step: Annotated[NonNegativeInt, Field(strict=False)]
    sha256: str
    config: Json[dict[str, Any]]
    sizes: Json[dict[str, NonNegativeInt]]
    class_names: Json[list[str]]
    preprocessing: Json[Preprocessing | None]


def from_checkpoint(source: str | os.PathLike, *, runs: str | os.PathLike = "runs", checkpoint: str = "last") -> Any:
    """The model with trained weights, deterministic unless called with a key; its `info` is an `Info`.

    source: a .safetensors file, or a run: its folder, its id or the first digits of it, in the folder `runs`.
    checkpoint: "last" or "best" of a run. Raises UserError where there is no such file or run, or it is damaged.
    """
    if is_weights_file(source):
        graphdef, weights, info = _from_file(Path(source))
    else:
        folder = find_run(str(source), Path(runs))
        config = load_config(folder)
        graphdef, state, saved = _restore_newest(folder, config, checkpoint)
        names = tuple(saved["class_names"])
        preprocessing = TASKS[config.task](config).preprocessing
        weights = state.weights
        info = Info(run_id(config), saved["step"], names, preprocessing, saved["sizes"], config)
    model = nnx.merge(graphdef, weights)
    model.info = info
    return model


def _restore_newest(folder: Path, config: Config, which: str) -> tuple[nnx.GraphDef, TrainState, dict[str, Any]]:
    """As `restore_state`; a run that is training may delete a checkpoint while it is read, and has then a newer one."""
    while True:
        checkpoints, step = open_checkpoint(folder, config, which)
        try:
            return restore_state(checkpoints, step, _usable_here(config))
        except UserError:
            if (checkpoints.folder / str(step)).exists():
                raise


def config_of(source: str | os.PathLike, runs: str | os.PathLike = "runs") -> Config:
    """The config that the weights were trained with, without reading them; arguments as for `from_checkpoint`."""
    if is_weights_file(source):
        return _info(Path(source), _open(Path(source)).metadata())[0].config
    return load_config(find_run(str(source), Path(runs)))


def is_weights_file(source: str | os.PathLike) -> bool:
    return str(source).endswith(".safetensors") or os.path.isfile(source)


def save_safetensors(model: Any, path: str | os.PathLike) -> None:
    """Writes a model of `from_checkpoint`, whole or not at all. Raises UserError where it cannot be written."""
    info = model.info
    metadata = {
        "format": FORMAT,
        "format_version": VERSION,
        "run": info.run,
        "step": str(info.step),
        "config": json.dumps(portable_config(info.config)),
        "sizes": json.dumps(dict(info.sizes)),
        "class_names": json.dumps(info.class_names),
        "preprocessing": json.dumps(info.preprocessing and asdict(info.preprocessing)),
    }
    named = named_variables(nnx.state(model, SAVED))
    tensors = {name: np.ascontiguousarray(leaf[...], np.float32) for name, leaf in named.items()}
    metadata["sha256"] = _digest(tensors)
    try:
        write_file(Path(path), save(tensors, metadata))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({first_line(error)})") from error


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA256 of the tensors' bytes, little-endian float32, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].astype("<f4").tobytes())
    return digest.hexdigest()


def _from_file(path: Path) -> tuple[nnx.GraphDef, nnx.State, Info]:
    with _open(path) as file:
        info, sha256 = _info(path, file.metadata())
        try:
            model = nnx.eval_shape(lambda: build_model(_usable_here(info.config).model, 0, info.sizes))
        except KeyError as error:
            raise UserError(f"{path}: its metadata lack the size {error}; export it again") from error
        graphdef, weights = nnx.split(model, SAVED)
        expected = named_variables(weights)
        found = set(file.keys())
        if extra := sorted(found - expected.keys()):
            raise UserError(f"{path}: not of this model: it has a tensor {extra[0]}, which the model does not")
        tensors = {}
        for name, leaf in expected.items():
            if name not in found:
                raise UserError(f"{path}: not of this model: it has no tensor {name}")
            tensor = file.get_slice(name)
            there = (tensor.get_dtype(), tuple(tensor.get_shape()))
            if there != ("F32", leaf.shape):
                both = "{} {} there and F32 {} here".format(*there, leaf.shape)
                raise UserError(f"{path}: not of this model: tensor {name} is {both}")
            tensors[name] = file.get_tensor(name)
            if not np.isfinite(tensors[name]).all():
                raise UserError(f"{path}: tensor {name} has values that are not finite; export another checkpoint")
            leaf.set_value(jnp.asarray(tensors[name]))
        if _digest(tensors) != sha256:
            raise UserError(f"{path}: its tensors have changed since they were written; export it again")
    return graphdef, weights, info


def _usable_here(config: Config) -> Config:
    """What was trained by a GPU's kernels serves elsewhere, too: all methods compute the same function."""
    if getattr(config.model, "method", None) == "fused" and jax.default_backend() != "gpu":
        return replace(config, model=replace(config.model, method="auto"))
    return config


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({first_line(error)})") from error


def _info(path: Path, metadata: Mapping[str, str] | None) -> tuple[Info, str]:
    """What a file says of its weights, and their digest."""
    metadata = metadata or {}
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path}: made by another program; write one with scripts/export.py")
    if (version := metadata.get("format_version")) != VERSION:
        raise UserError(f"{path}: has format version {version}, and this code reads {VERSION}; export it again")
    try:
        found = _Metadata.model_validate(metadata)
        config = from_file(found.config)
        names = tuple(found.class_names)
        how = found.preprocessing
        classes, patch = (getattr(config.model, key, 0) for key in ("classes", "patch_size"))
        if names and classes and len(names) != classes:
            raise UserError(f"class_names: {len(names)}, and the model has {classes} classes")
        if how and patch and how.size % patch:
            raise UserError(f"preprocessing.size: {how.size}, and the model takes multiples of {patch}")
    except (ValidationError, TypeError, ValueError, RecursionError, UserError, OmegaConfBaseException) as error:
        why = first_problem(error, "key") if isinstance(error, ValidationError) else first_line(error)
        raise UserError(f"{path}: its metadata are damaged or of other code ({why})") from error
    return Info(found.run, found.step, names, how, found.sizes, config), found.sha256
