"""Draw what one node passes on to all others of a grid, in P-mode and in D-mode: docs/modes.png."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax.numpy as jnp
import numpy as np

from plstm.drawing import new_figure, style
from plstm.errors import run_script
from plstm.ops.grid import GridGates, gating_matrix
from scripts.common import ROOT, Parser

SIDE = 25


def pattern(alpha: float | None, gamma: float) -> np.ndarray:
    """The centre's row of the gating matrix, float32 [SIDE, SIDE]: one direction of P-mode, or D-mode (alpha None)."""
    values = dict.fromkeys(GridGates._fields, 1.0)
    if alpha is None:
        values |= dict.fromkeys(("t_rl", "t_du", "t_dl"), gamma) | {"t_ru": 0.0}
    else:
        values |= dict.fromkeys(("t_rl", "t_ru"), gamma * alpha) | dict.fromkeys(("t_dl", "t_du"), gamma * (1 - alpha))
        values |= {"s_r": alpha, "s_d": 1 - alpha}
    directions = jnp.asarray([1.0, 0, 0, 0] if alpha is not None else [1.0] * 4)[:, None, None]
    gates = GridGates(*(value * jnp.ones((4, SIDE, SIDE)) for value in values.values()))
    gates = gates._replace(s_r=gates.s_r * directions, s_d=gates.s_d * directions)
    return np.asarray(gating_matrix(gates)[SIDE // 2, SIDE // 2])


def main() -> None:
    Parser(__doc__).parse_args()
    panels = {
        "P-mode, $\\alpha$ = 0.8, one direction": pattern(0.8, 1.0),
        "P-mode, $\\alpha$ = 0.5, one direction": pattern(0.5, 1.0),
        "D-mode, $\\gamma$ = 0.85, all directions": pattern(None, 0.85),
    }
    with style():
        figure = new_figure(7.2, 2.7)
        for axes, (title, values) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            axes.imshow(values**0.5, cmap="Blues", vmin=0)
            axes.plot(SIDE // 2, SIDE // 2, "o", color="tab:red", markersize=4)
            axes.set(title=title, xticks=[], yticks=[])
        figure.savefig(ROOT / "docs/modes.png", dpi=110)


if __name__ == "__main__":
    run_script(main)
