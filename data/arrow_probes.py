"""Altered arrow-pointing images, to ask what a model looks at: the circle removed or moved, the arrow turned round.

The geometry decides the label of an altered image anew. Where the arrow points neither clearly at the circle nor
clearly past it (the law of the data leaves such images out), or an object leaves the canvas, there is no label.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from data.arrow_law import KAPPA, Arrow, ArrowLaw

NO_LABEL = -1


def true_label(arrow: Arrow) -> np.ndarray:
    """1 where the arrow points at the circle, 0 where past it, -1 between the two; for arrays of geometries [n]."""
    across, down = arrow.cx - arrow.ax, arrow.cy - arrow.ay
    away = np.hypot(across, down)
    turn = np.mod(arrow.phi - np.arctan2(down, across) + np.pi, 2 * np.pi) - np.pi
    inner, outer = (np.arcsin(np.minimum(radius / away, 1)) for radius in (arrow.radius / KAPPA, arrow.radius * KAPPA))
    return np.where(np.abs(turn) <= inner, 1, np.where(np.abs(turn) >= outer, 0, NO_LABEL))


def as_given(arrow: Arrow, law: ArrowLaw) -> Arrow:
    """Nothing altered."""
    return arrow


def without_circle(arrow: Arrow, law: ArrowLaw) -> Arrow:
    """The circle drawn outside the canvas, the label kept: what the arrow alone tells the model."""
    return arrow._replace(cx=np.full_like(arrow.cx, -law.size), cy=np.full_like(arrow.cy, -law.size))


def reversed_arrow(arrow: Arrow, law: ArrowLaw) -> Arrow:
    """The arrow turned by half a turn about its midpoint."""
    return _labelled(arrow._replace(phi=arrow.phi + np.pi), law)


def mirrored_circle(arrow: Arrow, law: ArrowLaw) -> Arrow:
    """The circle on the other side of the arrow's midpoint, as far away."""
    return _labelled(arrow._replace(cx=2 * arrow.ax - arrow.cx, cy=2 * arrow.ay - arrow.cy), law)


def exchanged_circle(arrow: Arrow, law: ArrowLaw) -> Arrow:
    """The circle of the next geometry, so that the arrow tells nothing of where the circle is."""
    return _labelled(
        arrow._replace(**{name: np.roll(getattr(arrow, name), -1) for name in ("radius", "cx", "cy")}), law
    )


PROBES: dict[str, Callable[[Arrow, ArrowLaw], Arrow]] = {
    "as given": as_given,
    "without the circle": without_circle,
    "arrow reversed": reversed_arrow,
    "circle mirrored at the arrow": mirrored_circle,
    "circle of another image": exchanged_circle,
}


def _labelled(arrow: Arrow, law: ArrowLaw) -> Arrow:
    inside = np.all(
        [
            (centre >= law.margin) & (centre <= law.size - law.margin)
            for centre in (arrow.ax, arrow.ay, arrow.cx, arrow.cy)
        ],
        axis=0,
    )
    away = np.hypot(arrow.cx - arrow.ax, arrow.cy - arrow.ay)
    apart = away >= KAPPA * arrow.radius  # nearer, the arrow's midpoint lies in or at the circle
    return arrow._replace(label=np.where(inside & apart, true_label(arrow), NO_LABEL))
