"""What a run was made with: commit, versions, hardware, XLA's flags.

Of the process environment nothing but XLA_FLAGS, for it holds secrets.
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import jax

import plstm

CODE_PATHS = ("train.py", "eval.py", "plstm", "data", "configs", "scripts", "pyproject.toml", "requirements.lock")
DISTRIBUTIONS = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pillow", "tensorflow-datasets")


def describe_environment(repo_root: str | Path) -> dict:
    """Returns what is needed to make a run again, ready for JSON.

    Args:
      repo_root: the clone the run was started from.

    Returns:
      {"commit": str | None, "dirty": bool | None, "versions": {name: str | None}, "hardware": {...},
      "xla_flags": str | None}.
      `commit` and `dirty` are None where `repo_root` is not the top of a git clone or git does not answer.
      `dirty` says that the code differs from the commit: a file under `CODE_PATHS` is changed, gone, or new and
      not ignored. Results and run outputs lie elsewhere and leave it False.
      `hardware` holds JAX's platform, device_kind and device_count (over all processes), the cpu_model and
      cpu_cores, the number of cores this process may use. `xla_flags` is the variable XLA_FLAGS, None where it is
      not set: the number of threads in it, for one, changes the last digits of sums.
    """
    commit, dirty = _describe_commit(Path(repo_root).resolve())
    made = {"commit": commit, "dirty": dirty, "versions": _versions(), "hardware": _hardware()}
    return {**made, "xla_flags": os.environ.get("XLA_FLAGS")}


def _describe_commit(root: Path) -> tuple[str | None, bool | None]:
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD")
    # A copy without .git may lie inside someone else's repository, whose commit says nothing of this code.
    if not commit or not top or Path(top).resolve() != root:
        return None, None
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *CODE_PATHS)
    return commit, None if status is None else bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version(), "plstm": plstm.__version__}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _hardware() -> dict[str, str | int]:
    device = jax.devices()[0]
    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "device_count": jax.device_count(),
        "cpu_model": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
