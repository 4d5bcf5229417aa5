"""Scans over the time axis of sequence operators: step by step, and chunk by chunk."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

METHODS = ("auto", "chunkwise", "recurrent")
FORGOTTEN = -120.0  # log decays have it at least: exp is 0 in float32, and their sums, which cancel, stay exact enough
Step = Callable[[Any, tuple[Array, ...]], tuple[Any, Array]]  # state, inputs -> state, output


def scan_steps(step: Step, state: Any, inputs: tuple[Array, ...], axis: int) -> Array:
    """Runs `step` from `state` along the inputs' time axis, `axis` of each. Returns outputs stacked along `axis`."""
    over_time = tuple(jnp.moveaxis(array, axis, 0) for array in inputs)
    return jnp.moveaxis(lax.scan(step, state, over_time)[1], 0, axis)


def split_chunks(array: Array, axis: int, chunk: int) -> Array:
    """Time axis `axis`, padded with zeros at its end, in chunks: [..., T, ...] -> [chunks, ..., chunk, ...]."""
    width = [(0, 0)] * array.ndim
    width[axis] = (0, -array.shape[axis] % chunk)
    array = jnp.pad(array, width)
    chunks = array.shape[axis] // chunk
    return jnp.moveaxis(array.reshape(*array.shape[:axis], chunks, chunk, *array.shape[axis + 1 :]), axis, 0)


def scan_chunks(
    step: Step, state: Any, inputs: tuple[Array, ...], axis: int, chunk: int, of_chunks: tuple[Array, ...] = ()
) -> Array:
    """As `scan_steps`, for a step that takes and returns `chunk` entries at a time; its last inputs are the chunk's
    entries of `of_chunks` [chunks, ...]. The padding at the end, which a causal step does not see, is cut off."""
    length = inputs[0].shape[axis]
    chunks = *(split_chunks(array, axis, chunk) for array in inputs), *of_chunks
    outputs = jnp.moveaxis(lax.scan(step, state, chunks)[1], 0, axis)
    return lax.slice_in_dim(lax.collapse(outputs, axis, axis + 2), 0, length, axis=axis)


def even_chunk(chunk: int, length: int) -> int:
    """The chunk length that cuts a sequence evenly into the fewest chunks of at most `chunk`, so that little is padded.
    Raises ValueError for a `chunk` that is not positive."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1; got {chunk}")
    chunks = -(-length // chunk)
    return -(-length // chunks)


def causal(chunk: int) -> Array:
    """Bool [chunk, chunk], True where the column is not later than the row."""
    return jnp.tril(jnp.ones((chunk, chunk), bool))


def join_axes(arrays: tuple[Array, ...], count: int) -> tuple[Array, ...]:
    """With the first `count` axes as one. XLA's CPU backend takes ten times as long for a sum of products where an axis
    has one entry, as that of a single head."""
    return jax.tree.map(lambda array: lax.collapse(array, 0, count), arrays)


def cast(arrays: tuple[Array, ...], dtype: jnp.dtype) -> tuple[Array, ...]:
    return jax.tree.map(lambda array: array.astype(dtype), arrays)
