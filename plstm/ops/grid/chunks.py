"""Independent entries of batch x heads, computed a chunk at a time so that a chunk's tensors stay in a CPU's cache.

Making a gating matrix takes many passes over N x N numbers an entry; with all entries at once each pass goes to memory.
The backward pass computes a chunk again instead of reading it. `scripts/benchmark.py chunks` compares the two.
"""

import math
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

# Measured on two cores, on grids of 6 x 6 to 48 x 48.
BYTES_PER_CORE = 2**19  # of a chunk's gating matrices: a quarter of a usual second-level cache holds a few such tensors
MIN_CHUNKS = 12  # with fewer, computing again costs more than the cache saves
MIN_ENTRIES = 2  # in a chunk; a single one is slower in D-mode


def num_chunks(batch_heads: int, matrix_bytes: int) -> int:
    """Number of chunks for so many entries whose gating matrices have `matrix_bytes` each; 1 except on CPUs."""
    if jax.default_backend() != "cpu":
        return 1
    chunks = batch_heads * matrix_bytes // (BYTES_PER_CORE * (os.cpu_count() or 1))
    return max(min(chunks, batch_heads // MIN_ENTRIES), 1) if chunks >= MIN_CHUNKS else 1


def chunked_map(function: Callable, arguments: tuple, chunks: int, leading: int = 1) -> Array:
    """function(*arguments) for a function of independent entries, in at most `chunks` calls of it in sequence.

    function: of trees of arrays [entries, ...], also of padding with zeros, to an array [entries, ...]; arguments: the
    trees, with `leading` axes for that of entries. A chunk takes entries from all over the axis, as many for each
    device, so that an axis that is sharded stays so.
    """
    lead = jax.tree.leaves(arguments)[0].shape[:leading]
    entries, devices = math.prod(lead), jax.device_count()
    arguments = jax.tree.map(lambda x: x.reshape(entries, *x.shape[leading:]), arguments)
    if chunks == 1:
        return (out := function(*arguments)).reshape(*lead, *out.shape[1:])
    size = -(-entries // (chunks * devices)) * devices
    chunks = -(-entries // size)

    def split(x):
        x = jnp.pad(x, ((0, size * chunks - entries), *((0, 0),) * (x.ndim - 1)))
        return x.reshape(size, chunks, *x.shape[1:]).swapaxes(0, 1)

    recomputed = jax.checkpoint(lambda chunk: function(*chunk), prevent_cse=False)  # the loop prevents it already
    out = lax.map(recomputed, jax.tree.map(split, arguments)).swapaxes(0, 1)
    return out.reshape(-1, *out.shape[2:])[:entries].reshape(*lead, *out.shape[2:])
