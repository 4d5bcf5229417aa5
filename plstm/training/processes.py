"""Runs of several processes: process 0 prints, logs and writes; all of them read, compute and save checkpoints."""

import os
import re
import sys
import threading
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from plstm.errors import UserError
from plstm.training.meshes import Layout

VARIABLES = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")  # each also with JAX_ before it
STEPS_LATE = 2  # a vote is counted this many steps later, when its result has arrived anyway


def start_processes(timeout: float) -> None:
    """Connects this process with the others of its run, if there are others; call it before anything else of JAX.

    There are if `VARIABLES` are set, or in a Slurm step (srun) of several tasks. After `timeout` seconds without the
    others the program ends with one line and status 2. Raises UserError for variables that are missing or wrong.
    """
    arguments = _from_variables(os.environ) or _from_slurm(os.environ)
    if arguments is None or jax.distributed.is_initialized():
        return
    process = "process {process_id} of {num_processes}".format(**arguments)
    where = arguments.get("coordinator_address", "Slurm's first node")
    print(f"{process}: waiting for the others at {where}", flush=True)

    def give_up() -> None:  # JAX itself would abort the program with a stack trace
        message = f"{process}: the others did not come to {where} in {timeout:g} seconds"
        print(f"error: {message}; start all of them, or raise mesh.timeout", file=sys.stderr, flush=True)
        os._exit(2)

    watch = threading.Timer(timeout, give_up)
    watch.daemon = True
    watch.start()
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM instead of us
    jax.distributed.initialize(**arguments, initialization_timeout=int(timeout) + 60)
    watch.cancel()


def _from_variables(environment: Mapping[str, str]) -> dict[str, Any] | None:
    values = {name: environment.get(name) or environment.get(f"JAX_{name}", "") for name in VARIABLES}
    address, processes, number = values.values()
    if not address:
        return None
    found = re.fullmatch(r".+:\d+ (\d+) (\d+)", f"{address} {processes} {number}")
    if not found or int(found[2]) >= int(found[1]):
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        raise UserError(f"{given}: set all three or none: host:port of process 0, and two numbers, the last smaller")
    arguments = dict(coordinator_address=address, num_processes=int(processes), process_id=int(number))
    return arguments | {"cluster_detection_method": "deactivate"}


def _from_slurm(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """JAX finds the address; but it would give each process one GPU even if a process has a node for itself."""
    tasks = int(environment.get("SLURM_NTASKS", 1))
    if "SLURM_STEP_NODELIST" not in environment or tasks == 1:
        return None
    arguments = dict(num_processes=tasks, process_id=int(environment["SLURM_PROCID"]))
    is_alone = environment.get("SLURM_STEP_NUM_NODES") == str(tasks)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if visible and (is_alone or "SLURM_GPUS_PER_TASK" in environment):
        arguments["local_device_ids"] = list(range(len(visible.split(","))))
    return arguments


def is_main() -> bool:
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints a line, once for all processes."""
    if is_main():
        print(text, flush=True)


def from_main(value: int) -> int:
    """Process 0's value, an int32, in every process."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(value))) if jax.process_count() > 1 else value


def check_agreement(text: str) -> None:
    """Raises UserError if `text` differs from that of process 0."""
    own = zlib.crc32(text.encode()) >> 1  # 31 bits
    if from_main(own) != own:
        raise UserError(f"process {jax.process_index()} was started with another command or code than process 0")


class Votes:
    """Lets all processes know at the same step the highest value that any of them gave, such as a signal to stop."""

    def __init__(self, layout: Layout):
        self._layout, self._cast = layout, deque()
        self._highest = jax.jit(jnp.max, out_shardings=layout.copies)

    def cast(self, value: int) -> int:
        """Gives this process's value, once per step; returns the highest of `STEPS_LATE` steps before, at first 0."""
        if jax.process_count() == 1:
            return value
        values = np.full(jax.local_device_count(), value, np.int32)
        self._cast.append(self._highest(self._layout.place_rows(values)))
        return int(self._cast.popleft()) if len(self._cast) > STEPS_LATE else 0
