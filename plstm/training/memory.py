"""The host's memory: freed memory is kept between steps, mappings are counted, out-of-memory errors become one line."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import jax

from plstm.errors import UserError, first_line

# M_MMAP_MAX, M_ARENA_MAX, M_TRIM_THRESHOLD and M_TOP_PAD of glibc's malloc.h: no allocation has its own mapping, all
# threads share one heap, which never shrinks and grows by at least 64 MiB.
MALLOC_OPTIONS = ((-4, 0), (-8, 1), (-1, -1), (-2, 2**26))
MAPPINGS, MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
FULL = 0.8  # of the mappings that Linux allows; what is compiled until the next check must fit into the rest


def keep_freed_memory() -> bool:
    """Makes malloc keep freed memory for the next allocation; returns whether it does. Call it before threads start.

    On CPUs the system must otherwise clear fresh pages in every step, a tenth to a third of its time. Nothing changes
    without glibc, with an accelerator, or where the environment has MALLOC_... or mmap_max in GLIBC_TUNABLES.
    """
    is_set = "mmap_max" in os.environ.get("GLIBC_TUNABLES", "") or any(n.startswith("MALLOC_") for n in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if is_set or mallopt is None or entry_points(group="jax_plugins"):
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
def memory_errors(batch_size: int) -> Iterator[None]:
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
            f"({first_line(error)}); take more devices, a smaller optim.batch_size, model.remat=true where the model "
            "has it (blocks are computed twice, not kept), or mesh.fsdp, which splits the state between devices"
        ) from error
