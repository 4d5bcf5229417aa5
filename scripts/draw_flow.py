"""Draw what each layer of trained models carries from the arrow to all places, on test images of both sizes.

    python scripts/draw_flow.py 1f392a 65ca15  # runs of arrow pointing: their folders, or the first digits of their ids

A column an image, its arrow's patch marked by a white dot and its circle outlined. A line a layer: of pLSTM the mean
over heads of the gating matrix (red positive, blue negative), of ViT that of the weights by which patches attend to the
arrow's. Writes results/figures/arrow-flow.png and .svg.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from data.arrow_pointing.geometry import ArrowVariant, render
from plstm.config import run_name
from plstm.drawing import new_figure, save, style
from plstm.errors import UserError, run_script
from plstm.models import VisionConfig
from plstm.runs.weights import from_checkpoint
from plstm.tasks.vision import draw_pattern, find_flow, normalise
from scripts.common import ROOT, Parser, machine_folder, positive

SPLITS = ("test", "test_ext")


def pick(variant: ArrowVariant, split: str, count: int) -> list[Any]:
    """The first geometries of a split in which the arrow points at the circle."""
    return [arrow for arrow in variant.arrows(split) if arrow.label == 1][:count]


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("run", nargs="+", help="a run's folder, or the first digits of its id")
    parser.add_argument("--runs", type=Path, default=machine_folder("runs"), help="folder of the runs")
    parser.add_argument("--count", type=positive, default=2, help="images of each size")
    parser.add_argument("--out", type=Path, default=ROOT / "results/figures/arrow-flow", help="without .png and .svg")
    options = parser.parse_args()
    models = [from_checkpoint(run, runs=options.runs) for run in options.run]
    if other := [model for model in models if model.info.config.task != "arrow"]:
        raise UserError(f"{other[0].info.run}: this run's task is {other[0].info.config.task}, not arrow pointing")
    if other := [model for model in models if not isinstance(model.info.config.model, VisionConfig)]:
        raise UserError(f"{other[0].info.run}: drawn are pLSTM and ViT, not {other[0].info.config.model.family}")
    data = models[0].info.config.data
    variant = ArrowVariant(0, data.size, data.scale, law=data.law)
    shown = [(split, arrow) for split in SPLITS for arrow in pick(variant, split, options.count)]
    lines = 1 + sum(model.info.config.model.depth for model in models)
    with style():
        figure = new_figure(1.7 * len(shown), 1.75 * lines)
        axes = figure.subplots(lines, len(shown), squeeze=False)
        for column, (split, arrow) in enumerate(shown):
            draw_column(axes[:, column], models, arrow, render(arrow, variant.canvas(split)))
            axes[0, column].set_title(f"{split}, {variant.canvas(split).size} pixels", fontsize=9)
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
        label_lines(axes[1:, 0], models)
        print(*save(figure, options.out), sep="\n")


def draw_column(axes: np.ndarray, models: list[Any], arrow: Any, pixels: np.ndarray) -> None:
    """One image on top, below it the patterns of all layers of all models."""
    from matplotlib.patches import Circle

    axes[0].imshow(pixels, cmap="gray", vmin=0, vmax=255)
    below = iter(axes[1:])
    for model in models:
        patch, depth = model.patch_size, model.info.config.model.depth
        source = int(arrow.ay // patch), int(arrow.ax // patch)
        for _, pattern in find_flow(model, normalise(pixels[None, ..., None])[0], source, depth):
            axis = next(below)
            draw_pattern(axis, pattern.mean(axis=0), source, scale=False)
            centre = (arrow.cx / patch - 0.5, arrow.cy / patch - 0.5)
            axis.add_patch(Circle(centre, arrow.radius / patch, fill=False, lw=1.2))


def label_lines(axes: np.ndarray, models: list[Any]) -> None:
    lines = iter(axes)
    for model in models:
        modes = list(model.info.config.model.modes)
        for layer in range(model.info.config.model.depth):
            what = f"{run_name(model.info.config)}\nlayer {layer + 1}, {modes[layer % len(modes)]}"
            next(lines).set_ylabel(what, fontsize=7)


if __name__ == "__main__":
    run_script(main)
