"""What does a model look at? Its accuracy on altered arrow-pointing images, on larger canvases, and by distance.

    python scripts/probe_arrow.py 1f392a                     # a run's folder, or the first digits of its id
    python scripts/probe_arrow.py 1f392a --canvases 1 2 3 4  # sides in units of the training canvas

Balanced accuracy is the mean of the accuracies on images that point at the circle and on those that do not: altered
images are mostly of the second kind. Writes results/probes/<run>.json.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import numpy as np
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table
from scripts.measuring import positive, write_results

from data.arrow_pointing.geometry import KAPPA, SPLITS, Arrow, Canvas, base_seed, parameters, render
from data.loading import PackedSplit, pack
from plstm.config import run_name
from plstm.errors import UserError, run_script
from plstm.models import from_checkpoint
from plstm.runs.folders import find_run, load_config
from plstm.tasks import TASKS
from plstm.training.environment import describe_environment
from plstm.training.steps import make_predict

ROOT = Path(__file__).resolve().parents[1]
NEAR_AND_FAR = 4  # quarters of the distances
CHUNK = 4096  # images drawn at a time
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
    distance = np.hypot(arrow.cx - arrow.ax, arrow.cy - arrow.ay)
    apart = distance >= KAPPA * arrow.radius  # nearer, the arrow's midpoint lies in or at the circle
    return arrow._replace(label=np.where(inside & apart, true_label(arrow), NO_LABEL))


def _without_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle drawn outside the canvas, the label kept: what the arrow alone tells the model."""
    outside = np.full_like(arrow.cx, -canvas.size)
    return arrow._replace(cx=outside, cy=outside)


def _mirrored_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle on the other side of the arrow's midpoint, as far away."""
    return _altered(arrow, canvas, cx=2 * arrow.ax - arrow.cx, cy=2 * arrow.ay - arrow.cy)


def _exchanged_circle(arrow: Arrow, canvas: Canvas) -> Arrow:
    """The circle of the next geometry, so that the arrow tells nothing of where the circle is."""
    return _altered(arrow, canvas, **{name: np.roll(getattr(arrow, name), -1) for name in ("radius", "cx", "cy")})


PROBES = {
    "as given": lambda arrow, canvas: arrow,
    "without the circle": _without_circle,
    "arrow reversed": lambda arrow, canvas: _altered(arrow, canvas, phi=arrow.phi + np.pi),
    "circle mirrored at the arrow": _mirrored_circle,
    "circle of another image": _exchanged_circle,
}


def draw_geometries(law: Canvas, factor: int, count: int) -> tuple[Arrow, Canvas]:
    """`count` geometries as arrays [count] on `factor` times the training canvas, and their law.

    At 1 and 2 they are those of test and test_ext; larger canvases have the draws of test_ext, too, so
    that relative positions and labels are the same on all of them.
    """
    base = base_seed(SPLITS["test" if factor == 1 else "test_ext"].seed)
    law = Canvas(factor * law.size, law.scale)
    return Arrow(*map(np.array, zip(*(parameters(base, n, law) for n in range(count)), strict=True))), law


def classify(answer, arrows: Arrow, law: Canvas) -> np.ndarray:
    """The model's answers 0 or 1 to each geometry [n]; `answer` takes a PackedSplit."""
    answers = []
    for start in range(0, len(arrows.label), CHUNK):
        part = [value[start : start + CHUNK] for value in arrows]
        images = np.stack(
            [render(Arrow(*(value.item() for value in values)), law) for values in zip(*part, strict=True)]
        )
        answers.append(answer(PackedSplit(pack(images), np.zeros(len(images), np.uint8), law.size)))
    return np.concatenate(answers)


def score(answers: np.ndarray, labels: np.ndarray) -> dict[str, float | int | None]:
    """Accuracies and the shares of "at" over the images that have a label; None where there is none to count."""
    known = labels != NO_LABEL
    right, answers, labels = (answers == labels)[known], answers[known], labels[known]
    kinds = [mean(right[labels == label]) for label in (0, 1)]
    return {
        "images": len(right),
        "accuracy": mean(right),
        "balanced_accuracy": None if None in kinds else sum(kinds) / 2,
        "answered_at": mean(answers),
        "labelled_at": mean(labels),
    }


def mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def by_distance(answers: np.ndarray, arrows: Arrow, reach: float) -> list[dict]:
    """Scores by the distance between the centres: quarters of the distances that training has, and all beyond."""
    away = np.hypot(arrows.cx - arrows.ax, arrows.cy - arrows.ay)
    edges = [reach * n / NEAR_AND_FAR for n in range(NEAR_AND_FAR + 1)] + [np.inf]
    rows = []
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        chosen = (away >= low) & (away < high)
        if chosen.any():
            limits = {"from_pixels": low, "to_pixels": None if np.isinf(high) else high}
            rows.append(limits | score(answers[chosen], arrows.label[chosen]))
    return rows


def load_answer(run: str, runs: Path):
    """The run's config and folder, and a function from a PackedSplit to its last checkpoint's answers 0 or 1 [n]."""
    folder = find_run(run, runs)
    config = load_config(folder)
    if config.task != "arrow":
        raise UserError(f"{folder}: this run's task is {config.task}; probes are for arrow pointing")
    graphdef, params = nnx.split(from_checkpoint(folder), nnx.Param)
    predict = make_predict(graphdef, TASKS["arrow"](config).logits)

    def answer(split: PackedSplit) -> np.ndarray:
        batches = split.batches(config.optim.batch_size)
        return np.concatenate([np.asarray(predict(params, batch)).argmax(-1)[batch["mask"]] for batch in batches])

    return config, folder, answer


def probe(answer, law: Canvas, canvases: list[int], count: int) -> list[dict]:
    """All scores: a row for each canvas and alteration, with the distances beside what is as given."""
    near, _ = draw_geometries(law, 1, count)
    reach = float(np.hypot(near.cx - near.ax, near.cy - near.ay).max())
    rows = []
    for factor in canvases:
        arrows, larger = draw_geometries(law, factor, count)
        for name, alter in PROBES.items():
            altered = alter(arrows, larger)
            answers = classify(answer, altered, larger)
            row = {"canvas_pixels": larger.size, "probe": name, **score(answers, altered.label)}
            if name == "as given":
                row["by_distance"] = by_distance(answers, altered, reach)
            rows.append(row)
            print(f"{larger.size} pixels, {name}: {row['images']:,} images done", flush=True)
    return rows


def print_rows(rows: list[dict]) -> None:
    """Prints accuracies by alteration, then by distance."""
    table = Table()
    for column in ("canvas", "images", "accuracy", "balanced", "says at", "is at", "what"):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for row in rows:
        for part, what in [(row, row["probe"])] + [(near, distance(near)) for near in row.get("by_distance", [])]:
            numbers = [part[key] for key in ("accuracy", "balanced_accuracy", "answered_at", "labelled_at")]
            shown = ["-" if number is None else f"{number:.3f}" for number in numbers]
            table.add_row(str(row["canvas_pixels"]), f"{part['images']:,}", *shown, what)
    console = Console()
    console.width = max(console.width, 100)
    console.print(table)


def distance(part: dict) -> str:
    """In words."""
    high = f" to {part['to_pixels']:.0f}" if part["to_pixels"] else " or more"
    return f"  {part['from_pixels']:.0f}{high} pixels apart"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder, or the first digits of its id")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of the runs")
    parser.add_argument("--canvases", type=positive, nargs="+", default=[1, 2], help="canvas over training side")
    parser.add_argument("--count", type=positive, default=10_240, help="images a canvas (10,240, as the paper)")
    parser.add_argument("--out", type=Path, help="default results/probes/<run>.json")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    config, folder, answer = load_answer(options.run, options.runs)
    rows = probe(answer, Canvas(config.data.size, config.data.scale), options.canvases, options.count)
    print_rows(rows)
    report = {
        "command": shlex.join(["python", "scripts/probe_arrow.py", *sys.argv[1:]]),
        "settings": {"canvases": options.canvases, "count": options.count},
        "run": folder.name,
        "name": run_name(config),
        **describe_environment(ROOT),
        "rows": rows,
    }
    path = options.out or ROOT / "results" / "probes" / f"{folder.name}.json"
    write_results(path, report)
    print(f"Written to {path}")


if __name__ == "__main__":
    run_script(main)
