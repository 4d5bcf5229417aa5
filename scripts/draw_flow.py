"""Draw what each layer of trained models carries from the arrow to all places, on test images of both sizes.

    python scripts/draw_flow.py 1f392a 65ca15  # runs of arrow pointing: their folders, or the first digits of their ids

A column an image, its arrow's patch marked by a white dot and its circle outlined. A line a layer, with one scale of
colours: of pLSTM the mean over heads of the gating matrix (red positive, blue negative), of ViT that of the weights by
which patches attend to the arrow's. Writes outputs/flow.png, or --out; results/arrow-48/flow.png is such a picture.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from data.arrow_pointing.geometry import Arrow, ArrowVariant, Canvas, render
from plstm.config import Config
from plstm.drawing import new_figure, save, style
from plstm.errors import UserError, run_script
from plstm.models import VisionConfig
from plstm.runs.identity import run_name
from plstm.runs.pictures import capture_flow, draw_pattern, draw_scale
from plstm.runs.weights import config_of, from_checkpoint
from plstm.tasks.arrow import ArrowTask
from plstm.tasks.vision import normalise
from scripts.common import ROOT, Parser, machine_folder, positive

SPLITS = ("test", "test_ext")


def pick(variant: ArrowVariant, split: str, count: int) -> list[Any]:
    """The first geometries of a split in which the arrow points at the circle."""
    pointing = (arrow for arrow in variant.arrows(split) if arrow.label == 1)
    return list(itertools.islice(pointing, count))


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("run", nargs="+", help="a run's folder, or the first digits of its id")
    parser.add_argument("--runs", type=Path, default=machine_folder("runs"), help="folder of the runs")
    parser.add_argument("--count", type=positive, default=2, help="images of each size")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs/flow.png", help="the picture")
    options = parser.parse_args()
    configs = [config_of(run, options.runs) for run in options.run]
    for run, config in zip(options.run, configs, strict=True):
        if config.task != "arrow":
            raise UserError(f"{run}: this run's task is {config.task}, not arrow pointing")
        if not isinstance(config.model, VisionConfig):
            raise UserError(f"{run}: drawn are pLSTM and ViT, not {config.model.family}")
        if config.model.track is not None:
            raise UserError(f"{run}: its transitions are matrices (model.track), and only numbers are drawn")
    variant, *others = (ArrowTask(config).variant for config in configs)
    if any(other.canvas("test") != variant.canvas("test") for other in others):
        raise UserError("the runs have images or objects of different sizes; draw them one by one")
    models = [from_checkpoint(run, runs=options.runs) for run in options.run]
    shown = [(split, arrow) for split in SPLITS for arrow in pick(variant, split, options.count)]
    with style():
        figure = new_figure(1.7 * len(shown) + 0.5, 1.75 * (1 + sum(config.model.depth for config in configs)))
        draw(figure, configs, models, [(split, arrow, variant.canvas(split)) for split, arrow in shown])
        print(save(figure, options.out))


def draw(figure: Any, configs: list[Config], models: list[Any], images: list[tuple[str, Arrow, Canvas]]) -> None:
    """A line of the images, and one of the patterns of each layer of each model."""
    titles = [title for config in configs for title in layer_titles(config)]
    what = f"One run of each model, trained on {configs[0].data.size}-pixel images; mean over heads"
    figure.suptitle(f"What each layer carries from the arrow's patch (white dot)\n{what}", fontsize=9)
    top, *lines = figure.subplots(1 + len(titles), len(images), squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    pixels = [render(arrow, canvas) for _, arrow, canvas in images]
    arrows = [arrow for _, arrow, _ in images]
    for axis, image, (split, _, canvas) in zip(top, pixels, images, strict=True):
        axis.imshow(image, cmap="gray", vmin=0, vmax=255)
        axis.set_title(f"{split}, {canvas.size} pixels", fontsize=9)
    found = [(model.patch_size, patterns) for model in models for patterns in find_layers(model, pixels, arrows)]
    for axes, title, (patch, patterns) in zip(lines, titles, found, strict=True):
        axes[0].set_ylabel(title, fontsize=7)
        draw_layer(axes, patterns, arrows, patch)


def find_layers(model: Any, pixels: list[np.ndarray], arrows: list[Arrow]) -> list[list[np.ndarray]]:
    """For each layer, the pattern [Y, X] that it carries in each image, the mean over heads."""
    patch = model.patch_size
    flows = [
        capture_flow(model, normalise(image[None, ..., None])[0], place(arrow, patch), model.info.config.depth)
        for image, arrow in zip(pixels, arrows, strict=True)
    ]
    return [[pattern.mean(axis=0) for _, pattern in layer] for layer in zip(*flows, strict=True)]


def draw_layer(axes: np.ndarray, patterns: list[np.ndarray], arrows: list[Arrow], patch: int) -> None:
    from matplotlib.patches import Circle

    largest = max(float(np.abs(pattern).max()) for pattern in patterns)
    for axis, pattern, arrow in zip(axes, patterns, arrows, strict=True):
        picture = draw_pattern(axis, pattern, place(arrow, patch), largest)
        centre = (arrow.cx / patch - 0.5, arrow.cy / patch - 0.5)
        axis.add_patch(Circle(centre, arrow.radius / patch, fill=False, lw=1.2))
    draw_scale(picture, axes)


def place(arrow: Arrow, patch: int) -> tuple[int, int]:
    """Row and column of the arrow's patch."""
    return int(arrow.ay // patch), int(arrow.ax // patch)


def layer_titles(config: Config) -> list[str]:
    modes = list(config.model.modes)
    return [f"{run_name(config)}\nlayer {n + 1}, {modes[n % len(modes)]}" for n in range(config.model.depth)]


if __name__ == "__main__":
    run_script(main)
