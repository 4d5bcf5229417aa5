"""What does a model look at? Its accuracy on altered arrow-pointing images, on larger canvases, and by distance.

    python scripts/probe_arrow.py 1f392a                     # a run's folder, or the first digits of its id
    python scripts/probe_arrow.py 1f392a --canvases 1 2 3 4  # sides in units of the training canvas

Balanced accuracy is the mean of the accuracies on images that point at the circle and on those that do not: altered
images are mostly of the second kind. Writes results/probes/<run>.json.
"""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.arrow_pointing.geometry import KAPPA, SPLITS, Arrow, Canvas, base_seed, parameters, render
from data.loading import PackedSplit, pack
from plstm.config import Config, run_name
from plstm.errors import UserError, run_script
from plstm.runs.weights import find_run, from_checkpoint, load_config
from plstm.tasks import TASKS
from plstm.training.steps import make_predict
from scripts.common import ROOT, Parser, positive, write_results

QUARTERS = 4  # of the distances that training has
SHOWN = ("accuracy", "balanced_accuracy", "answered_at", "labelled_at")
NO_LABEL = -1  # where an altered arrow is neither clearly at the circle nor past it, or an object leaves the canvas


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
    apart = distances(arrow) >= KAPPA * arrow.radius  # nearer, the arrow's midpoint lies in or at the circle
    return arrow._replace(label=np.where(inside & apart, true_label(arrow), NO_LABEL))


PROBES = {
    "as given": lambda arrow, canvas: arrow,
    # Outside the canvas, the label kept: what the arrow alone tells the model.
    "without the circle": lambda arrow, canvas: arrow._replace(
        cx=np.full_like(arrow.cx, -canvas.size), cy=np.full_like(arrow.cy, -canvas.size)
    ),
    "arrow reversed": lambda arrow, canvas: _altered(arrow, canvas, phi=arrow.phi + np.pi),
    # On the other side of the arrow's midpoint, as far away.
    "circle mirrored at the arrow": lambda arrow, canvas: _altered(
        arrow, canvas, cx=2 * arrow.ax - arrow.cx, cy=2 * arrow.ay - arrow.cy
    ),
    # The next geometry's, so that the arrow tells nothing of where the circle is.
    "circle of another image": lambda arrow, canvas: _altered(
        arrow, canvas, **{name: np.roll(getattr(arrow, name), -1) for name in ("radius", "cx", "cy")}
    ),
}
Answer = Callable[[Arrow, Canvas], np.ndarray]  # geometries [n] -> 0 or 1 [n]


def draw_geometries(canvas: Canvas, factor: int, count: int, law: str) -> Arrow:
    """The first `count` geometries of test, or on a canvas `factor` times the training canvas of test_ext, [count]."""
    base = base_seed(SPLITS["test" if factor == 1 else "test_ext"].seed)
    return Arrow(*map(np.array, zip(*(parameters(base, n, canvas, law) for n in range(count)), strict=True)))


def score(answers: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Accuracies and the shares of "at" over the images that have a label; None where there is none to count."""

    def mean(values: np.ndarray) -> float | None:
        return float(values.mean()) if len(values) else None

    known = labels != NO_LABEL
    answers, labels = answers[known], labels[known]
    right = answers == labels
    kinds = [mean(right[labels == label]) for label in (0, 1)]
    shares = {"accuracy": mean(right), "answered_at": mean(answers), "labelled_at": mean(labels)}
    return {"images": len(right), **shares, "balanced_accuracy": None if None in kinds else sum(kinds) / 2}


def distances(arrows: Arrow) -> np.ndarray:
    """Pixels between the centres of arrow and circle [n]."""
    return np.hypot(arrows.cx - arrows.ax, arrows.cy - arrows.ay)


def by_distance(answers: np.ndarray, arrows: Arrow, reach: float) -> list[dict[str, Any]]:
    """Scores by quarters of the distances up to `reach`, and of all beyond."""
    rows = []
    quarters = np.floor(distances(arrows) / reach * QUARTERS).clip(max=QUARTERS)
    for quarter in np.unique(quarters).tolist():
        chosen, upper = quarters == quarter, None if quarter == QUARTERS else reach * (quarter + 1) / QUARTERS
        limits = {"from_pixels": reach * quarter / QUARTERS, "to_pixels": upper}
        rows.append(limits | score(answers[chosen], arrows.label[chosen]))
    return rows


def load_answer(run: str, runs: Path) -> tuple[Config, Path, Answer]:
    """The run's config and folder, and its last checkpoint's answers."""
    folder = find_run(run, runs)
    config = load_config(folder)
    if config.task != "arrow":
        raise UserError(f"{folder}: this run's task is {config.task}; probes are for arrow pointing")
    graphdef, params = nnx.split(from_checkpoint(folder), nnx.Param)
    predict = make_predict(graphdef, TASKS["arrow"](config).logits)

    def answer(arrows: Arrow, canvas: Canvas) -> np.ndarray:
        each = (Arrow(*(value.item() for value in arrow)) for arrow in zip(*arrows, strict=True))
        bits = np.stack([pack(render(arrow, canvas)) for arrow in each])
        batches = PackedSplit(bits, np.zeros(len(bits), np.uint8), canvas.size).batches(config.optim.batch_size)
        return np.concatenate([np.asarray(predict(params, batch)).argmax(-1)[batch["mask"]] for batch in batches])

    return config, folder, answer


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("run", help="a run's folder, or the first digits of its id")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of the runs")
    parser.add_argument("--canvases", type=positive, nargs="+", default=[1, 2], help="canvas over training side")
    parser.add_argument("--count", type=positive, default=10_240, help="images a canvas; the paper's test has as many")
    parser.add_argument("--out", type=Path, help="default: results/probes/<run>.json")
    options = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    config, folder, answer = load_answer(options.run, options.runs)
    training = Canvas(config.data.size, config.data.scale)
    reach = float(distances(draw_geometries(training, 1, options.count, config.data.law)).max())
    print("".join(f"{title:>18}" for title in ("canvas_pixels", "images", *SHOWN)), " probe")
    rows = []
    for factor, (name, alter) in itertools.product(options.canvases, PROBES.items()):
        canvas = Canvas(factor * training.size, training.scale)
        arrows = alter(draw_geometries(canvas, factor, options.count, config.data.law), canvas)
        answers = answer(arrows, canvas)
        row = {"canvas_pixels": canvas.size, "probe": name, **score(answers, arrows.label)}
        rows.append(row | ({"by_distance": by_distance(answers, arrows, reach)} if name == "as given" else {}))
        scores = "".join(f"{'-' if row[key] is None else format(row[key], '.3f'):>18}" for key in SHOWN)
        print(f"{canvas.size:18}{row['images']:18,}{scores}  {name}", flush=True)
    settings = {"canvases": options.canvases, "count": options.count}
    path = options.out or ROOT / "results" / "probes" / f"{folder.name}.json"
    write_results(path, {"settings": settings, "run": folder.name, "name": run_name(config), "rows": rows})
    print(f"Written to {path}")


if __name__ == "__main__":
    run_script(main)
