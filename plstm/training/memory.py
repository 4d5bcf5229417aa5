"""The host's memory: kept between steps, its mappings watched, want of it told in one line with what to change."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import jax

from plstm.errors import UserError

# Of glibc's malloc.h: no memory is mapped by itself, all threads share one heap, its end is never given back, and it
# grows by 64 MiB at least.
MALLOC_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_ARENA_MAX": (-8, 1), "M_TRIM_THRESHOLD": (-1, -1), "M_TOP_PAD": (-2, 2**26)}
MAPPINGS, MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
FULL = 0.8  # of the mappings that Linux allows; what is compiled until the next look must fit into the rest


def keep_freed_memory() -> bool:
    """Has malloc keep what is freed for what is allocated next, and returns whether it does.

    On CPUs a training step allocates its temporaries, up to gigabytes, and frees them again; where the system takes
    them back it must clear fresh pages for the next step, a tenth to a third of the step's time. Call it before threads
    start. Nothing changes without glibc, beside an accelerator, whose runtime keeps its own memory, and where the
    environment sets malloc's ways (MALLOC_... or mmap_max in GLIBC_TUNABLES).
    """
    told = any(name.startswith("MALLOC_") for name in os.environ) or "mmap_max" in os.environ.get("GLIBC_TUNABLES", "")
    if told or entry_points(group="jax_plugins"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(option, value) for option, value in MALLOC_OPTIONS.values()])


def forget_programs_near_limit() -> bool:
    """Drops all compiled programs if the process has nearly as many mappings as Linux allows; returns whether it did.

    XLA maps every kernel of a CPU program by itself, a thousand mappings for the graph pLSTM, and the process aborts
    beyond vm.max_map_count (65,530). A run whose batches have dozens of sizes comes near that. What is needed again is
    traced again and read from the compilation cache.
    """
    try:
        used, most = MAPPINGS.read_bytes().count(b"\n"), int(MOST_MAPPINGS.read_text())
    except (OSError, ValueError):  # another system
        return False
    if used < FULL * most:
        return False
    jax.clear_caches()
    return True


@contextlib.contextmanager
def memory_errors(batch_size: int) -> Iterator[None]:
    """Turns the errors of JAX and Python for want of memory into UserError, which names the batch size."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        text = str(error)
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in text:
            raise
        each = -(-batch_size // jax.device_count())
        where = "a device" if isinstance(error, jax.errors.JaxRuntimeError) else "this machine"
        told = text.splitlines()[0][:200] if text else type(error).__name__
        raise UserError(
            f"optim.batch_size={batch_size}: {where} ran out of memory, at {each:,} examples a device ({told}); "
            "take more devices, a smaller optim.batch_size, model.remat=true where the model has it (blocks are "
            "computed twice, not kept), or mesh.fsdp, which splits the state between devices"
        ) from error
