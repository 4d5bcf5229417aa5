"""Arrow-pointing geometries on other canvases and altered, and the scores of what a model or a classifier says of them.

What is said of a geometry is the evidence that its arrow points at the circle: above 0, the answer is that it does.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data.arrow_pointing.geometry import KAPPA, SPLITS, Arrow, Canvas, base_seed, parameters
from plstm.errors import UserError
from plstm.studies.probes import GIVEN

NO_CIRCLE = "without the circle"
NO_LABEL = -1  # of a geometry that is not counted
BANDS = 4  # of equal width, of the distances that training has; beyond these as many more as there are


def check_size(size: int, scale: float) -> Canvas:
    """The canvas of one of `--sizes`; UserError where the objects do not fit."""
    try:
        return Canvas(size, scale)
    except UserError as error:
        raise UserError(str(error).replace(f"data.size={size}", f"--sizes {size}")) from error


def draw_geometries(canvas: Canvas, training: Canvas, count: int, distribution: str) -> Arrow:
    """The first `count` geometries of test, or on another canvas than the training's of test_ext's stream, [count]."""
    base = base_seed(SPLITS["test" if canvas == training else "test_ext"].seed)
    return Arrow(*map(np.array, zip(*(parameters(base, n, canvas, distribution) for n in range(count)), strict=True)))


def true_label(arrow: Arrow) -> np.ndarray:
    """1 where the arrow points at the circle, 0 where past it, NO_LABEL between; for arrays of geometries [n]."""
    across = arrow.cx - arrow.ax
    down = arrow.cy - arrow.ay
    distance = np.hypot(across, down)
    turn = np.abs(np.mod(arrow.phi - np.arctan2(down, across) + np.pi, 2 * np.pi) - np.pi)
    inner, outer = (np.arcsin(np.minimum(arrow.radius * factor / distance, 1)) for factor in (1 / KAPPA, KAPPA))
    return np.where(turn <= inner, 1, np.where(turn >= outer, 0, NO_LABEL))


def _altered(arrow: Arrow, canvas: Canvas, **fields: np.ndarray) -> Arrow:
    """The geometry with other fields, and the label that it then has: none where an object leaves the canvas."""
    arrow = arrow._replace(**fields)
    centres = np.stack([arrow.ax, arrow.ay, arrow.cx, arrow.cy])
    inside = ((centres >= canvas.margin) & (centres <= canvas.size - canvas.margin)).all(axis=0)
    apart = distances(arrow) >= KAPPA * arrow.radius  # nearer, the arrow's midpoint lies in or at the circle
    return arrow._replace(label=np.where(inside & apart, true_label(arrow), NO_LABEL))


PROBES = {
    GIVEN: lambda arrow, canvas: arrow,
    # Outside the canvas, the label kept: what the arrow alone tells the model.
    NO_CIRCLE: lambda arrow, canvas: arrow._replace(
        cx=np.full_like(arrow.cx, -canvas.size), cy=np.full_like(arrow.cy, -canvas.size)
    ),
    "arrow reversed": lambda arrow, canvas: _altered(arrow, canvas, phi=arrow.phi + np.pi),
    # The next geometry's: the arrow does not tell where the circle is, only whether it points to the canvas's middle.
    "circle of another image": lambda arrow, canvas: _altered(
        arrow, canvas, **{name: np.roll(getattr(arrow, name), -1) for name in ("radius", "cx", "cy")}
    ),
}


def probe_geometries(
    canvases: Sequence[Canvas], training: Canvas, count: int, distribution: str
) -> Iterator[tuple[Canvas, str, Arrow]]:
    """Geometries [count] of each canvas as given, and altered of the training canvas and of twice its size."""
    for canvas, (name, alter) in itertools.product(canvases, PROBES.items()):
        if name == GIVEN or canvas.size in (training.size, 2 * training.size):
            yield canvas, name, alter(draw_geometries(canvas, training, count, distribution), canvas)


def probe_row(canvas: Canvas, name: str, evidence: np.ndarray, arrows: Arrow, reach: float) -> dict[str, Any]:
    """The scores of one canvas and alteration, of geometries as given also by distance."""
    row = {"canvas_pixels": canvas.size, "probe": name, **score(evidence, arrows.label)}
    return row | ({"by_distance": by_distance(evidence, arrows, reach)} if name == GIVEN else {})


def score(evidence: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Scores of the images that have a label; None where there is none to count.

    Accuracies, the shares of "at", and the area under the ROC curve: how often an image that points at the circle has
    more evidence for it than one that does not. Unlike the accuracies, the area does not depend on the threshold.
    """
    from sklearn.metrics import roc_auc_score  # takes a second, which `make demo` can do without

    def mean(values: np.ndarray) -> float | None:
        return round(float(values.mean()), 5) if len(values) else None

    known = labels != NO_LABEL
    evidence = evidence[known]
    labels = labels[known]
    answers = evidence > 0
    right = answers == labels
    kinds = [mean(right[labels == label]) for label in (0, 1)]
    shares = {"accuracy": mean(right), "answered_at": mean(answers), "labelled_at": mean(labels)}
    if None in kinds:
        return {"images": len(right), **shares, "balanced_accuracy": None, "area_under_roc": None}
    area = round(float(roc_auc_score(labels, evidence)), 5)
    return {"images": len(right), **shares, "balanced_accuracy": sum(kinds) / 2, "area_under_roc": area}


def distances(arrows: Arrow) -> np.ndarray:
    """Pixels between the centres of arrow and circle [n]."""
    return np.hypot(arrows.cx - arrows.ax, arrows.cy - arrows.ay)


def by_distance(evidence: np.ndarray, arrows: Arrow, reach: float) -> list[dict[str, Any]]:
    """Scores in bands of the distance; `reach`, the farthest in training, is the upper end of the last that it has."""
    rows = []
    width = reach / BANDS
    bands = np.floor(distances(arrows) / width)
    for band in np.unique(bands).tolist():
        limits = {"from_pixels": width * band, "to_pixels": width * (band + 1)}
        rows.append(limits | score(evidence[bands == band], arrows.label[bands == band]))
    return rows


def training_reach(training: Canvas, count: int, distribution: str) -> float:
    """The farthest distance in pixels of `count` geometries of the training canvas."""
    return float(distances(draw_geometries(training, training, count, distribution)).max())
