"""Counting and state tracking (arXiv 2606.12364): token rows of one length, with labels at some or all of their tokens.

    python -m data.tokens list
    python -m data.tokens sample s3 --length 12 --count 5 --seed 0
    python -m data.tokens answer majority 0 1 1

Rows are int8 [rows, T], labels int8 [rows, T], -1 (printed -) where a token has none. The paper does not say how it
draws its rows; docs/deviations.md has our choices.
"""

import functools
import re
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
from numpy.random import RandomState

from data.commands import Sampler, run_commands
from plstm.errors import run_script

NONE = -1


@dataclass(frozen=True)
class TokenTask(Sampler):
    classes: int

    @property
    def chance(self) -> float:
        return 1 / self.classes


# ---------------------------------------------------------------------- groups
def permutation_table(size: int, even: bool = False) -> np.ndarray:
    """int8 [order, order]: entry [x, s] is the number of "x after s" among the permutations of 0 .. size - 1, all or
    the even ones, in lexicographic order; the identity is number 0."""
    inversions = {p: sum(a > b for a, b in combinations(p, 2)) for p in permutations(range(size))}
    elements = np.array([p for p, count in inversions.items() if not even or count % 2 == 0])
    digits = size ** np.arange(size)[::-1]  # in this base, lexicographic order is that of numbers
    return np.searchsorted(elements @ digits, elements[:, elements] @ digits).astype(np.int8)


def cyclic_table(order: int) -> np.ndarray:
    """As `permutation_table`: int8 [order, order] of the sums modulo `order`."""
    numbers = np.arange(order)
    return ((numbers[:, None] + numbers) % order).astype(np.int8)


def products(table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The state after every token, from the identity: s_t = x_t s_(t-1); table int8 [order, order], rows int8
    [rows, T] -> int8 [rows, T]."""
    states = np.empty_like(rows)
    state = np.zeros(len(rows), np.int8)
    for t in range(rows.shape[1]):
        states[:, t] = state = table[rows[:, t], state]
    return states


def group_task(name: str, table: np.ndarray) -> TokenTask:
    """Uniform elements of a group; a label at every token."""
    order = len(table)

    def draw(rng: RandomState, length: int, rows: int) -> np.ndarray:
        return rng.randint(0, order, (rows, length), np.int8)

    return TokenTask(name, order, draw, functools.partial(products, table), re.compile(".+").fullmatch, order)


# ---------------------------------------------------------------------- counting
def draw_majority(rng: RandomState, length: int, rows: int) -> np.ndarray:
    """Uniform bits; the last one of a row that ties is flipped."""
    bits = rng.randint(0, 2, (rows, length), np.int8)
    bits[2 * bits.sum(1) == length, -1] ^= 1
    return bits


def majorities(rows: np.ndarray) -> np.ndarray:
    """Whether ones lead up to each token, NONE where they tie: bits int8 [rows, T] -> int8 [rows, T]."""
    lead = np.cumsum(2 * rows - 1, axis=1, dtype=np.int64)
    return np.where(lead == 0, NONE, lead > 0).astype(np.int8)


def draw_powers(symbols: int, rng: RandomState, length: int, rows: int) -> np.ndarray:
    """A run of each symbol, then pads. Half of the rows have equal runs, of n ~ U{2 .. T div symbols}. The others are
    as long, but one of their runs differs from the rest: where a row ends tells nothing, and all runs are needed."""
    n = rng.randint(2, length // symbols + 1, rows)
    rest = rng.randint(1, (symbols * n - 1) // (symbols - 1))  # from 1 to what leaves one for the run that differs
    rest += rest >= n  # but not n
    rest = np.where(rng.randint(0, 2, rows) == 0, n, rest)
    runs = np.repeat(rest[:, None], symbols, axis=1)
    runs[np.arange(rows), rng.randint(0, symbols, rows)] = symbols * n - (symbols - 1) * rest
    ends = np.cumsum(runs, axis=1)
    return (np.arange(length) >= ends[..., None]).sum(1).astype(np.int8)


def are_powers(symbols: int, rows: np.ndarray) -> np.ndarray:
    """At the last token before the pads: whether all runs have one length."""
    counts = np.stack([(rows == symbol).sum(1) for symbol in range(symbols)], axis=1)
    labels = np.full(rows.shape, NONE, np.int8)
    labels[np.arange(len(rows)), counts.sum(1) - 1] = (counts == counts[:, :1]).all(1)
    return labels


def is_powers(symbols: int, text: str) -> bool:
    """Whether the task has the row: a run of each symbol, then pads."""
    runs = "".join(f"{symbol}+" for symbol in range(symbols))
    return re.fullmatch(f"{runs}{symbols}*", text) is not None


def powers_task(name: str, symbols: int) -> TokenTask:
    parts = (functools.partial(function, symbols) for function in (draw_powers, are_powers, is_powers))
    # Two lengths of runs at least, so that they can differ.
    return TokenTask(name, symbols + 1, *parts, 2, shortest=2 * symbols)


TASKS = {
    task.name: task
    for task in (
        group_task("parity", cyclic_table(2)),
        group_task("z5", cyclic_table(5)),
        group_task("s3", permutation_table(3)),
        group_task("a5", permutation_table(5, even=True)),
        group_task("s5", permutation_table(5)),
        TokenTask("majority", 2, draw_majority, majorities, re.compile(".+").fullmatch, 2),
        powers_task("anbn", 2),
        powers_task("anbncn", 3),
    )
}


def describe(task: TokenTask) -> str:
    return (
        f"tokens {task.vocabulary:3}  classes {task.classes:3}  chance {task.chance:.3f}  length from {task.shortest}"
    )


def main() -> None:
    run_commands("data.tokens", "Counting and state tracking.", TASKS, describe)


if __name__ == "__main__":
    run_script(main)
