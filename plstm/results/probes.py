"""What `scripts/probe_arrow.py` found of a table's runs, and the shortcut baselines on the same canvases."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plstm.errors import UserError
from plstm.results.definitions import TableDefinition
from plstm.results.records import Record
from plstm.results.sweeps import Cell, t_interval

Rows = list[dict[str, Any]]  # a canvas size and an alteration (of baselines: a name) each, with its scores
GIVEN = "as given"
FEWEST = 50  # images, of a band of distances or of the rarer label: a score of fewer is not shown


def read_probes(runs: Sequence[Record], results_dir: Path) -> list[Rows]:
    """The rows of each run that was probed."""
    paths = (results_dir / "probes" / f"{run.id}.json" for run in runs)
    return [_read(path, "rows") for path in paths if path.is_file()]


def read_sizes(table: TableDefinition, results_dir: Path) -> Rows:
    """The shortcut baselines by canvas; empty where they were measured on the splits alone."""
    path = results_dir / (table.baselines or "")
    return _read(path, "sizes") if path.is_file() else []


def _read(path: Path, key: str) -> Rows:
    try:
        return json.loads(path.read_bytes()).get(key, [])
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: not a file of scores; make it again") from error


def points_by_size(rows: Rows) -> list[tuple[float, float]]:
    """(canvas side, accuracy) of unaltered images."""
    return [(row["canvas_pixels"], row["accuracy"]) for row in _given(rows)]


def points_by_distance(rows: Rows) -> list[tuple[float, float]]:
    """(middle of a band of distances, accuracy) of unaltered images on twice the training canvas."""
    twice = 2 * min(row["canvas_pixels"] for row in _given(rows))
    bands = [band for row in _given(rows) if row["canvas_pixels"] == twice for band in row.get("by_distance", ())]
    middle = lambda band: (band["from_pixels"] + band["to_pixels"]) / 2  # noqa: E731
    return [(middle(band), band["accuracy"]) for band in bands if band["images"] >= FEWEST]


def _given(rows: Rows) -> Rows:
    return [row for row in rows if row.get("probe", GIVEN) == GIVEN]


def render_probes(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> dict[Path, bytes]:
    """The .md of balanced accuracies on altered images, path -> contents; nothing where no run was probed."""
    probed = {cell.row.name: found for cell in cells if (found := read_probes(cell.runs, results_dir))}
    if not probed:
        return {}
    counts, *others = (_counts(rows) for runs in probed.values() for rows in runs)
    if any(other != counts for other in others):
        words = f"runs of table {table.name} were probed on different images; probe them again with the same --count"
        raise UserError(f"{results_dir / 'probes'}: {words}")
    sizes = sorted({size for size, _ in counts})
    names = list(dict.fromkeys(name for (_, name), count in counts.items() if min(count) >= FEWEST))
    lines = [["Model", "n", "Canvas", *names, f"{GIVEN}, area under ROC"]]
    for size in sizes:
        of_size = [counts[size, name] for name in names]
        texts = [f"{at:,} / {past:,}" for at, past in of_size]
        lines.append(["images: points at it / not", "", str(size), *texts, ""])
    for model, runs in probed.items():
        for size in sizes:
            scores = [{row["probe"]: row for row in rows if row["canvas_pixels"] == size} for rows in runs]
            texts = [
                _interval([score[name]["balanced_accuracy"] for score in scores])
                if min(counts[size, name]) >= FEWEST
                else "–"
                for name in names
            ]
            lines.append([model, str(len(runs)), str(size), *texts, _area([score[GIVEN] for score in scores])])
    altered = ["–"] * (len(names) - 1)
    lines += [
        [row["name"], "", str(row["canvas_pixels"]), f"{row['balanced_accuracy']:.3f}", *altered, _area([row])]
        for row in read_sizes(table, results_dir)
        if row["canvas_pixels"] in sizes
    ]
    header, *rest = ("| " + " | ".join(line) + " |" for line in lines)
    text = [f"# {table.title}: altered images", "", CAPTION, "", header, "|" + " --- |" * len(lines[0]), *rest]
    return {results_dir / "tables" / f"{table.name}-probes.md": ("\n".join(text) + "\n").encode()}


CAPTION = (
    "Balanced accuracy (the mean of the accuracies on arrows that point at the circle and on those that do not) on "
    "test images as given and altered. The altered geometry gives the label; without the circle it is the one before. "
    "Mean over n runs ± Student's 90% t interval. All runs see the same images, whose sampling error the "
    f"interval does not include; no score is shown where a label has fewer than {FEWEST} images. The area under the "
    "ROC curve is how often an image whose arrow points at the circle has a higher score for it (a model's logit) than "
    "one whose arrow does not. It does not depend on the threshold. Some runs were probed before it was measured. "
    "`scripts/probe_arrow.py` makes the scores."
)


def _counts(rows: Rows) -> dict[tuple[int, str], tuple[int, int]]:
    """{(canvas, alteration): (images whose arrow points at the circle, others)}, of canvases with altered images."""
    sizes = {row["canvas_pixels"] for row in rows if row["probe"] != GIVEN}
    at = lambda row: round(row["images"] * (row["labelled_at"] or 0))  # noqa: E731
    both = [row for row in rows if row["canvas_pixels"] in sizes]
    return {(row["canvas_pixels"], row["probe"]): (at(row), row["images"] - at(row)) for row in both}


def _area(rows: Rows) -> str:
    """The area under the ROC curve, of the rows that have it."""
    areas = [row["area_under_roc"] for row in rows if "area_under_roc" in row]
    return (_interval(areas) + f" (n={len(areas)})" * (len(areas) < len(rows))) if areas else "–"


def _interval(values: Sequence[float]) -> str:
    mean, half_width, _ = t_interval(values)
    return f"{mean:.3f}" + (f" ± {half_width:.3f}" if half_width is not None else "")
