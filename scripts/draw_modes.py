"""Draw what one node passes on to all others of a grid, in P-mode and in D-mode: docs/modes.png; and how that decays
with the distance: docs/decay.png."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax.numpy as jnp
import numpy as np

from plstm.drawing import new_figure, save, style
from plstm.errors import run_script
from plstm.ops.grid import GridGates, gating_matrix, plstm2d
from scripts.common import ROOT, Parser

SIDE = 25
FAR = 64  # nodes a side of the grid on which weights are followed


def uniform_gates(
    side: int, alpha: float | None, gamma: float, directions: tuple[int, ...] = (1, 0, 0, 0)
) -> GridGates:
    """Gates that are the same at each node: P-mode with this angle, D-mode for None; sources in some directions."""
    values = dict.fromkeys(GridGates._fields, 1.0)
    if alpha is None:
        values |= dict.fromkeys(("t_rl", "t_du", "t_dl"), gamma) | {"t_ru": 0.0}
    else:
        values |= dict.fromkeys(("t_rl", "t_ru"), gamma * alpha) | dict.fromkeys(("t_dl", "t_du"), gamma * (1 - alpha))
        values |= {"s_r": alpha, "s_d": 1 - alpha}
    gates = GridGates(*(value * jnp.ones((4, side, side)) for value in values.values()))
    active = jnp.asarray(directions, float)[:, None, None]
    return gates._replace(s_r=gates.s_r * active, s_d=gates.s_d * active)


def pattern(gates: GridGates) -> np.ndarray:
    """The centre's row of the gating matrix, float32 [SIDE, SIDE]."""
    return np.asarray(gating_matrix(gates)[SIDE // 2, SIDE // 2])


def decay(gates: GridGates) -> np.ndarray:
    """The largest weight of node (0, 0) on the nodes at each path length from 1 to FAR - 1."""
    nodes = jnp.zeros((FAR, FAR, 1)).at[0, 0].set(1.0)  # the value of that node alone
    ones = jnp.ones((FAR, FAR, 1))
    received = plstm2d(ones, ones, nodes, gates, jnp.zeros((FAR, FAR)), method="chunkwise")[..., 0]
    length = np.add.outer(np.arange(FAR), np.arange(FAR))
    return np.array([received[length == steps].max() for steps in range(1, FAR)])


def draw_patterns(figure: Any) -> None:
    panels = {
        "P-mode, $\\alpha$ = 0.8, one direction": uniform_gates(SIDE, 0.8, 1.0),
        "P-mode, $\\alpha$ = 0.5, one direction": uniform_gates(SIDE, 0.5, 1.0),
        "D-mode, $\\gamma$ = 0.85, all directions": uniform_gates(SIDE, None, 0.85, (1, 1, 1, 1)),
    }
    for axes, (title, gates) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        axes.imshow(pattern(gates) ** 0.5, cmap="Blues", vmin=0)
        axes.plot(SIDE // 2, SIDE // 2, "o", color="tab:red", markersize=4)
        axes.set(title=title, xticks=[], yticks=[])


def draw_decay(figure: Any) -> None:
    length = np.arange(1, FAR)
    axes = figure.subplots()
    everything = uniform_gates(FAR, None, 1.0)
    curves = {
        "all transitions 1: paths (35)": everything._replace(t_ru=everything.t_rl),
        "D-mode, $\\gamma$ = 1": everything,
        "P-mode, $\\alpha$ = 0.5, $\\gamma$ = 1": uniform_gates(FAR, 0.5, 1.0),
        "D-mode, $\\gamma$ = 0.9": uniform_gates(FAR, None, 0.9),
        "P-mode, $\\alpha$ = 0.5, $\\gamma$ = 0.9": uniform_gates(FAR, 0.5, 0.9),
    }
    for title, gates in curves.items():
        axes.plot(length, decay(gates), label=title)
    axes.plot(length, (2 / (np.pi * length)) ** 0.5, "k:", label="equation 38")
    axes.set(xscale="log", yscale="log", ylim=(1e-4, 1e4), xlabel="path length", ylabel="largest weight at that length")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def main() -> None:
    Parser(__doc__).parse_args()
    with style():
        for name, width, height, draw in (("modes", 7.2, 2.7, draw_patterns), ("decay", 6.0, 2.8, draw_decay)):
            figure = new_figure(width, height)
            draw(figure)
            figure.set_dpi(110)
            save(figure, ROOT / f"docs/{name}.png")


if __name__ == "__main__":
    run_script(main)
