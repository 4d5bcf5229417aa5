"""The folders of runs: their lock, config and checkpoints."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import yaml
from flax import nnx
from jax.sharding import Sharding, SingleDeviceSharding
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from plstm.config import Config
from plstm.errors import UserError, first_line, printable
from plstm.files import check_writable, locked, write_errors, write_file
from plstm.models import build_model
from plstm.models.weights import usable_here
from plstm.runs.compose import from_file, read_yaml
from plstm.runs.identity import run_id, run_name
from plstm.runs.overrides import CONFIGS
from plstm.training.checkpoints import Checkpoints
from plstm.training.optimizers import build_optimizer
from plstm.training.processes import is_main
from plstm.training.state import RunState
from plstm.training.steps import TrainState, init_state
from plstm.training.tracking import choose_mode

OUTPUTS = CONFIGS.parent / "outputs"
TO_TRAIN_AGAIN = "paths.results=outputs/again paths.runs=outputs/again/runs"  # beside a recorded run, with its command
# Where `make demo`, `debug=smoke` and runs that are trained again put theirs.
OTHER_RUNS = (OUTPUTS / "demo/checkpoints", OUTPUTS / "runs", OUTPUTS / "again/runs")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds a run's folder, made where missing, and removed where a UserError leaves it empty. Raises UserError where
    another process holds it, or it is read-only."""
    with contextlib.ExitStack() as stack:
        with write_errors(folder, "choose another paths.runs"):
            folder.mkdir(parents=True, exist_ok=True)
            check_links(folder)
            if not stack.enter_context(locked(folder / ".lock", wait=False)):
                raise UserError(f"{folder}: another process trains or evaluates this run; wait for it or stop it")
        try:
            yield
        except UserError:
            with contextlib.suppress(OSError):
                if [path.name for path in folder.iterdir()] == [".lock"]:  # refused before it began
                    shutil.rmtree(folder)
            raise


def check_links(folder: Path) -> None:
    """Raises UserError for a symbolic link, at any depth, that leads out of a run's folder: to write there would change
    other files. The folder itself may be one."""
    whole = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and os.path.commonpath([whole, os.path.realpath(path)]) != whole:
                raise UserError(f"{path}: a symbolic link that leads out of the run's folder; remove it")
        if Path(parent) == folder / "wandb":
            folders.clear()  # W&B links to its logs, and writes into a new folder each time


def check_places(config: Config) -> None:
    """Raises UserError, before anything is computed, if the results folder is not writable or W&B not logged in."""
    if not is_main():
        return  # writes nothing there
    choose_mode(config.logger.mode)
    check_writable(Path(config.paths.results, "runs"), f"paths.results={config.paths.results}")


def find_run(run: str, runs: Path, key: str = "run") -> Path:
    """The folder of a run given by its folder or the first digits of its id, in `runs` or among the demo's runs; where
    one run is in several, that in `runs`. Raises UserError naming the `key`."""
    if os.path.isdir(os.path.join(run, ".hydra")):
        return Path(run)
    places = [runs, *(place for place in OTHER_RUNS if place != runs.resolve())]
    known = [path for place in places for path in sorted(place.glob("*")) if (path / ".hydra").is_dir()]
    found: dict[str, Path] = {}
    for path in known:
        if run and path.name.startswith(run):
            found.setdefault(path.name, path)
    if run in found:
        return found[run]
    if len(found) == 1:
        (only,) = found.values()
        return only
    if found:
        names = ", ".join(map(str, [*found.values()][:5]))
        raise UserError(f"{key}={run}: {len(found)} runs begin so: {names}")
    newest = sorted(known, key=lambda path: path.stat().st_mtime, reverse=True)
    names = ", ".join(_id_and_name(path) for path in newest[:8])
    there_are = f"there are {names}{', ...' * (len(known) > 8)}" if known else "train one first"
    again = f"one that has a record is trained again by its command with {TO_TRAIN_AGAIN}"
    if key == "init_from":
        again += "; for the weights of a file give its path"
    raise UserError(f"{key}={printable(run)[:200]}: no such run in {runs}; {there_are}; {again}")


def _id_and_name(folder: Path) -> str:
    """A run's id and, where its config can be read, its name."""
    with contextlib.suppress(UserError):
        return f"{folder.name} ({run_name(load_config(folder))})"
    return folder.name


def write_config(folder: Path, config: Config, overrides: list[str]) -> None:
    """Writes .hydra/config.yaml and overrides.yaml, once: a resumed run keeps those of its start."""
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        write_file(path.with_name("overrides.yaml"), yaml.safe_dump(overrides).encode())
        # OmegaConf, which reads it, also takes 12e456 for a number, which yaml.safe_dump leaves without quotes.
        write_file(path, OmegaConf.to_yaml(OmegaConf.structured(config), resolve=True).encode())


def load_config(folder: Path) -> Config:
    """The checked config that the run in `folder` was started with. Raises UserError where it is missing or damaged, or
    `check_links` does."""
    path = folder / ".hydra" / "config.yaml"
    check_links(folder)
    try:
        return from_file(read_yaml(path))
    except (OSError, ValueError, TypeError, UserError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: not the config of a run ({first_line(error)})") from error


def load_overrides(folder: Path) -> list[str]:
    """The overrides that the run in `folder` was started with; none where they cannot be read."""
    try:
        return [str(word) for word in read_yaml(folder / ".hydra" / "overrides.yaml")]
    except (OSError, TypeError, UserError):
        return []


def open_checkpoint(folder: Path, config: Config, which: str, key: str = "checkpoint") -> tuple[Checkpoints, int]:
    """The checkpoints of a run, and the step of its "last" or "best". Raises UserError where there is none."""
    if which not in ("last", "best"):
        raise UserError(f"{key}={which}: choose last or best")
    if which == "best" and config.loop.best_split is None:
        raise UserError(f"{key}=best: {folder} has none (loop.best_split is null); take {key}=last")
    checkpoints = Checkpoints(folder / "checkpoints", run_id(config), read_only=True)
    step = checkpoints.last_step()
    missing = f"{key}={which}: {folder} has none; train the run until its first evaluation"
    if step is None:
        raise UserError(missing)
    if which == "best":
        best = RunState.from_json(checkpoints.info(step), folder).best
        if best is None:
            raise UserError(f"{missing}, or take {key}=last")
        step = best["step"]
        if step != checkpoints.best_step():  # with loop.save_every, not each evaluation is saved
            raise UserError(f"{key}=best: {folder} saved none at its best evaluation, step {step:,}; take {key}=last")
    return checkpoints, step


def restore_state(
    checkpoints: Checkpoints, step: int, config: Config, sharding: Sharding | None = None
) -> tuple[nnx.GraphDef, TrainState, RunState]:
    """The model's definition and all of a run's checkpoint; no data are needed."""
    run = RunState.from_json(checkpoints.info(step), checkpoints.folder.parent)
    sharding = sharding or SingleDeviceSharding(jax.local_devices()[0])
    optimizer = build_optimizer(config.optim, lambda step: 0.0)
    model = nnx.eval_shape(lambda: build_model(usable_here(config.model), 0, run.sizes))
    graphdef = nnx.graphdef(model)
    state = nnx.eval_shape(lambda: init_state(model, optimizer))
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state)
    return graphdef, checkpoints.restore(step, like)[0], run
