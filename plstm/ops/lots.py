"""Independent rows computed a lot at a time, so that what a lot needs stays in a CPU's cache.

A gating matrix is many passes over N x N numbers a row (an entry of batch and heads); with all rows at once, each pass
goes to memory. In lots, whose intermediates the backward pass computes again rather than reads, large batches take a
fraction of the memory, and less time: `scripts/benchmark.py lots` compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

# Of the gating matrices of a lot, for each core: a quarter of a usual second-level cache, for there are a few such
# tensors. This and what follows was measured on two cores, grids of 6 x 6 to 48 x 48.
BYTES_A_CORE = 2**19
FEWEST_LOTS = 12  # with fewer, computing again costs more than the cache saves
FEWEST_ROWS = 2  # a single one is slower in D-mode


def count_lots(rows: int, row_bytes: int) -> int:
    """How many lots to make of `rows` whose gating matrices have `row_bytes` each; 1 anywhere but on CPUs."""
    if jax.default_backend() != "cpu":
        return 1
    lots = rows * row_bytes // (BYTES_A_CORE * (os.cpu_count() or 1))
    return max(min(lots, rows // FEWEST_ROWS), 1) if lots >= FEWEST_LOTS else 1


def map_lots(function: Callable, arguments: tuple, lots: int) -> jax.Array:
    """function(*arguments) for a function of independent rows, in at most `lots` calls of it in sequence.

    Args:
        function: takes trees of arrays [rows, ...], returns an array [rows, ...]. It must take rows of zeros, with
            which the last lot is filled.
        arguments: those trees.
        lots: at least 1. Every lot takes rows from all over the axis, and as many for each device, so that an axis that
            is split over devices stays so within a lot.
    """
    if lots == 1:
        return function(*arguments)
    rows = len(jax.tree.leaves(arguments)[0])
    devices = jax.device_count()
    size = -(-rows // (lots * devices)) * devices
    lots = -(-rows // size)

    def split(tensor):
        tensor = jnp.pad(tensor, ((0, size * lots - rows), *((0, 0),) * (tensor.ndim - 1)))
        return tensor.reshape(size, lots, *tensor.shape[1:]).swapaxes(0, 1)

    again = jax.checkpoint(lambda lot: function(*lot), prevent_cse=False)  # a loop keeps its passes apart by itself
    out = lax.map(again, jax.tree.map(split, arguments)).swapaxes(0, 1)
    return out.reshape(-1, *out.shape[2:])[:rows]
