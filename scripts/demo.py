"""The demo: train a small pLSTM and a small ViT on arrow pointing, and say what was seen beside what was recorded.

    python scripts/demo.py     # or `make demo`; the same command resumes

Does the arrow point at the circle? Writes outputs/demo: table.md and curves.png of the study arrow-demo, samples with
the models' answers, and sizes.png, how the trained models of results/weights do on larger images.
"""

import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scipy.stats import t

from data.arrow_pointing.geometry import Canvas
from plstm.drawing import new_figure, save, style
from plstm.errors import run_script
from plstm.studies.definitions import load_table
from plstm.studies.records import Record, read_records
from plstm.studies.sweeps import find_groups
from scripts.common import ROOT, Parser
from scripts.probe_arrow import NO_CIRCLE, OTHER_CIRCLE, draw_geometries, load_answer, probe_rows, score

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
    start("shortcut_baselines.py", *shape, "--out", OUT / f"baselines/arrow-{CANVAS.size}.json")
    if status := start("run_table.py", STUDY, "--seeds", SEED, "--results", OUT, "--runs", RUNS):
        return status
    seen = shown_runs(OUT)
    report(seen, shown_runs(ROOT / "results"))
    print(f"Table, curves, samples: {OUT.relative_to(ROOT)}")
    weights = sorted((ROOT / "results/weights").glob("arrow-*.safetensors"))
    print(f"Larger images, by trained models of {len(weights)} kinds: {draw_sizes(weights).relative_to(ROOT)}")
    best = seen["pLSTM"][0].id
    print(f"Next: python eval.py run={best} data.split=test_ext figures=true")
    return 0


def start(script: str, *arguments: object) -> int:
    """Runs a script to its end; returns its exit status."""
    return subprocess.run([sys.executable, ROOT / "scripts" / script, *map(str, arguments)], cwd=ROOT).returncode


def shown_runs(results: Path) -> dict[str, list[Record]]:
    """The study's runs by model."""
    table = load_table(ROOT / "configs/study" / f"{STUDY}.yaml")
    return {group.chosen.row.name: group.chosen.runs for group in find_groups(table, read_records(results))}


def report(seen: Mapping[str, Sequence[Record]], recorded: Mapping[str, Sequence[Record]]) -> None:
    """Prints each model's accuracies beside those of the recorded runs, and how much it relies on the circle."""
    found = {name: runs[0].metric("test") for name, runs in seen.items()}
    expected = {name: expected_range([run.metric("test") for run in runs]) for name, runs in recorded.items()}
    altered = {name: ask_about_circles(runs[0]) for name, runs in seen.items()}
    lines = {
        "test images": [f"{value:.3f}" for value in found.values()],
        "  expected": [f"{low:.3f} to {high:.3f}" for low, high in expected.values()],
        "larger test images": [f"{runs[0].metric('test_ext'):.3f}" for runs in seen.values()],
        "circle erased": [f"{scores[NO_CIRCLE]:.3f}" for scores in altered.values()],
        "another image's circle": [f"{scores[OTHER_CIRCLE]:.3f}" for scores in altered.values()],
    }
    for title, cells in {"Accuracy": list(seen), **lines}.items():
        print(f"{title:24}" + "".join(f"{cell:>18}" for cell in cells))
    outside = [name for name, value in found.items() if not expected[name][0] <= value <= expected[name][1]]
    runs = len(next(iter(recorded.values())))
    where = f"outside what {runs} recorded runs let expect for {' and '.join(outside)}" if outside else "as expected"
    print("\nSeen: " + ", ".join(f"{name} is right on {value:.1%}" for name, value in found.items()), end="")
    print(f" of the test images, {where}.")
    fallen = (f"{name} keeps {scores[NO_CIRCLE]:.1%}" for name, scores in altered.items())
    print(f"Without the circle, where 50% is chance, {' and '.join(fallen)}: so much the arrow alone tells it.\n")


def expected_range(values: Sequence[float], level: float = 0.9) -> tuple[float, float]:
    """Student's prediction interval for another run."""
    n = len(values)
    half = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(values) * math.sqrt(1 + 1 / n)
    return statistics.fmean(values) - half, min(statistics.fmean(values) + half, 1.0)


def ask_about_circles(run: Record) -> dict[str, float]:
    """Balanced accuracy on training-size test images that have no circle, or another image's, by alteration."""
    config, _, answer = load_answer(run.id, RUNS)
    rows = probe_rows(config, answer, [], IMAGES)
    return {row["probe"]: row["balanced_accuracy"] for row in rows if row["canvas_pixels"] == CANVAS.size}


def draw_sizes(weights: Sequence[Path]) -> Path:
    """Accuracy against the image's size, a line a file of weights."""
    with style():
        figure = new_figure(6, 3)
        axis = figure.subplots()
        for path in weights:
            _, _, answer = load_answer(path, RUNS)
            canvases = [replace(CANVAS, size=size) for size in SIZES]
            asked = [(canvas, draw_geometries(canvas, CANVAS, IMAGES, "paper")) for canvas in canvases]
            scores = [score(answer(arrows, canvas), arrows.label)["accuracy"] for canvas, arrows in asked]
            axis.plot(SIZES, scores, marker="o", ms=4, label=path.stem)
        axis.axhspan(0, 0.5, color="0.93", lw=0, label="below chance")
        axis.set(xlabel="Image side (pixels); 96 in training", ylabel="Test accuracy", ylim=(0.4, 1.03))
        axis.legend(fontsize=8)
        figure.suptitle(f"Trained models of results/weights, {IMAGES:,} images of each size", fontsize=9)
        return save(figure, OUT / "sizes.png")


if __name__ == "__main__":
    run_script(main)
