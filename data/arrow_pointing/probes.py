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


def _labelled(arrow: Arrow, canvas: Canvas) -> Arrow:
    centres = np.stack([arrow.ax, arrow.ay, arrow.cx, arrow.cy])
    inside = ((centres >= canvas.margin) & (centres <= canvas.size - canvas.margin)).all(axis=0)
    distance = np.hypot(arrow.cx - arrow.ax, arrow.cy - arrow.ay)
    apart = distance >= KAPPA * arrow.radius  # nearer, the arrow's midpoint lies in or at the circle
    return arrow._replace(label=np.where(inside & apart, true_label(arrow), NO_LABEL))


def as_given(arrow: Arrow, canvas: Canvas) -> Arrow:
    """Nothing altered."""
    return arrow


def without_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle drawn outside the canvas, the label kept: what the arrow alone tells the model."""
    outside = np.full_like(arrow.cx, -canvas.size)
    return arrow._replace(cx=outside, cy=outside)


def reversed_arrow(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The arrow turned by half a turn about its midpoint."""
    return _labelled(arrow._replace(phi=arrow.phi + np.pi), canvas)


def mirrored_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle on the other side of the arrow's midpoint, as far away."""
    return _labelled(arrow._replace(cx=2 * arrow.ax - arrow.cx, cy=2 * arrow.ay - arrow.cy), canvas)


def exchanged_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle of the next geometry, so that the arrow tells nothing of where the circle is."""
    radius, cx, cy = (np.roll(values, -1) for values in (arrow.radius, arrow.cx, arrow.cy))
    return _labelled(arrow._replace(radius=radius, cx=cx, cy=cy), canvas)


PROBES: dict[str, Callable[[Arrow, Canvas], Arrow]] = {
    "as given": as_given,
    "without the circle": without_circle,
    "arrow reversed": reversed_arrow,
    "circle mirrored at the arrow": mirrored_circle,
    "circle of another image": exchanged_circle,
}
