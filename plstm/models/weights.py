"""Weights in a file, and the model that they belong to.

    model = load("model.safetensors")
    logits = model(model.info.preprocessing(picture)[None])
    save(model, "copy.safetensors")

A file holds every parameter, and every running statistic of a batch norm, as float32 under its dotted name, such as
head.kernel; axis 0 of those under `groups` and `pairs` counts the groups of blocks. Its metadata, all of it text, are
format ("plstm"), format_version, sha256 (of the tensors), and as JSON model (the architecture), sizes (that only the
data know), class_names, and preprocessing (size in pixels, crop_ratio, mean and deviation of pixels in [0, 1]; null
where it is not known). Of weights that a run trained they also have run (its id), step, and training (JSON: the run's
config but for the model); of others these are "", 0 and null. Reading executes nothing.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from pydantic import BaseModel, Field, Json, StringConstraints, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from plstm.errors import UserError, first_line, first_problem
from plstm.files import write_file
from plstm.limits import Count, Natural
from plstm.models.registry import MODELS, Info, build_model, check_sizes, named_variables
from plstm.preprocessing import Preprocessing

FORMAT = "plstm"
VERSION = "4"
SAVED = nnx.Any(nnx.Param, nnx.BatchStat)


class _Metadata(BaseModel, strict=True):
    """What a file has beside its tensors."""

    run: Annotated[str, StringConstraints(pattern="^([0-9a-f]{12})?$")]
    step: Annotated[Natural, Field(strict=False)]
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    model: Json[dict[str, Any]]
    training: Json[dict[str, Any] | None]
    sizes: Json[dict[str, Count]]
    class_names: Json[tuple[str, ...]]
    preprocessing: Json[Preprocessing | None]


def load(path: str | os.PathLike) -> Any:
    """The model of a .safetensors file with its weights, deterministic unless called with a key; its `info` is an
    `Info`. Raises UserError naming the file where it is missing, damaged or not of this form."""
    path = Path(path)
    with _open(path) as file:
        info = _info(path, file.metadata())
        graphdef, weights = nnx.split(_empty_model(info), SAVED)
        expected = named_variables(weights)
        _check_names(path, set(file.keys()), expected)
        sha256 = _digest(_fill(path, file, expected))
    if sha256 != info.sha256:
        raise UserError(f"{path}: its tensors have changed since they were written; write it again")
    model = nnx.merge(graphdef, weights)
    model.info = info
    return model


def save(
    model: Any,
    path: str | os.PathLike,
    *,
    class_names: Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
) -> None:
    """Writes a model of `build_model` or `load` to a .safetensors file, whole or not at all.

    class_names, preprocessing: instead of those of `model.info`. The run that the weights came from is left out where
    they have changed since. Raises UserError where the file cannot be written, `load` would refuse it, or the model
    does not know its config.
    """
    path = Path(path)
    info: Info | None = getattr(model, "info", None)
    if info is None:
        raise UserError(f"{path}: this model does not know its config; make it by plstm.models.build_model")
    tensors = _tensors(model)
    if (sha256 := _digest(tensors.values())) != info.sha256:
        info = replace(info, run="", step=0, training=None, sha256=sha256)
    names = info.class_names if class_names is None else tuple(class_names)
    info = replace(info, class_names=names, preprocessing=preprocessing or info.preprocessing)
    _info(path, _metadata(info))  # which `load` will read
    expected = named_variables(nnx.state(_empty_model(info), SAVED))
    _check_names(path, tensors.keys(), expected)
    for name, tensor in tensors.items():
        _check_shape(path, name, ("F32", tensor.shape), expected[name].shape)
        _check_finite(path, name, tensor)
    try:
        write_file(path, to_bytes(tensors, _metadata(info)))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({first_line(error)})") from error


def read_info(path: str | os.PathLike) -> Info:
    """What a file says of its model, without reading its weights. Raises UserError as `load` does."""
    with _open(Path(path)) as file:
        return _info(Path(path), file.metadata())


def weights_digest(model: Any) -> str:
    """SHA256 of a model's weights, in hexadecimal digits."""
    return _digest(_tensors(model).values())


def usable_here(config: Any) -> Any:
    """The config of a model for this machine: all methods compute the same function, and one runs on GPUs alone."""
    if getattr(config, "method", None) == "fused" and jax.default_backend() != "gpu":
        return replace(config, method="auto")
    return config


# ---------------------------------------------------------------------- tensors
def _tensors(model: Any) -> dict[str, np.ndarray]:
    named = named_variables(nnx.state(model, SAVED))
    return {name: np.ascontiguousarray(leaf[...], np.float32) for name, leaf in sorted(named.items())}


def _digest(tensors: Iterable[np.ndarray]) -> str:
    """SHA256 of the bytes, little-endian float32, of tensors in the order of their names."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(np.ascontiguousarray(tensor, "<f4").data)
    return digest.hexdigest()


def _fill(path: Path, file: Any, variables: Mapping[str, nnx.Variable]) -> Iterator[np.ndarray]:
    """Gives the variables their tensors of a file, and yields these one by one, in the order of their names."""
    for name, variable in sorted(variables.items()):
        part = file.get_slice(name)
        _check_shape(path, name, (part.get_dtype(), tuple(part.get_shape())), variable.shape)
        tensor = file.get_tensor(name)
        _check_finite(path, name, tensor)
        variable.set_value(jnp.asarray(tensor))
        yield tensor


def _empty_model(info: Info) -> Any:
    """The model of a file without numbers: shapes alone."""
    return nnx.eval_shape(lambda: build_model(usable_here(info.config), 0, info.sizes))


def _check_names(path: Path, found: Any, expected: Any) -> None:
    if extra := sorted(found - expected.keys()):
        raise UserError(f"{path}: not of this model: it has a tensor {extra[0]}, which the model does not")
    if missing := sorted(expected.keys() - found):
        raise UserError(f"{path}: not of this model: it has no tensor {missing[0]}")


def _check_shape(path: Path, name: str, found: tuple[str, tuple[int, ...]], shape: tuple[int, ...]) -> None:
    if found != ("F32", shape):
        both = "{} {} there and F32 {} here".format(*found, shape)
        raise UserError(f"{path}: not of this model: tensor {name} is {both}")


def _check_finite(path: Path, name: str, tensor: np.ndarray) -> None:
    if not np.isfinite(tensor).all():
        raise UserError(f"{path}: tensor {name} has values that are not finite; take another checkpoint")


# ---------------------------------------------------------------------- metadata
def _open(path: Path) -> Any:
    if path.is_dir():
        raise UserError(f"{path}: a folder; a run's weights: python scripts/export.py {path} model.safetensors")
    try:
        return safe_open(path, framework="np")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({first_line(error)})") from error


def _metadata(info: Info) -> dict[str, str]:
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "run": info.run,
        "step": str(info.step),
        "sha256": info.sha256,
        "model": json.dumps(asdict(info.config)),
        "training": json.dumps(info.training),
        "sizes": json.dumps(dict(info.sizes)),
        "class_names": json.dumps(info.class_names),
        "preprocessing": json.dumps(info.preprocessing and asdict(info.preprocessing)),
    }


def _info(path: Path, metadata: Mapping[str, str] | None) -> Info:
    metadata = metadata or {}
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path}: made by another program; write one with plstm.save or scripts/export.py")
    if (version := metadata.get("format_version")) != VERSION:
        raise UserError(f"{path}: has format version {version}, and this code reads {VERSION}; write it again")
    try:
        found = _Metadata.model_validate(metadata)
        config = _architecture(found.model)
        info = Info(config, found.sizes, found.class_names, found.preprocessing, found.run, found.step)
        _check_use(info)
    except ValidationError as error:
        raise UserError(f"{path}: metadata that do not fit this code ({first_problem(error, 'key')})") from error
    except (RecursionError, UserError) as error:
        raise UserError(f"{path}: metadata that do not fit this code ({first_line(error)})") from error
    return replace(info, training=found.training, sha256=found.sha256)


def _check_use(info: Info) -> None:
    """Raises UserError where a size is missing, or class names or preprocessing are of another model."""
    check_sizes(info.config, info.sizes)
    names = info.class_names
    how = info.preprocessing
    classes, patch = (getattr(info.config, key, 0) for key in ("classes", "patch_size"))
    if names and classes and len(names) != classes:
        raise UserError(f"class_names: {len(names)}, and the model has {classes} classes")
    if how and patch and how.size % patch:
        raise UserError(f"preprocessing.size: {how.size}, and the model takes multiples of {patch}")


def _architecture(plain: dict[str, Any]) -> Any:
    """The checked config of a model; keys that are missing have their defaults."""
    family = plain.get("family")
    if not isinstance(family, str) or family not in MODELS:
        raise UserError(f"model.family={family!r}: choose one of {', '.join(MODELS)}")
    schema = MODELS[family].config
    if unknown := sorted(plain.keys() - {key.name for key in fields(schema)}):
        raise UserError(f"model.{unknown[0]}: not a key of family {family}")
    try:
        config: Any = TypeAdapter(schema).validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        raise UserError(first_problem(error, "model key")) from error
    config.check()
    return config
