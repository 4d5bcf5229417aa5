"""A device or a host without room for a run: one line that says what was tried and what to change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from plstm.errors import UserError


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
