"""What a run was made with; out-of-memory errors in one line; where compiled programs are kept.

Records XLA_FLAGS, NPROC and no other environment variable, since those may hold secrets.
"""

import contextlib
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NotRequired

import jax
from typing_extensions import TypedDict

import plstm
from plstm.errors import UserError, first_line, print_once
from plstm.files import core_count

CODE_PATHS = ("train.py", "eval.py", "plstm", "data", "configs", "scripts", "pyproject.toml", "requirements.lock")
DISTRIBUTIONS = ["jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pillow", "tensorflow-datasets"]
DISTRIBUTIONS += ["scipy", "scikit-learn"]  # which draw series and split graphs
# Settings of JAX that change numbers, with their defaults; others enter the record.
NUMERIC = {"jax_threefry_partitionable": True, "jax_default_prng_impl": "threefry2x32", "jax_enable_x64": False}
NUMERIC |= {"jax_default_matmul_precision": None}
VECTORS = ("avx", "fma", "amx", "f16c", "asimd", "sve")  # how the names of vector instructions begin
CACHE = os.path.expanduser("~/.cache/plstm/jax")  # with its ~ where this user has no home
SHARED_CACHE = ".compiled"


class Hardware(TypedDict):
    """The accelerator as JAX names it, and the processor beside it."""

    platform: str
    device_kind: str
    device_count: int  # over all processes
    cpu_model: str
    cpu_family: NotRequired[str]  # vendor, family, model and stepping
    cpu_vectors: NotRequired[str]  # vector instructions
    cpu_cores: int


class Environment(TypedDict):
    """What is needed to repeat a run."""

    commit: str | None  # None where git did not know
    dirty: bool | None  # a file under `CODE_PATHS` differs from the commit
    versions: dict[str, str | None]
    hardware: Hardware
    xla_flags: NotRequired[str | None]  # its threads change the last digits of sums
    jax_settings: NotRequired[dict[str, Any]]  # those that change numbers, where they are not the defaults


def describe_environment(repo_root: str | Path) -> dict[str, Any]:
    """An `Environment`, which is JSON; `commit` and `dirty` are None unless `repo_root` is that of a clone."""
    root = Path(repo_root).resolve()
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD")
    # A copy without .git may lie inside another repository, whose commit says nothing about this code.
    if not top or Path(top).resolve() != root:
        commit = None
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *CODE_PATHS) if commit else None
    found = {name: next((d.version for d in metadata.distributions(name=name)), None) for name in DISTRIBUTIONS}
    settings = {name: value for name in NUMERIC if (value := getattr(jax.config, name)) != NUMERIC[name]}
    if "NPROC" in os.environ:  # threads of XLA, which change the last digits of sums
        settings["NPROC"] = os.environ["NPROC"]
    device = jax.devices()[0]
    hardware = {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "device_count": jax.device_count(),
        **_describe_processor(),
        "cpu_cores": core_count(),
    }
    return {
        "commit": commit,
        "dirty": None if status is None else bool(status),
        "versions": {"python": platform.python_version(), "plstm": plstm.__version__, **found},
        "hardware": hardware,
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "jax_settings": settings,
    }


def _describe_processor() -> dict[str, str]:
    """Its names, and the vector instructions that XLA may compile for, on which the rounding of sums depends."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found: dict[str, str] = dict(re.findall(r"^(\w[\w ]*?)\s*: (.*)$", text, re.MULTILINE))
    flags = found.get("flags", found.get("Features", "")).split()
    return {
        "cpu_model": found.get("model name") or platform.processor() or platform.machine(),
        "cpu_family": " ".join(found[key] for key in ("vendor_id", "cpu family", "model", "stepping") if key in found),
        "cpu_vectors": " ".join(flag for flag in flags if flag.startswith(VECTORS)),
    }


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    # A hook's GIT_DIR names another repository.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=own).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        if (root / ".git").exists():
            why = (getattr(error, "stderr", None) or str(error)).strip() or type(error).__name__
            print_once(f"{root}: records will not name its commit, which git does not tell ({why.splitlines()[0]})")
        return None


def check_devices() -> None:
    """Raises UserError if JAX does not find the devices that it was asked for."""
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        asked = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}"
        raise UserError(f"{asked}: JAX finds no such devices ({first_line(error)})") from error


# ---------------------------------------------------------------------- memory
@contextlib.contextmanager
def memory_errors(batch_size: int, remedy: str, key: str = "") -> Iterator[None]:
    """Turns out-of-memory errors of JAX and Python into UserError, with what to do; key: of the config, where the
    user set the batch size there."""
    try:
        yield
    except MemoryError as error:  # of the data, maybe, or of pictures
        what = f"this machine ran out of memory ({first_line(error)})"
        raise UserError(f"{what}; free some, take less data, or {remedy}") from error
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        each = -(-batch_size // jax.device_count())
        what = f"a device ran out of memory, at {each:,} examples a device ({first_line(error)})"
        raise UserError(f"{key}={batch_size}: {what}; {remedy}" if key else f"{what}; {remedy}") from error


# ---------------------------------------------------------------------- compiled programs
def keep_programs() -> None:
    """Keeps compiled programs on this machine, unless the user chose a place, so that a repeated run compiles none. A
    line says if they cannot be written there; those that are there are read."""
    if (folder := _cache_folder()) is None:
        folder = CACHE
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start compiles many small ones
    nearest = next(place for place in map(str, (Path(folder), *Path(folder).parents)) if os.path.exists(place))
    if folder.startswith("~") or not os.path.isdir(nearest) or not os.access(nearest, os.W_OK):
        print_once(f"{folder}: cannot be written, so that programs are compiled anew; set JAX_COMPILATION_CACHE_DIR")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
        jax.config.update("jax_enable_compilation_cache", os.path.isdir(folder))


def share_programs(runs: str | Path) -> None:
    """Keeps the compiled programs of a run of several processes in the folder of runs, which all processes see.

    Only process 0 writes the cache. A process that misses it would recompile and, on GPUs, wait for process 0 to join
    XLA's autotuning, which a cache hit skips: a deadlock. So the cache must be shared.
    """
    if jax.process_count() > 1 and _cache_folder() == CACHE:
        jax.config.update("jax_compilation_cache_dir", str(Path(runs, SHARED_CACHE).absolute()))


def _cache_folder() -> str | None:
    return jax.config.values["jax_compilation_cache_dir"]
