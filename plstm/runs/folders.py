"""The folders of runs: locking one, finding one, its config."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data.files import write_errors, write_file
from plstm.config import Config, from_file, plain_config
from plstm.errors import UserError

MAX_NAME = 255  # letters of a file name that every file system takes


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds a run's folder, made where missing. Raises UserError where another process does, or it is read-only."""
    with write_errors(folder, "choose another paths.runs"):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "w")  # noqa: SIM115 (held until the end of the with block below)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            told = f"{folder}: this run is being trained by another process; wait for it or stop it"
            raise UserError(told) from None
        yield


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
    listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    raise UserError(f"{key}={run}: no such run in {runs}; " + (f"there are {listed}" if known else "train one first"))


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
    except (OSError, ValueError, TypeError, UserError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: not the config of a run ({str(error).splitlines()[0]})") from error
