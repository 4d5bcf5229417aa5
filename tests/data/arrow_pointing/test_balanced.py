"""The balanced distribution of arrow pointing: what is the same for both labels, and what tells them apart."""

import numpy as np
import pytest
from scipy import stats

from data.arrow_pointing.geometry import (
    GAP,
    KAPPA,
    Arrow,
    ArrowVariant,
    Canvas,
    digest,
    render,
    sample_parameters,
)

CANVASES = [Canvas(48, 0.25), Canvas(96, 0.25), Canvas()]
PARTS = {  # of the geometry, with bins; all have the same distribution for both labels
    "arrow": {"ax": 4, "ay": 4, "phi": 8},
    "circle": {"cx": 6, "cy": 6, "radius": 3},
    "shape": {"length": 3, "width": 2, "radius": 5},
}


def drawn(canvas: Canvas, distribution: str = "balanced", count: int = 20_000) -> Arrow:
    return sample_parameters(np.random.default_rng(4), count, canvas, distribution)


def cells(arrow: Arrow, bins: dict[str, int]) -> np.ndarray:
    """The cell of each geometry in a histogram of its parts, bins evenly between the least and the greatest value."""
    cell = np.zeros(len(arrow.phi), np.int64)
    for name, count in bins.items():
        value = np.mod(arrow.phi, 2 * np.pi) if name == "phi" else getattr(arrow, name)
        share = (value - value.min()) / max(np.ptp(value), 1e-9)
        cell = cell * count + np.minimum((share * count).astype(np.int64), count - 1)
    return cell


def p_value(arrow: Arrow, bins: dict[str, int]) -> float:
    """Of the chi-squared test that both labels have the same distribution over the cells."""
    cell = np.unique(cells(arrow, bins), return_inverse=True)[1]
    table = np.stack([np.bincount(cell[arrow.label == label], minlength=cell.max() + 1) for label in (0, 1)])
    return stats.chi2_contingency(table[:, table.sum(axis=0) >= 10]).pvalue


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("canvas", CANVASES)
def test_arrow_and_circle_alone_are_the_same_for_both_labels(canvas, part):
    assert p_value(drawn(canvas), PARTS[part]) > 1e-4
    if part == "arrow":
        assert p_value(drawn(canvas, "paper"), PARTS[part]) < 1e-20, "the test would not see a difference"


@pytest.mark.parametrize("canvas", CANVASES)
def test_half_the_circles_are_pointed_at_and_the_others_just_missed(canvas):
    arrow = drawn(canvas)
    offset = (arrow.cx - arrow.ax + 1j * (arrow.cy - arrow.ay)) * np.exp(-1j * arrow.phi)
    away, off, at = np.abs(offset), np.abs(np.angle(offset)), arrow.label == 1
    assert abs(at.mean() - 0.5) < 0.015
    assert np.all(off[at] <= np.arcsin(arrow.radius / (KAPPA * away))[at] + 1e-9)
    gap = off - np.arcsin(KAPPA * arrow.radius / away)
    assert np.all(gap[~at] >= GAP[0] - 1e-9) and np.all(off[~at] < np.deg2rad(50))
    assert np.all(away >= 40 * canvas.scale - 1e-9)
    for x, y in ((arrow.ax, arrow.ay), (arrow.cx, arrow.cy)):
        assert min(x.min(), y.min()) >= canvas.margin and max(x.max(), y.max()) <= canvas.margin + canvas.span


def test_images_stay_as_they_are():
    variant = ArrowVariant(43, 48, 0.25, distribution="balanced")
    images = ((render(arrow, variant.canvas("train")), arrow.label) for arrow in variant.arrows("train", 500))
    assert digest(images) == (500, 258, "99e356b2694fa1deee226248")
