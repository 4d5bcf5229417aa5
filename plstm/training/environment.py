"""What a run was made with, and the host's memory.

Of environment variables only the XLA flags are told, others hold secrets. Freed memory is kept between steps, mappings
are counted, out-of-memory errors become one line.
"""

import contextlib
import ctypes
import glob
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import jax

import plstm
from plstm.errors import UserError, first_line
from plstm.files import core_count

CODE_PATHS = ("train.py", "eval.py", "plstm", "data", "configs", "scripts", "pyproject.toml", "requirements.lock")
DISTRIBUTIONS = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pillow", "tensorflow-datasets")
# M_MMAP_MAX, M_ARENA_MAX, M_TRIM_THRESHOLD and M_TOP_PAD of glibc's malloc.h: no allocation has its own mapping, all
# threads share one heap, which never shrinks and grows by at least 64 MiB.
MALLOC_OPTIONS = ((-4, 0), (-8, 1), (-1, -1), (-2, 2**26))
MAPPINGS, MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
# Settings of JAX that change numbers, with their defaults; others enter the record.
NUMERIC = {"jax_threefry_partitionable": True, "jax_default_prng_impl": "threefry2x32", "jax_enable_x64": False}
NUMERIC |= {"jax_default_matmul_precision": None}
CACHE, SHARED_CACHE = Path("~/.cache/plstm/jax"), ".compiled"
FULL = 0.8  # of the mappings that Linux allows; what is compiled until the next check must fit into the rest


def describe_environment(repo_root: str | Path) -> dict:
    """What is needed to repeat a run, as JSON; `commit` and `dirty` are None unless `repo_root` is that of a clone."""
    root = Path(repo_root).resolve()
    top, commit = _git(root, "rev-parse", "--show-toplevel"), _git(root, "rev-parse", "HEAD")
    # A copy without .git may lie inside another repository, whose commit says nothing about this code.
    if not top or Path(top).resolve() != root:
        commit = None
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *CODE_PATHS) if commit else None
    found = {name: next((d.version for d in metadata.distributions(name=name)), None) for name in DISTRIBUTIONS}
    device, cpuinfo = jax.devices()[0], Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    hardware = {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "device_count": jax.device_count(),  # over all processes
        "cpu_model": model[1].strip() if model else platform.processor() or platform.machine(),
        "cpu_cores": core_count(),
    }
    return {
        "commit": commit,
        "dirty": None if status is None else bool(status),  # a file under `CODE_PATHS` differs from the commit
        "versions": {"python": platform.python_version(), "plstm": plstm.__version__, **found},
        "hardware": hardware,
        "xla_flags": os.environ.get("XLA_FLAGS"),  # its threads change the last digits of sums
        "jax_settings": {name: value for name in NUMERIC if (value := getattr(jax.config, name)) != NUMERIC[name]},
    }


def _git(root: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


# ---------------------------------------------------------------------- memory
def keep_freed_memory() -> bool:
    """Makes malloc keep freed memory for the next allocation; returns whether it does. Call it before threads start.

    On CPUs the system must otherwise clear fresh pages in every step, a tenth to a third of its time. Nothing changes
    without glibc, with a JAX plugin for accelerators, or where the environment has MALLOC_... or mmap_max in
    GLIBC_TUNABLES.
    """
    is_set = "mmap_max" in os.environ.get("GLIBC_TUNABLES", "") or any(n.startswith("MALLOC_") for n in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if is_set or mallopt is None or metadata.entry_points(group="jax_plugins"):
        return False
    return all([mallopt(option, value) for option, value in MALLOC_OPTIONS])


def forget_programs_near_limit() -> bool:
    """Drops all compiled programs if the process has nearly as many mappings as Linux allows; returns whether it did.

    XLA maps every kernel of a CPU program; beyond vm.max_map_count (65,530) the process aborts, and batches of dozens
    of sizes come near. What is needed again is read from the compilation cache.
    """
    if not (MAPPINGS.exists() and MOST_MAPPINGS.exists()):  # another system
        return False
    if is_near := MAPPINGS.read_bytes().count(b"\n") >= FULL * int(MOST_MAPPINGS.read_text()):
        jax.clear_caches()
    return is_near


@contextlib.contextmanager
def memory_errors(batch_size: int, remedy: str) -> Iterator[None]:
    """Turns out-of-memory errors of JAX and Python into UserError, which names the batch size."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        where = "this machine" if isinstance(error, MemoryError) else "a device"
        if where == "a device" and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        each = -(-batch_size // jax.device_count())
        raise UserError(
            f"optim.batch_size={batch_size}: {where} ran out of memory, at {each:,} examples a device "
            f"({first_line(error)}); {remedy}"
        ) from error


# ---------------------------------------------------------------------- compiled programs
def keep_programs() -> None:
    """Keeps compiled programs on this machine, unless the user chose a place, so that a repeated run compiles none."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(CACHE.expanduser()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start compiles many small ones


def share_programs(runs: str | Path) -> None:
    """Keeps those of a run of several processes in the folder of runs instead, which all of them see.

    JAX lets process 0 alone write. Where the others did not find its programs, they would compile them again, and on
    GPUs wait for it to do its share of XLA's tuning, which it does not do as it has found its own.
    """
    if jax.process_count() > 1 and jax.config.jax_compilation_cache_dir == str(CACHE.expanduser()):
        jax.config.update("jax_compilation_cache_dir", str(Path(runs, SHARED_CACHE).absolute()))


@contextlib.contextmanager
def repair_cache() -> Iterator[None]:
    """Within it a damaged entry of the compilation cache is deleted, with one line; JAX would keep it, and warn."""
    show = warnings.showwarning

    def shown(message: Warning | str, *where: Any, **named: Any) -> None:
        found = re.match("Error reading persistent compilation cache entry for '(.+?)': ", str(message))
        if not found:
            return show(message, *where, **named)
        folder = Path(jax.config.jax_compilation_cache_dir)
        for path in folder.glob(f"{glob.escape(found[1])}-*"):  # of all programs of that name, which costs little
            path.unlink(missing_ok=True)
        print(f"{folder}: a damaged entry, {found[1]}, is compiled again", file=sys.stderr, flush=True)

    with mock.patch.object(warnings, "showwarning", shown):
        yield
