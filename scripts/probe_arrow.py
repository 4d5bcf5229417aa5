"""What does a model look at? Its accuracy on altered arrow-pointing images, and on larger canvases.

    python scripts/probe_arrow.py 1f392a                         # a run's folder, or the first digits of its id
    python scripts/probe_arrow.py 1f392a --sizes 48 64 96 144    # canvases in pixels; objects keep their size
    python scripts/probe_arrow.py --table arrow-48 --runs /scratch/runs  # all runs that the table shows

Altered images have the training size and twice it, unaltered ones all sizes. Balanced accuracy is the mean of the
accuracies on images that point at the circle and on those that do not: altered images are mostly of the second kind.
The area under the ROC curve does not depend on the threshold.
Writes results/probes/<name>-<id>.json, from which `make tables` draws accuracy by size. Rename the file of a run
that was trained again for its probes to <name>-<id>-retrained.json: tables say so.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.arrow_pointing.geometry import KAPPA, SPLITS, Arrow, Canvas, base_seed, parameters, render
from data.loading import PackedSplit, pack
from plstm.config import Config
from plstm.errors import UserError, first_line, run_script
from plstm.files import check_writable
from plstm.runs.identity import run_name
from plstm.runs.weights import config_of, from_checkpoint
from plstm.studies.definitions import load_table
from plstm.studies.probes import GIVEN, probe_file, probe_path
from plstm.studies.records import read_records
from plstm.studies.sweeps import find_groups, probed_cells
from plstm.tasks.arrow import ArrowTask
from plstm.training.steps import make_predict
from scripts.common import ROOT, Parser, machine_folder, positive, write_results

SHOWN = ("accuracy", "balanced_accuracy", "area_under_roc", "answered_at", "labelled_at")
Answer = Callable[[Arrow, Canvas], np.ndarray]  # geometries [n] -> evidence: the logit of "at" less that of "past" [n]
NO_CIRCLE = "without the circle"
OTHER_CIRCLE = "circle of another image"
NO_LABEL = -1  # of a geometry that is not counted


def resized(canvas: Canvas, size: int) -> Canvas:
    """The canvas with one of `--sizes`; UserError where the objects do not fit."""
    try:
        return replace(canvas, size=size)
    except UserError as error:
        raise UserError(str(error).replace(f"data.size={size}", f"--sizes {size}")) from error


def draw_geometries(canvas: Canvas, training: Canvas, count: int, distribution: str) -> Arrow:
    """The first `count` geometries of test, or on another canvas than the training's of test_ext's stream, [count]."""
    base = base_seed(SPLITS["test" if canvas == training else "test_ext"].seed)
    return Arrow(*map(np.array, zip(*(parameters(base, n, canvas, distribution) for n in range(count)), strict=True)))


def true_label(arrow: Arrow) -> np.ndarray:
    """1 where the arrow points at the circle, 0 where past it, NO_LABEL between; for arrays of geometries [n]."""
    across = arrow.cx - arrow.ax
    down = arrow.cy - arrow.ay
    distance = np.hypot(across, down)
    turn = np.abs(np.mod(arrow.phi - np.arctan2(down, across) + np.pi, 2 * np.pi) - np.pi)
    inner, outer = (np.arcsin(np.minimum(arrow.radius * factor / distance, 1)) for factor in (1 / KAPPA, KAPPA))
    return np.where(turn <= inner, 1, np.where(turn >= outer, 0, NO_LABEL))


def _altered(arrow: Arrow, canvas: Canvas, **fields: np.ndarray) -> Arrow:
    """The geometry with other fields, and the label that it then has: none where an object leaves the canvas."""
    arrow = arrow._replace(**fields)
    centres = np.stack([arrow.ax, arrow.ay, arrow.cx, arrow.cy])
    inside = ((centres >= canvas.margin) & (centres <= canvas.size - canvas.margin)).all(axis=0)
    distance = np.hypot(arrow.cx - arrow.ax, arrow.cy - arrow.ay)
    apart = distance >= KAPPA * arrow.radius  # nearer, the arrow's midpoint lies in or at the circle
    return arrow._replace(label=np.where(inside & apart, true_label(arrow), NO_LABEL))


PROBES = {
    GIVEN: lambda arrow, canvas: arrow,
    # Outside the canvas, the label kept: what the arrow alone tells the model.
    NO_CIRCLE: lambda arrow, canvas: arrow._replace(
        cx=np.full_like(arrow.cx, -canvas.size), cy=np.full_like(arrow.cy, -canvas.size)
    ),
    "arrow reversed": lambda arrow, canvas: _altered(arrow, canvas, phi=arrow.phi + np.pi),
    # The next geometry's: the arrow does not tell where the circle is, only whether it points to the canvas's middle.
    OTHER_CIRCLE: lambda arrow, canvas: _altered(
        arrow, canvas, **{name: np.roll(getattr(arrow, name), -1) for name in ("radius", "cx", "cy")}
    ),
}


def probe_geometries(
    canvases: Sequence[Canvas], training: Canvas, count: int, distribution: str
) -> Iterator[tuple[Canvas, str, Arrow]]:
    """Geometries [count] of each canvas as given, and altered of the training canvas and of twice its size."""
    for canvas, (name, alter) in itertools.product(canvases, PROBES.items()):
        if name == GIVEN or canvas.size in (training.size, 2 * training.size):
            yield canvas, name, alter(draw_geometries(canvas, training, count, distribution), canvas)


def score(evidence: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Scores of the images that have a label; None where there is none to count.

    Accuracies, the shares of "at", and the area under the ROC curve: how often an image that points at the circle has
    more evidence for it than one that does not. Unlike the accuracies, the area does not depend on the threshold.
    """
    from sklearn.metrics import roc_auc_score  # takes a second, which `make demo` can do without

    def mean(values: np.ndarray) -> float | None:
        return round(float(values.mean()), 5) if len(values) else None

    known = labels != NO_LABEL
    evidence = evidence[known]
    labels = labels[known]
    answers = evidence > 0
    right = answers == labels
    kinds = [mean(right[labels == label]) for label in (0, 1)]
    shares = {"accuracy": mean(right), "answered_at": mean(answers), "labelled_at": mean(labels)}
    if None in kinds:
        return {"images": len(right), **shares, "balanced_accuracy": None, "area_under_roc": None}
    area = round(float(roc_auc_score(labels, evidence)), 5)
    return {"images": len(right), **shares, "balanced_accuracy": sum(kinds) / 2, "area_under_roc": area}


# ---------------------------------------------------------------------- runs
def load_answer(source: str | Path, runs: Path) -> tuple[Config, str, Answer]:
    """The config and id of a run, or of the run that a file's weights come from, and what it says of geometries."""
    config = config_of(source, runs)
    if config.task != "arrow":
        raise UserError(f"{source}: this run's task is {config.task}; probes are for arrow pointing")
    model = from_checkpoint(source, runs=runs)
    graphdef, weights = nnx.split(model)
    predict = make_predict(graphdef, ArrowTask(config).logits)

    def answer(arrows: Arrow, canvas: Canvas) -> np.ndarray:
        each = (Arrow(*(value.item() for value in arrow)) for arrow in zip(*arrows, strict=True))
        bits = np.stack([pack(render(arrow, canvas)) for arrow in each])
        batches = PackedSplit(bits, np.zeros(len(bits), np.uint8), canvas.size).batches(config.optim.batch_size)
        logits = np.concatenate([np.asarray(predict(weights, batch))[batch["mask"]] for batch in batches])
        return logits[:, 1] - logits[:, 0]

    return config, model.info.weights_id, answer


def probe(run: str, options: argparse.Namespace) -> None:
    """Scores one run on all canvases; prints the rows and writes them."""
    config, run_id, answer = load_answer(run, options.runs)
    print(f"{run_name(config)} ({run_id})")
    print("".join(f"{title:>18}" for title in ("canvas_pixels", "images", *SHOWN)), " probe")
    rows = []
    for row in probe_rows(config, answer, options.sizes, options.count):
        rows.append(row)
        scores = "".join(f"{'-' if row[key] is None else format(row[key], '.3f'):>18}" for key in SHOWN)
        print(f"{row['canvas_pixels']:18}{row['images']:18,}{scores}  {row['probe']}", flush=True)
    path = probe_file(run_name(config), run_id, options.results)
    write_results(path, {"count": options.count, "run": run_id, "name": run_name(config), "rows": rows})
    print(f"Written to {path}")


def probe_rows(config: Config, answer: Answer, sizes: Sequence[int], count: int) -> Iterator[dict[str, Any]]:
    """The scores of a canvas and an alteration each, on `count` images; UserError for a size that cannot be."""
    training = ArrowTask(config).variant.canvas("test")
    distribution = config.data.distribution
    canvases = [resized(training, size) for size in sorted({training.size, 2 * training.size, *sizes})]
    for canvas in canvases:
        try:
            answer(draw_geometries(canvas, training, 1, distribution), canvas)
        except ValueError as error:  # of the model, for instance for a side that patches do not divide
            raise UserError(f"--sizes {canvas.size}: {first_line(error)}") from error
    for canvas, name, arrows in probe_geometries(canvases, training, count, distribution):
        yield {"canvas_pixels": canvas.size, "probe": name, **score(answer(arrows, canvas), arrows.label)}


def shown_runs(name: str, results: Path, runs: Path) -> list[str]:
    """The ids of the runs that a table shows and that were not probed; prints those whose weights are gone."""
    table = load_table(ROOT / "configs/study" / f"{name}.yaml")
    cells = probed_cells(table, find_groups(table, read_records(results)))
    ids = [run.id for cell in cells.values() for run in cell.runs if not probe_path(run, results)]
    if gone := [run for run in ids if not (runs / run / "checkpoints").is_dir()]:
        print(f"Not probed, their weights are not in {runs}: {', '.join(gone)}")
    return [run for run in ids if run not in gone]


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("run", nargs="*", help="a run's folder, or the first digits of its id")
    parser.add_argument("--table", help="instead: the runs that this table shows and that were not probed yet")
    parser.add_argument("--runs", type=Path, default=machine_folder("runs"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=machine_folder("results"), help="folder of records and probes")
    parser.add_argument(
        "--sizes", type=positive, nargs="+", default=[], help="further canvases in pixels, unaltered images only"
    )
    parser.add_argument("--count", type=positive, default=10_240, help="images a canvas; the paper's test has as many")
    options = parser.parse_args()
    if bool(options.run) == bool(options.table):
        parser.error("name a run, or --table")
    check_writable(options.results / "probes", f"--results {options.results}")
    for run in options.run or shown_runs(options.table, options.results, options.runs):
        probe(run, options)


if __name__ == "__main__":
    run_script(main)
