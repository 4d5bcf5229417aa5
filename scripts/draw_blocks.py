"""Draw what the chunkwise form costs by the size of its blocks, counted and measured: docs/blocks.png.

Measure first, on a machine that does nothing else:

    python scripts/benchmark.py operator --grids 48 --batch 1 --structures shared_incoming --forms cpu \\
        --blocks 1 2 3 4 6 8 --out results/benchmarks/blocks-cpu.json
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.drawing import new_figure, save, style
from plstm.errors import run_script
from scripts.benchmark import DIM, HEADS
from scripts.common import ROOT, Parser


def multiply_adds(block: int, dim: int) -> int:
    """Of a node, head and direction, forward: of the states on its block's edges (T, S and M in
    `plstm.ops.grid.chunkwise`), and of the nodes within the block."""
    return (4 * block + 4) * dim**2 + 2 * block**2 * dim


def main() -> None:
    Parser(__doc__).parse_args()
    rows = json.loads((ROOT / "results/benchmarks/blocks-cpu.json").read_text())["rows"]
    grid = rows[0]["grid"]
    node_heads = grid**2 * HEADS * rows[0]["batch"]
    blocks = [row for row in rows if row["form"].startswith("block ")]
    sides = [int(row["form"].removeprefix("block ")) for row in blocks]
    with style():
        figure = new_figure(6.4, 2.6)
        counted, timed = figure.subplots(1, 2, sharex=True)
        counted.plot(sides, [4 * multiply_adds(side, DIM) / 1e3 for side in sides], "o-")
        counted.axhline(2 * grid**2 * DIM / 1e3, color="tab:gray", linestyle="--", label="by the gating matrix")
        counted.set(title="Multiply-adds (thousands)")
        counted.legend()
        timed.plot(sides, [row["median_seconds"] / node_heads * 1e6 for row in blocks], "o-")
        timed.set(title="Time, both passes (µs)")
        for axes in (counted, timed):
            axes.set(xlabel="nodes along a block's side", xticks=sides, ylim=(0, None))
        figure.suptitle(f"A node and head of a {grid} x {grid} grid in P-mode, states of {DIM} x {DIM}")
        save(figure, ROOT / "docs/blocks.png")


if __name__ == "__main__":
    run_script(main)
