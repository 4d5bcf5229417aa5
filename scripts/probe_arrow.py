"""What does a model look at? Its accuracy on altered arrow-pointing images, on larger canvases, and by distance.

    python scripts/probe_arrow.py 1f392a                         # a run's folder, or the first digits of its id
    python scripts/probe_arrow.py 1f392a --sizes 48 64 96 144    # canvases in pixels; objects keep their size
    python scripts/probe_arrow.py --table arrow-48 --runs /scratch/runs  # all runs that the table shows

Altered images have the training size and twice it, unaltered ones all sizes. Balanced accuracy is the mean of the
accuracies on images that point at the circle and on those that do not: altered images are mostly of the second kind.
The area under the ROC curve does not depend on the threshold.
Writes results/probes/<name>-<id>.json, from which `make tables` draws accuracy by size and by distance.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.arrow_pointing.geometry import Arrow, Canvas, render
from data.loading import PackedSplit, pack
from plstm.config import Config
from plstm.errors import UserError, first_line, run_script
from plstm.files import check_writable
from plstm.runs.folders import find_run, load_config
from plstm.runs.identity import run_name
from plstm.runs.weights import from_checkpoint
from plstm.studies.definitions import load_table
from plstm.studies.probes import probe_path
from plstm.studies.records import read_records
from plstm.studies.sweeps import find_groups
from plstm.tasks import TASKS
from plstm.training.steps import make_predict
from scripts.arrow_probes import check_size, draw_geometries, probe_geometries, probe_row, training_reach
from scripts.common import ROOT, Parser, machine_folder, positive, write_results

SHOWN = ("accuracy", "balanced_accuracy", "area_under_roc", "answered_at", "labelled_at")
Answer = Callable[[Arrow, Canvas], np.ndarray]  # geometries [n] -> the logit of "at" less that of "past" [n]


def load_answer(run: str, runs: Path) -> tuple[Config, Path, Answer]:
    """The run's config and folder, and what its last checkpoint says of geometries."""
    folder = find_run(run, runs)
    config = load_config(folder)
    if config.task != "arrow":
        raise UserError(f"{folder}: this run's task is {config.task}; probes are for arrow pointing")
    graphdef, weights = nnx.split(from_checkpoint(folder))
    predict = make_predict(graphdef, TASKS["arrow"](config).logits)

    def answer(arrows: Arrow, canvas: Canvas) -> np.ndarray:
        each = (Arrow(*(value.item() for value in arrow)) for arrow in zip(*arrows, strict=True))
        bits = np.stack([pack(render(arrow, canvas)) for arrow in each])
        batches = PackedSplit(bits, np.zeros(len(bits), np.uint8), canvas.size).batches(config.optim.batch_size)
        logits = np.concatenate([np.asarray(predict(weights, batch))[batch["mask"]] for batch in batches])
        return logits[:, 1] - logits[:, 0]

    return config, folder, answer


def probe(run: str, options: argparse.Namespace) -> None:
    """Scores one run on all canvases; prints the rows and writes them."""
    config, folder, answer = load_answer(run, options.runs)
    training = Canvas(config.data.size, config.data.object_scale)
    distribution = config.data.distribution
    rows = []
    reach = training_reach(training, options.count, distribution)
    sizes = {training.size, 2 * training.size, *options.sizes}
    canvases = [check_size(size, training.scale) for size in sorted(sizes)]
    for canvas in canvases:
        try:
            answer(draw_geometries(canvas, training, 1, distribution), canvas)
        except ValueError as error:  # of the model, for instance for a side that patches do not divide
            raise UserError(f"--sizes {canvas.size}: {first_line(error)}") from error
    print(f"{run_name(config)} ({folder.name})")
    print("".join(f"{title:>18}" for title in ("canvas_pixels", "images", *SHOWN)), " probe")
    for canvas, name, arrows in probe_geometries(canvases, training, options.count, distribution):
        row = probe_row(canvas, name, answer(arrows, canvas), arrows, reach)
        rows.append(row)
        scores = "".join(f"{'-' if row[key] is None else format(row[key], '.3f'):>18}" for key in SHOWN)
        print(f"{canvas.size:18}{row['images']:18,}{scores}  {name}", flush=True)
    path = options.out or options.results / "probes" / f"{run_name(config)}-{folder.name}.json"
    write_results(path, {"count": options.count, "run": folder.name, "name": run_name(config), "rows": rows})
    print(f"Written to {path}")


def shown_runs(name: str, results: Path, runs: Path) -> list[str]:
    """The ids of the runs that a table shows and that were not probed; prints those whose weights are gone."""
    groups = find_groups(load_table(ROOT / "configs/study" / f"{name}.yaml"), read_records(results))
    ids = [run.id for group in groups for run in group.chosen.runs if not probe_path(run, results)]
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
    parser.add_argument("--out", type=Path, help="of one run (default: RESULTS/probes/<name>-<id>.json)")
    options = parser.parse_args()
    if bool(options.run) == bool(options.table):
        parser.error("name a run, or --table")
    if options.out and (options.table or len(options.run) > 1):
        parser.error("--out is for one run")
    if options.out:
        check_writable(options.out.parent, f"--out {options.out}")
    else:
        check_writable(options.results / "probes", f"--results {options.results}")
    for run in options.run or shown_runs(options.table, options.results, options.runs):
        probe(run, options)


if __name__ == "__main__":
    run_script(main)
