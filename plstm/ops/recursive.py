"""States of all prefixes of a sequence under a composition that need not be associative (arXiv 2605.17108).

The binary digits of a prefix's length cut it into blocks, largest first. A block is composed as a balanced binary tree,
and the prefix's state is the left fold over its blocks: for 13 leaves ((1..8 with 9..12) with 13). So it depends on no
later leaf, and all prefixes take 2 log2(T) rounds of compositions that are independent of each other.

A state is a tree of arrays [T, ..., features], and `compose(left, right)` maps two such trees, of any leading axes, to
another.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

State = Any
Compose = Callable[[State, State], State]


def prefix_states(leaves: State, compose: Compose) -> State:
    """The `fold` of each prefix, of the shapes of the leaves, by about 2 T compositions in parallel."""
    return jax.lax.associative_scan(compose, leaves)  # groups the leaves in just this way


def fold(leaves: State, compose: Compose) -> State:
    """The definition, for the prefix of all leaves."""
    length = len(jax.tree.leaves(leaves)[0])

    def tree(start: int, size: int) -> State:
        if size == 1:
            return jax.tree.map(lambda x: x[start], leaves)
        return compose(tree(start, size // 2), tree(start + size // 2, size // 2))

    state = None
    start = 0
    for size in (1 << n for n in reversed(range(length.bit_length())) if length >> n & 1):
        state = tree(start, size) if state is None else compose(state, tree(start, size))
        start = start + size
    return state


def prefix_state(leaves: State, counts: Array, compose: Compose, index: Array | None = None) -> State:
    """The state of one prefix of each row: leaves [T, rows, ...], counts int [rows] from 1 to T -> [rows, ...].

    About T compositions. With `index`, int [T, rows], `leaves` is a table [K, ...] and `index` has the table's row at
    each place. Then a level of the tree with more blocks than there are pairs of different blocks below composes each
    pair only once.
    """
    rows = len(counts)
    length = len(jax.tree.leaves(leaves)[0]) if index is None else len(index)
    levels = [(leaves, index)]
    for _ in range(length.bit_length() - 1):
        levels.append(_next_level(*levels[-1], rows, compose))
    state = None
    for level, (blocks, index) in reversed([*enumerate(levels)]):
        above = counts >> level  # blocks of this size in the prefix; where odd, the last of them belongs to the fold
        place = jnp.clip(above - 1, 0)
        block = _take(blocks, index, place)
        if state is None:
            state = block
            continue
        composed = _where(above > 1, compose(state, block), block)
        state = _where(above % 2 == 1, composed, state)
    return state


def _next_level(blocks: State, index: Array | None, rows: int, compose: Compose) -> tuple[State, Array | None]:
    """Blocks twice as large, from neighbours; an odd last one is left out."""
    known = len(jax.tree.leaves(blocks)[0])
    length = len(jax.tree.leaves(blocks if index is None else index)[0])
    end = length // 2 * 2
    if index is not None and known**2 < end // 2 * rows:
        left, right = (jax.tree.map(lambda x, p=p: x[p], blocks) for p in jnp.indices((known, known)).reshape(2, -1))
        return compose(left, right), known * index[:end:2] + index[1:end:2]
    if index is not None:
        blocks = jax.tree.map(lambda x: x[index], blocks)
    left, right = (jax.tree.map(lambda x, start=start: x[start:end:2], blocks) for start in (0, 1))
    return compose(left, right), None


def _take(blocks: State, index: Array | None, place: Array) -> State:
    """Of each row the block at `place`, int [rows]."""
    rows = jnp.arange(len(place))
    return jax.tree.map(lambda x: x[place, rows] if index is None else x[index[place, rows]], blocks)


def _where(condition: Array, new: State, old: State) -> State:
    """Row by row."""

    def choose(x, y):
        return jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, new, old)
