"""What a run was made with: commit, versions, hardware, XLA flags; no other environment variable, they hold secrets."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import jax

import plstm

CODE_PATHS = ("train.py", "eval.py", "plstm", "data", "configs", "scripts", "pyproject.toml", "requirements.lock")
DISTRIBUTIONS = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pillow", "tensorflow-datasets")


def describe_environment(repo_root: str | Path) -> dict:
    """What is needed to repeat a run, as JSON: {"commit", "dirty", "versions", "hardware", "xla_flags"}.

    `commit` and `dirty`, that a file under `CODE_PATHS` differs from the commit, are None unless `repo_root` is the top
    of a git clone. The threads in `xla_flags`, the variable XLA_FLAGS, change the last digits of sums.
    """
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
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }
    return {
        "commit": commit,
        "dirty": None if status is None else bool(status),
        "versions": {"python": platform.python_version(), "plstm": plstm.__version__, **found},
        "hardware": hardware,
        "xla_flags": os.environ.get("XLA_FLAGS"),
    }


def _git(root: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
