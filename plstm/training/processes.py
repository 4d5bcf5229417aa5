"""Runs of several processes: process 0 prints, logs and writes; all of them read, compute and save checkpoints.

Signals are a request to stop after the current step, so that nothing is lost.
"""

import os
import re
import signal
import sys
import threading
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from plstm.errors import UserError
from plstm.files import STOPS
from plstm.training.meshes import Layout

VARIABLES = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")  # each also with JAX_ before it
STEPS_LATE = 2  # steps until the result of a reduction is read, when it has arrived anyway


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
    """JAX finds the address. It would give each process the GPU of its number on the node, which is right only if all
    processes of the node see the same GPUs: not if each has a node, or was bound to GPUs of its own."""
    tasks = int(environment.get("SLURM_NTASKS", 1))
    if "SLURM_STEP_NODELIST" not in environment or tasks == 1:
        return None
    arguments: dict[str, Any] = dict(num_processes=tasks, process_id=int(environment["SLURM_PROCID"]))
    is_alone = environment.get("SLURM_STEP_NUM_NODES") == str(tasks)
    visible = len([number for number in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if number])
    on_node = int(environment.get("SLURM_GPUS_ON_NODE", visible))
    if is_alone or visible == 1 or visible and ("SLURM_GPUS_PER_TASK" in environment or visible < on_node):
        arguments["local_device_ids"] = []  # no choice: all that the process sees
    return arguments


def is_main() -> bool:
    return jax.process_index() == 0


def log_main(text: str) -> None:
    """Prints a line, in process 0 alone."""
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


class SharedSignal:
    """Lets all processes of a run learn at the same step that one of them got a signal."""

    def __init__(self, layout: Layout):
        self._layout = layout
        self._under_way: deque[jax.Array] = deque()
        self._highest = jax.jit(jnp.max, out_shardings=layout.copies)

    def any_process_signalled(self, number: int) -> int:
        """The highest `number` of any process `STEPS_LATE` calls ago, 0 in the first calls; with a single process
        `number` itself. number: of the signal that this process got, or 0. All processes must make the same calls."""
        if jax.process_count() == 1:
            return number
        values = np.full(jax.local_device_count(), number, np.int32)
        self._under_way.append(self._highest(self._layout.place_rows(values)))
        return int(self._under_way.popleft()) if len(self._under_way) > STEPS_LATE else 0


class Interrupt:
    """A context manager within which signals of `STOPS` end a run, with one line and exit status 128 + their number.

    At first a signal stops the run at once, even during a compilation. After `save_before_leaving` the first one only
    sets `signal_number`, and a SIGINT after it ends the run unsaved. SIGUSR2, if something handles it, sets
    `signal_number`, too: submitit has Slurm send it when a job's time is nearly up, and queues the job again when the
    signal is raised once more, after saving.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._at_once = True
        self._message = "nothing to save yet"
        self._leaving = threading.Lock()
        self._output = sys.stdout  # which is another while a data set is prepared

    def __enter__(self) -> Self:
        handlers = {number: signal.getsignal(number) for number in (*STOPS, signal.SIGUSR2)}
        if handlers[signal.SIGHUP] is signal.SIG_IGN:
            del handlers[signal.SIGHUP]  # as nohup wants it
        self._before = {n: handler for n, handler in handlers.items() if n in STOPS or callable(handler)}
        for number in self._before:
            signal.signal(number, self._request)
        # Python calls handlers only when the main thread returns from C++; a thread reads the signal's number at once.
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writer)  # which ends the thread
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def save_before_leaving(self) -> None:
        """There is something to save."""
        self._at_once = False

    def leave_at_once(self, message: str) -> None:
        """Everything is on disk: a signal, also one that came before, ends the process with a line on `message`."""
        self._at_once = True
        self._message = message
        self._leave(self.signal_number)

    def _request(self, number: int, _frame) -> None:
        self.signal_number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _watch(self, reader: int) -> None:
        while number := os.read(reader, 1):
            self._leave(number[0])
        os.close(reader)

    def _leave(self, number: int | None) -> None:
        if self._at_once and number in STOPS:
            self._leaving.acquire()  # one line, whichever thread comes first
            print(f"stopped by signal {number}, {self._message}", file=self._output, flush=True)
            os._exit(128 + number)  # the main thread may be busy, and the files are whole at any moment
