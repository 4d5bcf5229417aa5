"""Counting and state tracking: golden rows, which rows are drawn and how often, labels by another definition."""

import functools
import itertools
from collections import Counter, defaultdict

import numpy as np
import pytest
from numpy.random import RandomState

from data import tokens
from data.tokens import TASKS
from tests.commands import call_here
from tests.data.batching import crc

command = functools.partial(call_here, tokens.main)

GOLDEN = {
    "parity": "1 0 1 1 0 -> 1 1 0 1 1",
    "z5": "4 3 1 0 2 -> 4 2 3 3 0",
    "s3": "1 -> 1; 3 3 -> 3 4; 1 2 -> 1 3; 2 1 -> 2 4; 5 3 1 4 -> 5 1 0 4",
    "a5": "7 13 59 1 -> 7 16 43 58",
    "s5": "119 7 64 -> 119 93 3",
    "majority": "0 1 1 0 -> 0 - 1 -; 0 1 1 1 -> 0 - 1 1",
    "anbn": "0 0 1 1 2 2 -> - - - 1 - -; 0 0 1 2 2 2 -> - - 0 - - -",
    "anbncn": "0 1 2 3 3 3 -> - - 1 - - -; 0 0 1 2 2 3 -> - - - - 0 -",
}
# Of the bytes of rows of several lengths, whose seeds are the lengths.
NAMES_AND_CRCS = """
    parity 7e3b31d9 z5 d987eb18 s3 90edd330 a5 1a6586cd s5 919ec50a majority 6fe3104f anbn da618006 anbncn e4fc64a5
"""
CRCS = dict(zip(NAMES_AND_CRCS.split()[::2], NAMES_AND_CRCS.split()[1::2], strict=True))


@pytest.mark.parametrize("name", TASKS)
def test_golden_rows_by_the_command(name):
    for row, answer in (pair.split(" -> ") for pair in GOLDEN[name].split("; ")):
        assert command("answer", name, *row.split()) == (0, answer + "\n", "")


@pytest.mark.parametrize("name", TASKS)
def test_the_rows_of_a_seed_never_change(name):
    assert crc(TASKS[name].draw(RandomState(length), length, 50) for length in (6, 7, 16)) == CRCS[name]


def word(runs, length):
    text = "".join(symbol * run for symbol, run in zip("012", runs, strict=False))
    return text.ljust(length, str(len(runs)))


def test_rows_and_how_often_they_are_drawn():
    """Of each length that equal runs can have, half of the rows have them; the others have one run that differs."""
    for name, length, symbols in (("anbn", 9, 2), ("anbncn", 14, 3)):
        shares, totals = defaultdict(float), range(2 * symbols, length + 1, symbols)
        for total in totals:
            every = itertools.product(range(1, total), repeat=symbols)
            shares[word([total // symbols] * symbols, length)] = 1 / len(totals) / 2
            wrong = [runs for runs in every if sum(runs) == total and len(set(runs)) == 2]
            for runs in wrong:
                shares[word(runs, length)] = 1 / len(totals) / 2 / len(wrong)
        drawn = TASKS[name].draw(RandomState(0), length, 20_000)
        counts = Counter("".join(map(str, row)) for row in drawn)
        assert set(counts) == set(shares) and sum(shares.values()) == pytest.approx(1)
        for row, share in shares.items():
            assert abs(counts[row] / 20_000 - share) < 5 * (share / 20_000) ** 0.5
    for name in ("parity", "z5", "s3", "a5", "s5", "majority"):
        drawn = TASKS[name].draw(RandomState(0), 9, 4000)
        shares = np.bincount(drawn.ravel(), minlength=TASKS[name].vocabulary) / drawn.size
        np.testing.assert_allclose(shares, 1 / TASKS[name].vocabulary, atol=0.01)


def test_no_majority_row_ties_at_its_end():
    for length in (1, 2, 3, 8):
        rows = TASKS["majority"].draw(RandomState(0), length, 500)
        labels = TASKS["majority"].answer(rows)
        assert (labels[:, -1] == (rows.mean(1) > 0.5)).all()
        assert (labels == -1).sum() == (2 * np.cumsum(rows, 1) == np.arange(1, length + 1)).sum()


@pytest.mark.parametrize("name", ["parity", "z5", "s3", "a5", "s5"])
def test_labels_by_applying_permutations_one_by_one(name):
    cyclic = {"parity": 2, "z5": 5}
    size = cyclic.get(name) or (3 if name == "s3" else 5)
    elements = list(itertools.permutations(range(size)))
    if name in cyclic:
        elements = [tuple(np.roll(range(size), -n)) for n in range(size)]
    if name == "a5":
        elements = [p for p in elements if np.linalg.det(np.eye(size)[list(p)]) > 0]
    rows = TASKS[name].draw(RandomState(0), 20, 50)
    for row, labels in zip(rows, TASKS[name].answer(rows), strict=True):
        state = tuple(range(size))
        for token, label in zip(row, labels, strict=True):
            state = tuple(elements[token][i] for i in state)
            assert elements[label] == state


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "a4"], "error: task a4: choose one of parity, z5, s3, a5, s5, majority, anbn, anbncn"),
        (["sample", "anbncn", "--length", "5"], "error: --length 5: must be from 6 to 2048"),
        (["answer", "s3", "6"], "error: token 6: the tokens of s3 are 0 to 5"),
        (["answer", "s3", "1" * 5000], f"error: token {'1' * 5000}: the tokens of s3 are 0 to 5"),
        (["answer", "anbn", *"0000"], "error: tokens 0 0 0 0: anbn has no such row of length 4"),
        (["answer", "anbncn", *"012301"], "error: tokens 0 1 2 3 0 1: anbncn has no such row of length 6"),
    ],
)
def test_bad_commands_end_with_one_line(arguments, message):
    assert command(*arguments) == (2, "", message + "\n")
