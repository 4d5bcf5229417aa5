"""Shared by the scripts: arguments that fail in one line, processes of their own, the shapes of training batches, and
result files that say where they come from."""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from omegaconf import OmegaConf

from data import commands
from data.loading import packed_bytes
from plstm.errors import run_script
from plstm.files import write_errors, write_file
from plstm.runs.local import local_settings
from plstm.tasks.base import Task
from plstm.training.environment import describe_environment
from plstm.training.meshes import Layout, make_mesh

ROOT = Path(__file__).resolve().parents[1]
IMAGE_TASKS = ("arrow", "imagenet")
# Variables of a process that is to have one core.
ONE_THREAD = {
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip(),
    "NPROC": "1",
    "OMP_NUM_THREADS": "1",
}


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class Parser(commands.Parser):
    """Ends bad arguments with one line; its help has the description as written, and the options' defaults."""

    def __init__(self, description: str | None, **options: Any):
        super().__init__(description=description, formatter_class=_Help, **options)


def add_source(parser: Parser) -> None:
    """The arguments that name weights, in a file or of a run."""
    parser.add_argument("weights", help="a .safetensors file, or a run's folder or id")
    parser.add_argument("--runs", type=Path, default=machine_folder("runs"), help="folder that ids are looked up in")


def positive(text: str) -> int:
    """An argument that is a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1")
    return int(text)


# ---------------------------------------------------------------------- processes
def start_python(command: list[str], root: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen:
    """A Python process in a group of its own: the terminal's Ctrl-C reaches this process only, which hands it on."""
    options = {"stdin": subprocess.DEVNULL, "process_group": 0, "env": os.environ | (environment or {})}
    return subprocess.Popen([sys.executable, *command], cwd=root, **options)


def stop(children: list[subprocess.Popen]) -> None:
    """Sends SIGINT, and again where the user sends it again, until all have ended."""
    while children:
        for child in children:
            child.send_signal(signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt):
            while children:
                children[0].wait()
                children.pop(0)


def run_resumable(main: Callable[[], int | None], said: str = "stopped; the same command resumes from here\n") -> None:
    """`run_script` of a `main` that saves where it is interrupted: by SIGINT, SIGTERM, or a terminal that closes."""
    heeded = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]  # nohup

    def interrupt(*_: Any) -> None:
        for each in heeded:
            signal.signal(each, signal.SIG_IGN)  # a terminal that closes hangs up twice
        raise KeyboardInterrupt

    def resumable() -> int | None:
        try:
            return main()
        except KeyboardInterrupt:
            print(said, end="", flush=True)
            return 130

    for each in heeded:
        signal.signal(each, interrupt)
    run_script(resumable)


# ---------------------------------------------------------------------- training batches, folders, results
def batch_shapes(task: Task) -> dict[str, Any]:
    """Shapes and dtypes of a training batch's arrays; image tasks do not need their data set for it."""
    config = task.config
    count = config.optim.batch_size
    if config.task in IMAGE_TASKS:
        side = config.data.size
        image = (count, packed_bytes(side)) if config.task == "arrow" else (count, side, side, 3)
        return {"image": jax.ShapeDtypeStruct(image, jnp.uint8), "label": jax.ShapeDtypeStruct((count,), jnp.int32)}
    layout = Layout(make_mesh(count, 1, jax.devices()[:1]))
    batch = next(task.batches(layout).from_step(0))
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch)


def planned_bytes(program: jax.stages.Compiled) -> int:
    """The memory that XLA plans for a compiled program on a device."""
    plan = program.memory_analysis()
    used = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return used - plan.alias_size_in_bytes


def machine_folder(name: str, root: Path = ROOT) -> Path:
    """The folder `runs` or `results`: where configs/local/default.yaml has it, else in the repository `root`."""
    return root / (OmegaConf.select(local_settings(), f"paths.{name}") or name)


def machine_data_root() -> str | None:
    """The folder of all data sets that configs/local/default.yaml has, for configs of files, which have none."""
    return OmegaConf.select(local_settings(), "data.root")


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Writes JSON with the command that was typed and where it ran; `results` may name these differently."""
    script = os.path.relpath(Path(sys.argv[0]).resolve(), ROOT)
    command = shlex.join(["python", script, *sys.argv[1:]])
    report = {"command": command, **describe_environment(ROOT), **results}
    with write_errors(path, "make it writable"):
        write_file(path, (json.dumps(report, indent=2) + "\n").encode())
