"""Walks on a grid: golden cells, how they are drawn, the answer by another definition."""

from itertools import permutations

import numpy as np
import pytest
from numpy.random import RandomState

from data.tokens import products
from data.walk import GROUPS, answer, draw_lengths, draw_walks, longest, walk


def test_the_walk_of_a_golden_grid():
    """Arrows: right, down; down, down. From the upper left: 1, then 2 to the right, then 3 below."""
    cells = np.array([[[[1, 0, 1], [2, 1, 0]], [[4, 0, 0], [3, 1, 0]]]], np.int8)
    np.testing.assert_array_equal(walk(cells), [[1, 2, 3]])
    lower_left = cells.copy()
    lower_left[0, 0, 0, 1] = 1
    np.testing.assert_array_equal(walk(lower_left), [[1, 4, 3]])
    assert answer("z5", cells) == 1 and answer("z5", lower_left) == 3


@pytest.mark.parametrize("group", GROUPS)
def test_the_answer_is_the_product_along_the_arrows(group):
    """S3 by composing permutations, Z2 and Z5 by adding, from cell to cell."""
    elements = [*permutations(range(3))]
    cells = draw_walks(RandomState(0), group, 4, np.arange(200) % 7 + 1)
    for grid, length, found in zip(cells, np.arange(200) % 7 + 1, answer(group, cells), strict=True):
        ((y, x),) = np.argwhere(grid[..., 2])
        product = (0, 1, 2) if group == "s3" else 0
        visited = 0
        while y < 4 and x < 4:
            element = int(grid[y, x, 0])
            product = (
                tuple(elements[element][n] for n in product)
                if group == "s3"
                else (product + element) % len(GROUPS[group])
            )
            visited += 1
            y, x = (y + 1, x) if grid[y, x, 1] else (y, x + 1)
        assert visited == length and found == (elements.index(product) if group == "s3" else product)


def test_lengths_starts_and_answers_are_as_drawn():
    rng = RandomState(0)
    for length in range(1, longest(4) + 1):
        cells = draw_walks(rng, "s3", 4, np.full(3000, length))
        _, y, x = np.nonzero(cells[..., 2])
        assert len(y) == 3000 and (3 - y + 3 - x + 1 == length).all()
        starts = np.bincount(y, minlength=4)
        possible = [row for row in range(4) if 0 <= 6 - (length - 1) - row <= 3]
        assert {*np.flatnonzero(starts)} == {*possible}
        np.testing.assert_allclose(starts[possible] / 3000, 1 / len(possible), atol=0.05)
        np.testing.assert_allclose(np.bincount(answer("s3", cells)) / 3000, 1 / 6, atol=0.04)


def test_training_walks_have_a_length_with_a_probability_as_one_over_it():
    counts = np.bincount(draw_lengths(RandomState(0), 6, 100_000), minlength=13)
    assert not counts[:2].any() and not counts[12:].any()
    np.testing.assert_allclose(counts[2:12] * np.arange(2, 12) / counts[2] / 2, 1, atol=0.06)


def test_the_elements_without_their_order_give_the_sign_alone_in_long_walks():
    rng = np.random.default_rng(0)
    elements = rng.integers(0, 6, (2000, 1, 11)).repeat(6, 1)
    shuffled = rng.permuted(elements, axis=2).reshape(-1, 11).astype(np.int8)
    found = products(GROUPS["s3"], shuffled)[:, -1].reshape(2000, 6)
    odd = np.isin(found, (1, 2, 5))  # the transpositions
    assert (odd == odd[:, :1]).all()
    guess = np.bincount(found[:, :-1].ravel().astype(int) * 2000 + np.arange(2000).repeat(5), minlength=12_000)
    right = guess.reshape(6, 2000).argmax(0) == found[:, -1]  # the most frequent of five other orders
    assert 0.28 < right.mean() < 0.4


def test_whoever_misses_a_cell_of_the_walk_is_at_chance():
    """Another element in one cell of the walk: each other answer is as likely, whatever the rest of the grid."""
    rng = RandomState(0)
    cells = draw_walks(rng, "s3", 3, np.full(50, 5))
    answers = []
    for element in range(6):
        changed = cells.copy()
        start = np.nonzero(changed[..., 2])
        changed[*start, 0] = element
        answers.append(answer("s3", changed))
    np.testing.assert_array_equal(np.sort(np.stack(answers, 1), 1), np.tile(np.arange(6), (50, 1)))
