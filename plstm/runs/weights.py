"""The folders of runs, and trained weights, of a run or of a .safetensors file, as a model that is ready to use.

    model = from_checkpoint("model.safetensors")  # or a run: its folder, its id or the first digits of it
    logits = model(model.info.preprocessing(image)[None])

The file holds every parameter, and every running statistic of a batch norm, as float32 under its dotted name, such as
head.kernel; axis 0 of those under `groups` counts the groups of blocks. Its metadata, all of it text, are format
("plstm"), format_version, run (id), step, sha256 (of the tensors), and as JSON config (of the training; its `model` is
the architecture), sizes (that only the data know), class_names, and preprocessing (size in pixels, crop_ratio, mean and
deviation of pixels in [0, 1]; null for a model that takes no pictures). Reading executes nothing.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from flax import nnx
from jax.sharding import Sharding, SingleDeviceSharding
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field, Json, NonNegativeInt, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from data.files import check_writable, lock, write_errors, write_file
from plstm.config import Config, from_file, plain_config, portable_config, run_id
from plstm.errors import UserError, first_line, first_problem
from plstm.models import build_model, named_variables
from plstm.nn.maps import bicubic
from plstm.tasks import TASKS
from plstm.tasks.vision import Preprocessing
from plstm.training.checkpoints import Checkpoints
from plstm.training.optimizers import build_optimizer
from plstm.training.processes import is_main
from plstm.training.steps import TrainState, init_state, named_leaves
from plstm.training.tracking import choose_mode

MAX_NAME = 255  # letters of a file name that every file system takes
FORMAT, VERSION = "plstm", "3"
SAVED = nnx.Any(nnx.Param, nnx.BatchStat)
# Keys of `model` in which the two models may differ: they do not change the parameters' meaning.
MAY_DIFFER = ("image_size", "classes", "drop_path", "dropout", "dtype", "method", "gate_init", "remat")
POSITION, HEAD = "position", "head."


# ---------------------------------------------------------------------- folders
@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds a run's folder, made where missing, and removed where a UserError leaves it empty. Raises UserError where
    another process holds it, or it is read-only."""
    with write_errors(folder, "choose another paths.runs"):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "w")  # noqa: SIM115 (held until the end of the with block below)
    with file:
        try:
            lock(file, folder, wait=False)
        except BlockingIOError:
            told = f"{folder}: this run is being trained by another process; wait for it or stop it"
            raise UserError(told) from None
        try:
            yield
        except UserError:
            with contextlib.suppress(OSError):
                if [path.name for path in folder.iterdir()] == [".lock"]:  # refused before it began
                    shutil.rmtree(folder)
            raise


def check_places(config: Config) -> None:
    """Raises UserError, before anything is computed, where results cannot be written or W&B lets nobody in."""
    if not is_main():
        return  # writes nothing there
    choose_mode(config.logger.mode)
    check_writable(Path(config.paths.results, "runs"), f"paths.results={config.paths.results}")


def find_run(run: str, runs: Path, key: str = "run") -> Path:
    """The folder of a run given by its folder or the first digits of its id. Raises UserError naming the `key`."""
    if len(run) > MAX_NAME or not run.isprintable():
        raise UserError(f"{key}={run[:40]!r}...: no such run in {runs}; name its folder or id")
    if (Path(run) / ".hydra").is_dir():
        return Path(run)
    known = sorted(path.name for path in runs.glob("*") if (path / ".hydra").is_dir())
    found = [name for name in known if run and name.startswith(run)]
    if len(found) == 1:
        return runs / found[0]
    if found:
        raise UserError(f"{key}={run}: {len(found)} runs in {runs} begin so: {', '.join(found[:5])}")
    there_are = f"there are {', '.join(known[:8])}{', ...' * (len(known) > 8)}" if known else "train one first"
    again = "one that has a record is trained again by its command with paths.results=outputs/again"
    raise UserError(f"{key}={run}: no such run in {runs}; {there_are}; {again}")


def write_config(folder: Path, config: Config, overrides: list[str]) -> None:
    """Writes .hydra/config.yaml and overrides.yaml, once: a resumed run keeps those of its start."""
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        write_file(path.with_name("overrides.yaml"), yaml.safe_dump(overrides).encode())
        write_file(path, yaml.safe_dump(plain_config(config), sort_keys=False).encode())


def load_config(folder: Path) -> Config:
    """The checked config that the run in `folder` was started with. Raises UserError where it is missing or damaged."""
    path = folder / ".hydra" / "config.yaml"
    try:
        return from_file(OmegaConf.to_container(OmegaConf.load(path)))
    except (OSError, ValueError, TypeError, RecursionError, UserError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: not the config of a run ({str(error).splitlines()[0]})") from error


# ---------------------------------------------------------------------- weights
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
    if _is_file(source):
        graphdef, weights, info = _from_file(Path(source))
    else:
        folder = find_run(str(source), Path(runs))
        config = load_config(folder)
        graphdef, state, saved = _restore_newest(folder, config, checkpoint)
        names, preprocessing = tuple(saved["class_names"]), TASKS[config.task](config).preprocessing
        weights, info = state.weights, Info(run_id(config), saved["step"], names, preprocessing, saved["sizes"], config)
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
    if _is_file(source):
        return _info(Path(source), _open(Path(source)).metadata())[0].config
    return load_config(find_run(str(source), Path(runs)))


def _is_file(source: str | os.PathLike) -> bool:
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
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be written ({first_line(error)})") from error


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA256 of the tensors' bytes, little-endian float32, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].astype("<f4").tobytes())
    return digest.hexdigest()


def restore_state(
    checkpoints: Checkpoints, step: int, config: Config, sharding: Sharding | None = None
) -> tuple[nnx.GraphDef, TrainState, dict[str, Any]]:
    """The model's definition, the training state and the info of a run's checkpoint; no data are needed."""
    info, sharding = checkpoints.info(step), sharding or SingleDeviceSharding(jax.local_devices()[0])
    optimizer = build_optimizer(config.optim, lambda step: 0.0)
    model = nnx.eval_shape(lambda: build_model(config.model, 0, info["sizes"]))
    graphdef, state = nnx.graphdef(model), nnx.eval_shape(lambda: init_state(model, optimizer)[1])
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state)
    return graphdef, checkpoints.restore(step, like)[0], info


def open_checkpoint(folder: Path, config: Config, which: str, key: str = "checkpoint") -> tuple[Checkpoints, int]:
    """The checkpoints of a run, and the step of its "last" or "best". Raises UserError where there is none."""
    loop = config.loop
    if which == "best" and (loop.best_split is None or loop.save_every is not None):
        why = "loop.best_split is null" if loop.best_split is None else f"loop.save_every is {loop.save_every}"
        raise UserError(f"{key}=best: {folder} kept none ({why}); take {key}=last")
    checkpoints = Checkpoints(folder / "checkpoints", run_id(config), read_only=True)
    step = checkpoints.last_step() if which == "last" else checkpoints.best_step()
    if step is None:
        other = f", or take {key}=last" if checkpoints.last_step() else ""
        raise UserError(f"{key}={which}: {folder} has none; train the run until its first evaluation{other}")
    return checkpoints, step


def _from_file(path: Path) -> tuple[nnx.GraphDef, nnx.State, Info]:
    with _open(path) as file:
        info, sha256 = _info(path, file.metadata())
        try:
            model = nnx.eval_shape(lambda: build_model(_usable_here(info.config).model, 0, info.sizes))
        except KeyError as error:
            raise UserError(f"{path}: its metadata lack the size {error}; export it again") from error
        graphdef, weights = nnx.split(model, SAVED)
        wanted, found = named_variables(weights), set(file.keys())
        if extra := sorted(found - wanted.keys()):
            raise UserError(f"{path}: not of this model: it has a tensor {extra[0]}, which the model does not")
        tensors = {}
        for name, leaf in wanted.items():
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
        config, names, how = from_file(found.config), tuple(found.class_names), found.preprocessing
        classes, patch = (getattr(config.model, key, 0) for key in ("classes", "patch_size"))
        if names and classes and len(names) != classes:
            raise UserError(f"class_names: {len(names)}, and the model has {classes} classes")
        if how and patch and how.size % patch:
            raise UserError(f"preprocessing.size: {how.size}, and the model takes multiples of {patch}")
    except (ValidationError, TypeError, ValueError, RecursionError, UserError, OmegaConfBaseException) as error:
        why = first_problem(error, "key") if isinstance(error, ValidationError) else first_line(error)
        raise UserError(f"{path}: its metadata are damaged or of other code ({why})") from error
    return Info(found.run, found.step, names, how, found.sizes, config), found.sha256


# ---------------------------------------------------------------------- fine-tuning
def initial_id(init_from: str, runs: Path) -> str:
    """The id of the run that `init_from` names by id or folder: a new run's id must not follow from where it lies."""
    if not init_from:  # as experiments that fine-tune have it
        raise UserError("init_from: name the run to fine-tune, init_from=<its id or folder>")
    if _is_file(init_from):
        raise UserError(f"init_from={init_from}: takes a run, its id or folder, and not a file of weights")
    if re.fullmatch(r"[0-9a-f]{12}", init_from):
        return init_from
    return run_id(load_config(find_run(init_from, runs, "init_from")))


def initial_run(run: str, config: Config) -> tuple[Config, Checkpoints, int]:
    """The config and checkpoints of the run to fine-tune, and the step to start from. Raises UserError unless it has
    finished, with the model of `config`."""
    folder = find_run(run, Path(config.paths.runs), "init_from")
    trained = load_config(folder)
    theirs, ours = asdict(trained.model), asdict(config.model)
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
    # As the model does in evaluation at another size.
    params, changes = adapt(state.params, params, bicubic if config.model.family == "vil" else resize_bicubic)
    origin = "; ".join([f"the weights of {checkpoints.folder.parent}, step {step:,}", *changes])
    return {"params": params, "statistics": state.statistics}, origin


def resize_bicubic(cells: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """[Y, X, dim] -> [*grid, dim] as JAX resizes."""
    return jax.image.resize(cells, (*grid, cells.shape[-1]), "bicubic")


def adapt(found: Any, wanted: Any, resize: Callable = resize_bicubic) -> tuple[Any, list[str]]:
    """A tree like `wanted` of the trained parameters `found`, and words for what was not simply taken over.

    The position embedding [Y, X, dim] is resized by `resize`. If any parameter of the
    head has another number of classes (its last axis), the whole head stays as `wanted` has it. Any other difference
    raises UserError naming the parameter.
    """
    trained, fresh, leaves, changes = named_leaves(found), named_leaves(wanted), [], []
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
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves), changes
