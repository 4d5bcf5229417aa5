"""How far shortcuts get on arrow pointing: classifiers that see only part of the geometry, and one that sees all of it.

    python scripts/shortcut_baselines.py                         # the paper's canvas; results/baselines/arrow-192.json
    python scripts/shortcut_baselines.py --size 48 --scale 0.25  # a small one
    python scripts/shortcut_baselines.py --size 48 --scale 0.25 --sizes 48 64 96 144  # also on other canvases
    python scripts/shortcut_baselines.py --size 96 --scale 0.5 --thinnest 4  # with arrows of at least 24 x 4 pixels
    python scripts/shortcut_baselines.py --size 48 --scale 0.25 --distribution balanced --samples 20000000

Each shortcut is a histogram over the quantities it sees, fitted on samples of the training distribution; it answers
with its cell's more frequent label. Positions count relative to the canvas, whatever its size.
A baseline or a model gives each image its evidence that the arrow points at the circle, and answers so above 0.
Finer bins and more samples change the paper's results by about .001; the splits' own sampling error is .004. The
small advantages of the balanced images need more samples: some are .518 after 4 million and .523 after 20 million.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.arrow_pointing.geometry import (
    DISTRIBUTIONS,
    GAP,
    KAPPA,
    SPLITS,
    Arrow,
    ArrowVariant,
    Canvas,
    sample_parameters,
    strokes,
)
from plstm.errors import run_script
from scripts.common import Parser, machine_folder, positive, write_results
from scripts.probe_arrow import NO_CIRCLE, probe_geometries, resized, score

SHORTCUTS = {  # name: the quantities seen and their bins
    "arrow direction only": {"phi": 360},
    "arrow position and direction, no circle": {"ax": 24, "ay": 24, "phi": 96},
    "circle position and arrow direction": {"cx": 24, "cy": 24, "phi": 96},
    "both positions, no direction": {"ax": 16, "ay": 16, "cx": 16, "cy": 16},
}
CIRCLE = {"circle position only": {"cx": 24, "cy": 24}}  # measured on the balanced distribution only
PERFECT = "perfect geometry after pixel rounding"
SPLITS_SEEN = [split for split in SPLITS if split != "train"]
CHUNK, SEED = 1_000_000, 0  # of the geometries to fit on


def shortcuts(distribution: str) -> dict[str, dict[str, int]]:
    """The shortcuts measured on a distribution."""
    return SHORTCUTS | (CIRCLE if distribution == "balanced" else {})


def histogram_cell(arrow: Arrow, canvas: Canvas, bins: dict[str, int]) -> np.ndarray:
    """The histogram cell of each of [n] geometries: int [n], below the product of the bins."""
    cell = np.zeros(len(arrow.phi), np.int64)
    for name, count in bins.items():
        value = getattr(arrow, name)
        share = np.mod(value / (2 * np.pi), 1) if name == "phi" else (value - canvas.margin) / canvas.span
        cell = cell * count + np.minimum((share * count).astype(np.int64), count - 1)
    return cell


def fit(canvas: Canvas, samples: int, seed: int, distribution: str = "paper") -> dict[str, np.ndarray]:
    """Each shortcut's evidence per histogram cell [cells]: 1 if all its samples point at the circle, -1 if none do."""
    rng = np.random.default_rng(seed)
    counts = {
        name: np.zeros((2, np.prod(list(bins.values()))), np.int64) for name, bins in shortcuts(distribution).items()
    }
    for start in range(0, samples, CHUNK):
        arrow = sample_parameters(rng, min(CHUNK, samples - start), canvas, distribution)
        for name, bins in shortcuts(distribution).items():
            cell = histogram_cell(arrow, canvas, bins)
            for label in (0, 1):
                counts[name][label] += np.bincount(cell[arrow.label == label], minlength=counts[name].shape[1])
    return {name: (at - past) / np.maximum(at + past, 1) for name, (past, at) in counts.items()}


def stroke_ends(arrow: Arrow) -> np.ndarray:
    """The tail, both ends of the head and the tip as x + iy in pixels: complex [4, n]."""
    lines = strokes(arrow)
    return np.stack([x0 + 1j * y0 for x0, y0, _, _ in lines] + [lines[0][2] + 1j * lines[0][3]])


def evidence_from_pixels(arrow: Arrow, distribution: str = "paper") -> np.ndarray:
    """(p - q) / (p + q) [n] of the likelihoods of pointing and not, from what the pixels keep: truncated coordinates.

    Every direction near the drawn shaft's counts with the area of the midpoints that would give the same pixels, and
    with each label's density there: 1 / (2 t) inside the half-angle t of a pointing arrow, 1 / (2 pi - 2 t) outside
    that of the others. No model of the pixels can do better on average, up to the rounding of the circle. Of the
    balanced distribution the others' density is taken as uniform over the angles that it draws, which costs about .001.
    """
    drawn = stroke_ends(arrow)
    left = np.floor(drawn.real)
    top = np.floor(drawn.imag)
    shape = stroke_ends(arrow._replace(ax=0.0, ay=0.0, phi=0.0))
    x0, x1 = (np.floor(arrow.cx + sign * arrow.radius) + 0.5 for sign in (-1, 1))
    y0, y1 = (np.floor(arrow.cy + sign * arrow.radius) + 0.5 for sign in (-1, 1))
    centre = (x0 + x1) / 2 + 0.5j * (y0 + y1)
    radius = (x1 - x0 + y1 - y0) / 4
    shaft = np.arctan2(top[3] - top[0], left[3] - left[0])
    pointing = np.zeros(len(shaft))
    away = np.zeros(len(shaft))
    for step in np.linspace(-1, 1, 101):
        phi = shaft + step / (arrow.length // 2)
        turned = np.exp(1j * phi) * shape
        low_x = (left - turned.real).max(0)
        high_x = (left + 1 - turned.real).min(0)
        low_y = (top - turned.imag).max(0)
        high_y = (top + 1 - turned.imag).min(0)
        area = np.maximum(high_x - low_x, 0) * np.maximum(high_y - low_y, 0)
        offset = centre - (low_x + high_x) / 2 - 0.5j * (low_y + high_y)
        off = np.abs(np.angle(offset * np.exp(-1j * phi)))
        distance = np.maximum(np.abs(offset), 1e-9)  # an altered geometry may have the circle at the arrow's midpoint
        inside = np.arcsin(np.minimum(radius / (KAPPA * distance), 1))
        outside = np.arcsin(np.minimum(KAPPA * radius / distance, 1))
        farthest = np.pi
        if distribution == "balanced":
            farthest = outside + GAP[1] + 2 * inside
            outside = outside + GAP[0]
        pointing += area * (off < inside) / (2 * inside)
        away += area * (off > outside) * (off < farthest) / (2 * farthest - 2 * outside)
    return (pointing - away) / np.maximum(pointing + away, np.finfo(float).tiny)


def measure(
    canvas: Canvas, fitted: dict[str, np.ndarray], count: int | None = None, distribution: str = "paper"
) -> list[dict[str, Any]]:
    """One row a baseline: its name and its accuracy on every evaluation split, or on its first `count` images."""
    variant = ArrowVariant(
        size=canvas.size, object_scale=canvas.scale, thinnest=canvas.thinnest, distribution=distribution
    )
    rows = {name: {"name": name} for name in (*fitted, PERFECT)}
    for split in SPLITS_SEEN:
        arrow = Arrow(*(np.array(values) for values in zip(*variant.arrows(split, count), strict=True)))
        for name, evidence in answer(arrow, variant.canvas(split), fitted, distribution).items():
            rows[name][split] = round(float(np.mean((evidence > 0) == arrow.label)), 4)
    return list(rows.values())


def answer(arrow: Arrow, canvas: Canvas, fitted: dict[str, np.ndarray], distribution: str) -> dict[str, np.ndarray]:
    """Every baseline's evidence on geometries [n]: [n], by name."""
    seen = {name: fitted[name][histogram_cell(arrow, canvas, bins)] for name, bins in shortcuts(distribution).items()}
    return seen | {PERFECT: evidence_from_pixels(arrow, distribution)}


def measure_sizes(
    training: Canvas, fitted: dict[str, np.ndarray], sizes: list[int], count: int, distribution: str = "paper"
) -> list[dict[str, Any]]:
    """One row a canvas size, alteration and baseline, scored on `count` images as `probe_arrow.py` scores models."""
    rows = []
    canvases = [resized(training, size) for size in sizes]
    for canvas, name, arrows in probe_geometries(canvases, training, count, distribution):
        if name != NO_CIRCLE:  # which most baselines need
            evidence = answer(arrows, canvas, fitted, distribution).items()
            place = {"canvas_pixels": canvas.size, "probe": name}
            rows += [{"name": shown, **place, **score(given, arrows.label)} for shown, given in evidence]
    return rows


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--size", type=int, default=192, help="training canvas in pixels")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every other pixel length")
    parser.add_argument("--thinnest", type=positive, default=2, help="least width of an arrow's lines in pixels")
    parser.add_argument("--distribution", choices=DISTRIBUTIONS, default="paper", help="of the geometries")
    parser.add_argument("--samples", type=positive, default=4_000_000, help="geometries to fit on")
    parser.add_argument(
        "--sizes", type=positive, nargs="*", default=[], help="canvases in pixels, for accuracy by size"
    )
    parser.add_argument("--count", type=positive, default=10_240, help="images of each of these")
    parser.add_argument(
        "--out", type=Path, help="the file to write (default: baselines/arrow-[balanced-]<size>.json of the results)"
    )
    options = parser.parse_args()
    canvas = Canvas(options.size, options.scale, options.thinnest)
    for size in options.sizes:
        resized(canvas, size)
    fitted = fit(canvas, options.samples, SEED, options.distribution)
    rows = measure(canvas, fitted, distribution=options.distribution)
    sizes = measure_sizes(canvas, fitted, options.sizes, options.count, options.distribution)
    record = {"size": options.size, "scale": options.scale, "thinnest": options.thinnest}
    record |= {"seed": SEED, "fit_samples": options.samples}
    distribution = {} if options.distribution == "paper" else {"distribution": options.distribution}
    name = "-".join(["arrow", *distribution.values(), str(options.size)])
    out = options.out or machine_folder("results") / "baselines" / f"{name}.json"
    write_results(out, record | distribution | {"baselines": rows} | ({"sizes": sizes} if sizes else {}))
    print(f"{'':39}" + "".join(f"{split:>9}" for split in SPLITS_SEEN))
    for row in rows:
        print(f"{row['name']:39}" + "".join(f"{row[split]:9.3f}" for split in SPLITS_SEEN))
    print(out)


if __name__ == "__main__":
    run_script(main)
