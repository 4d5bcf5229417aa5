"""The demo: train a small pLSTM and a small ViT on arrow pointing, and say what was seen beside what was recorded.

    python scripts/demo.py     # or `make demo`; the same command resumes

Does the arrow point at the circle? Writes outputs/demo: table.md and curves.png of the study arrow-demo, samples with
the models' answers, and sizes.png, how the trained models of results/weights do on larger images.
"""

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.arrow_pointing.geometry import Canvas
from plstm.drawing import new_figure, save, style
from plstm.studies.definitions import load_table
from plstm.studies.probes import GIVEN, read_probes
from plstm.studies.records import Record, read_records
from plstm.studies.sweeps import find_groups, t_interval
from scripts.common import ROOT, Parser, run_resumable, start_python, stop
from scripts.probe_arrow import NO_CIRCLE, OTHER_CIRCLE, PROBES, Answer, draw_geometries, load_answer, score

OUT = ROOT / "outputs/demo"
RUNS = OUT / "checkpoints"
STUDY = "arrow-demo"
SEED = 43
CANVAS = Canvas(96, 0.5, 4)  # of the training images
IMAGES = 2048  # of each kind, to ask a model about
SIZES = (96, 128, 192, 256)


def main() -> int:
    Parser(__doc__).parse_args()
    shape = ["--size", CANVAS.size, "--scale", CANVAS.scale, "--thinnest", CANVAS.thinnest]
    baselines = "shortcut_baselines.py", *shape, "--out", OUT / f"baselines/arrow-{CANVAS.size}.json"
    runs = "run_table.py", STUDY, "--seeds", SEED, "--results", OUT, "--runs", RUNS
    if status := start(*baselines) or start(*runs):
        return status
    seen = {name: runs[0] for name, runs in shown_runs(OUT).items()}
    report(seen, shown_runs(ROOT / "results"))
    weights = sorted((ROOT / "results/weights").glob("arrow-*.safetensors"))
    print(f"Table and curves: {OUT.relative_to(ROOT)}/{STUDY}")
    print(f"Answers on sample images: {RUNS.relative_to(ROOT)}/*/figures")
    print(f"How {len(weights)} trained models do on larger images: {draw_sizes(weights).relative_to(ROOT)}")
    print(f"Next: python eval.py run={seen['pLSTM'].id} data.split=test_ext figures=true")
    return 0


def start(script: str, *arguments: object) -> int:
    """Runs a script to its end, also where the demo is interrupted; returns its exit status."""
    child = start_python([f"scripts/{script}", *map(str, arguments)], ROOT)
    try:
        return child.wait()
    except BaseException:
        stop([child])
        raise


def shown_runs(results: Path) -> dict[str, list[Record]]:
    """The study's runs by model."""
    table = load_table(ROOT / "configs/study" / f"{STUDY}.yaml")
    return {group.chosen.row.name: group.chosen.runs for group in find_groups(table, read_records(results))}


def report(seen: Mapping[str, Record], recorded: Mapping[str, Sequence[Record]]) -> None:
    """Prints what each model does, beside what the recorded runs let expect of another seed or machine."""
    found = {}
    for name, run in seen.items():
        _, _, answer = load_answer(run.id, RUNS)
        scores = {probe: ask(answer, CANVAS, probe) for probe in (NO_CIRCLE, OTHER_CIRCLE)}
        found[name] = accuracies(run, scores)
    expected: dict[str, dict[str, tuple[float, float]]] = {}
    for name, runs in recorded.items():
        probed = read_probes(runs, ROOT / "results").rows.values()
        scores = [{row["probe"]: row for row in rows if row["canvas_pixels"] == CANVAS.size} for rows in probed]
        known = [accuracies(run, of_run) for run, of_run in zip(runs, scores, strict=True)]
        expected[name] = {key: expected_range([each[key] for each in known]) for key in known[0]}
    print(f"{'Accuracy (expected)':24}" + "".join(f"{name:>26}" for name in found))
    for key in next(iter(found.values())):
        cells = ("{:.3f} ({:.3f} to {:.3f})".format(found[name][key], *expected[name][key]) for name in found)
        print(f"{key:24}" + "".join(f"{cell:>26}" for cell in cells))
    for key in ("test images", "another image's circle"):
        values = " and ".join(f"{name} answers {each[key]:.1%} rightly" for name, each in found.items())
        outside = [name for name in found if not expected[name][key][0] <= found[name][key] <= expected[name][key][1]]
        where = (
            f"outside the recorded interval for {' and '.join(outside)}" if outside else "inside the recorded intervals"
        )
        print("\n" + textwrap.fill(f"{key.capitalize()}: {values}, {where}.", 80))
    print()


def ask(answer: Answer, canvas: Canvas, probe: str = GIVEN) -> dict[str, Any]:
    """A model's scores on IMAGES test images of a canvas, as given or altered."""
    arrows = PROBES[probe](draw_geometries(canvas, CANVAS, IMAGES, "paper"), canvas)
    return score(answer(arrows, canvas), arrows.label)


def accuracies(run: Record, altered: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """A run's accuracies; on altered images, of the training size, the mean of those of the two labels."""
    return {
        "test images": run.metric("test"),
        "larger test images": run.metric("test_ext"),
        "circle erased": altered[NO_CIRCLE]["balanced_accuracy"],
        "another image's circle": altered[OTHER_CIRCLE]["balanced_accuracy"],  # of which the arrow tells less
    }


def expected_range(values: Sequence[float]) -> tuple[float, float]:
    """Student's 90% prediction interval for another run, within [0, 1]."""
    mean, half, n = t_interval(values)  # of the mean
    half *= math.sqrt(n + 1)
    return max(mean - half, 0.0), min(mean + half, 1.0)


def draw_sizes(weights: Sequence[Path]) -> Path:
    """Accuracy against the image's size, a line a file of weights."""
    with style():
        figure = new_figure(6, 3)
        axis = figure.subplots()
        for path in weights:
            _, _, answer = load_answer(path, RUNS)
            scores = [ask(answer, replace(CANVAS, size=size))["accuracy"] for size in SIZES]
            axis.plot(SIZES, scores, marker="o", ms=4, label=path.stem)
        axis.axhspan(0, 0.5, color="0.93", lw=0, label="below chance")
        axis.set(xlabel="Image side (pixels); 96 in training", ylabel="Test accuracy", ylim=(0.4, 1.03))
        axis.legend(fontsize=8)
        figure.suptitle(f"Trained models of results/weights, {IMAGES:,} images of each size", fontsize=9)
        return save(figure, OUT / "sizes.png")


if __name__ == "__main__":
    run_resumable(main, said="")  # the script that ran has said it
