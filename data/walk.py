"""A walk on a grid: which element of a group do the cells along it multiply to?

Each cell has an element of the group and an arrow, to the right or down; one cell is the start. From there the arrows
lead to the lower right corner: in the last row all point right, in the last column down. The label is the product of
the elements on the way, both ends included, later ones on the left. All elements are uniform and independent, so
whoever misses one cell of the walk is right by chance alone, and a sum over the grid tells nothing.
"""

import numpy as np
from numpy.random import RandomState

from data.tokens import cyclic_table, permutation_table, products

PLANES = 3  # of a cell: element, arrow (1: down), start
GROUPS = {"z2": cyclic_table(2), "s3": permutation_table(3), "z5": cyclic_table(5)}


def longest(side: int) -> int:
    """Cells of a walk from the upper left corner."""
    return 2 * side - 1


def draw_lengths(rng: RandomState, side: int, rows: int) -> np.ndarray:
    """Cells of walks to train on, int [rows]: n from 2 to `longest` with a probability as 1 / n, so that short walks,
    from which a model can learn the group, are not rare."""
    lengths = np.arange(2, longest(side) + 1)
    return rng.choice(lengths, rows, p=1 / lengths / (1 / lengths).sum())


def draw_walks(rng: RandomState, group: str, side: int, lengths: np.ndarray) -> np.ndarray:
    """Cells int8 [rows, side, side, PLANES] with walks of `lengths` [rows] cells, 1 to `longest`. The start is uniform
    among the cells so far from the corner."""
    rows = len(lengths)
    cells = np.zeros((rows, side, side, PLANES), np.int8)
    cells[..., 0] = rng.randint(0, len(GROUPS[group]), cells.shape[:-1])
    cells[..., 1] = rng.randint(0, 2, cells.shape[:-1])
    cells[:, -1, :, 1] = 0
    cells[:, :, -1, 1] = 1
    least = np.maximum(lengths - side, 0)  # steps down
    down = least + rng.randint(0, np.minimum(lengths - 1, side - 1) - least + 1)
    cells[np.arange(rows), side - 1 - down, side - lengths + down, 2] = 1
    return cells


def walk(cells: np.ndarray) -> np.ndarray:
    """The elements on each walk, the identity after its end: int8 [rows, 2 side - 1]."""
    rows, side = cells.shape[:2]
    row = np.arange(rows)
    y, x = np.divmod(cells[..., 2].reshape(rows, -1).argmax(1), side)
    elements = np.zeros((rows, longest(side)), np.int8)
    for step in range(longest(side)):
        inside = (y < side) & (x < side)
        at = row[inside], y[inside], x[inside]
        elements[inside, step] = cells[*at, 0]
        ends = (y == side - 1) & (x == side - 1)
        down = np.zeros(rows, bool)
        down[inside] = cells[*at, 1] == 1
        y = y + (down | ends)
        x = x + (~down | ends)
    return elements


def answer(group: str, cells: np.ndarray) -> np.ndarray:
    """int32 [rows]: the product of each walk."""
    return products(GROUPS[group], walk(cells))[:, -1].astype(np.int32)
