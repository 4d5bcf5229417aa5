"""Altered arrow-pointing images, to ask what a model looks at: the circle removed or moved, the arrow turned round.

The geometry decides the label of an altered image anew. Where the arrow points neither clearly at the circle nor
clearly past it (the data set has no such images), or an object leaves the canvas, there is no label.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from data.arrow_pointing.geometry import KAPPA, Arrow, Canvas

NO_LABEL = -1


def true_label(arrow: Arrow) -> np.ndarray:
    """1 where the arrow points at the circle, 0 where past it, -1 between the two; for arrays of geometries [n]."""
    across, down = arrow.cx - arrow.ax, arrow.cy - arrow.ay
    distance = np.hypot(across, down)
    turn = np.abs(np.mod(arrow.phi - np.arctan2(down, across) + np.pi, 2 * np.pi) - np.pi)
    inner, outer = (np.arcsin(np.minimum(arrow.radius * factor / distance, 1)) for factor in (1 / KAPPA, KAPPA))
    return np.where(turn <= inner, 1, np.where(turn >= outer, 0, NO_LABEL))


def _altered(arrow: Arrow, canvas: Canvas, **fields: np.ndarray) -> Arrow:
    """The geometry with other fields, and the label that it then has."""
    arrow = arrow._replace(**fields)
    centres = np.stack([arrow.ax, arrow.ay, arrow.cx, arrow.cy])
    inside = ((centres >= canvas.margin) & (centres <= canvas.size - canvas.margin)).all(axis=0)
    distance = np.hypot(arrow.cx - arrow.ax, arrow.cy - arrow.ay)
    apart = distance >= KAPPA * arrow.radius  # nearer, the arrow's midpoint lies in or at the circle
    return arrow._replace(label=np.where(inside & apart, true_label(arrow), NO_LABEL))


def without_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle drawn outside the canvas, the label kept: what the arrow alone tells the model."""
    outside = np.full_like(arrow.cx, -canvas.size)
    return arrow._replace(cx=outside, cy=outside)


def mirrored_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle on the other side of the arrow's midpoint, as far away."""
    return _altered(arrow, canvas, cx=2 * arrow.ax - arrow.cx, cy=2 * arrow.ay - arrow.cy)


def exchanged_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle of the next geometry, so that the arrow tells nothing of where the circle is."""
    return _altered(arrow, canvas, **{name: np.roll(getattr(arrow, name), -1) for name in ("radius", "cx", "cy")})


PROBES: dict[str, Callable[[Arrow, Canvas], Arrow]] = {
    "as given": lambda arrow, canvas: arrow,
    "without the circle": without_circle,
    "arrow reversed": lambda arrow, canvas: _altered(arrow, canvas, phi=arrow.phi + np.pi),
    "circle mirrored at the arrow": mirrored_circle,
    "circle of another image": exchanged_circle,
}
