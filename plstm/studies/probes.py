"""What `scripts/probe_arrow.py` found of a table's runs, and the shortcut baselines on the same canvases."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from plstm.errors import UserError
from plstm.studies.definitions import TableDefinition
from plstm.studies.records import Record
from plstm.studies.sweeps import Cell, t_interval

Rows = list[dict[str, Any]]  # a canvas size and an alteration (of baselines: a name) each, with its scores
GIVEN = "as given"
RETRAINED = "-retrained"  # in the name of a second training's file: the same config, as the run's weights were gone
FEWEST = 50  # images, of a band of distances or of the rarer label: a score of fewer is not shown


class Probes(NamedTuple):
    """What was found of the runs of a row."""

    rows: list[Rows]  # of each probed run
    again: int  # how many of them are second trainings

    @property
    def count(self) -> str:
        return f"n={len(self.rows)}" + f", {self.again} trained again" * bool(self.again)


def probe_path(run: str, results_dir: Path) -> Path | None:
    """The file of a run's scores, else that of its second training's; None where there is neither."""
    paths = (results_dir / "probes" / f"{run}{kind}.json" for kind in ("", RETRAINED))
    return next((path for path in paths if path.is_file()), None)


def read_probes(runs: Sequence[Record], results_dir: Path) -> Probes:
    paths = [path for run in runs if (path := probe_path(run.id, results_dir))]
    return Probes([_read(path, "rows") for path in paths], sum(path.stem.endswith(RETRAINED) for path in paths))


def read_sizes(table: TableDefinition, results_dir: Path) -> dict[str, Rows]:
    """The rows of each shortcut baseline, by name; empty where they were measured on the splits alone."""
    path = results_dir / (table.baselines or "")
    rows = _read(path, "sizes") if path.is_file() else []
    return {name: [row for row in rows if row["name"] == name] for name in dict.fromkeys(row["name"] for row in rows)}


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
    """The .md and .csv of scores on altered images, path -> contents; nothing where no run was probed."""
    found = {cell.row.name: read_probes(cell.runs, results_dir) for cell in cells}
    again = {name: probes.count for name, probes in found.items() if probes.again}
    probed = {name: probes.rows for name, probes in found.items() if probes.rows}
    if not probed:
        return {}
    counts, *others = (_counts(rows) for runs in probed.values() for rows in runs)
    if any(other != counts for other in others):
        words = f"runs of table {table.name} were probed on different images; probe them again with the same --count"
        raise UserError(f"{results_dir / 'probes'}: {words}")
    sizes = sorted({size for size, _ in counts})
    names = list(dict.fromkeys(name for (_, name), count in counts.items() if min(count) >= FEWEST))
    shortcuts = {name: [rows] for name, rows in read_sizes(table, results_dir).items()}

    def scores(runs: list[Rows], size: int, name: str, key: str) -> str:
        same = [row for rows in runs for row in rows if (row["canvas_pixels"], row.get("probe", GIVEN)) == (size, name)]
        return _mean([row.get(key) for row in same if min(counts[size, name]) >= FEWEST])

    header = [["Model", "n", "Canvas", *names], ["---"] * (3 + len(names))]
    for size in sizes:
        texts = [f"{at:,} / {past:,}" for at, past in (counts[size, name] for name in names)]
        header.append(["images: points at it / not", "", str(size), *texts])
    text = [f"# {table.title}: altered images", "", CAPTION]
    if again:
        text += ["", f"{AGAIN} {'; '.join(f'{name}: {count}' for name, count in again.items())}."]
    for title, key in SCORES.items():
        lines = [
            [model, str(len(runs)), str(size), *(scores(runs, size, name, key) for name in names)]
            for model, runs in (probed | shortcuts).items()
            for size in sizes
        ]
        text += ["", f"## {title}", "", *("| " + " | ".join(line) + " |" for line in header + lines)]
    texts = {"md": "\n".join(text) + "\n", "csv": _csv(probed, counts)}
    return {results_dir / "tables" / f"{table.name}-probes.{kind}": text.encode() for kind, text in texts.items()}


SCORES = {"Balanced accuracy": "balanced_accuracy", "Area under the ROC curve": "area_under_roc"}
CAPTION = (
    "Balanced accuracy (the mean of the accuracies on arrows that point at the circle and on those that do not) on "
    "test images as given and altered. The altered geometry gives the label; without the circle it is the one "
    "before. The area under the ROC curve is how often an image whose arrow points at the circle gets a larger "
    "difference of the two logits than one whose arrow does not; it does not depend on the threshold. Mean over n "
    "runs ± Student's 90% t interval; (n=...): only so many were measured. All runs see the same images, whose "
    f"sampling error the interval does not include; no score is shown where a label has fewer than {FEWEST} images. "
    "The last rows are classifiers of the exact geometry or a part of it. `scripts/probe_arrow.py` and "
    "`scripts/shortcut_baselines.py` make the scores."
)
AGAIN = (
    "Where weights were gone, the config was trained again for its scores, which may differ from the recorded run's "
    "(`results/probes/<run>-retrained.json`):"
)


def _csv(probed: dict[str, list[Rows]], counts: dict[tuple[int, str], tuple[int, int]]) -> str:
    """A line a model, canvas and alteration of enough images: runs, and mean, half width and number of each score."""
    lines = []
    for model, runs in probed.items():
        scores = pd.DataFrame([row for rows in runs for row in rows])
        for (size, name), same in scores.groupby(["canvas_pixels", "probe"], sort=False):
            if min(counts.get((size, name), [FEWEST])) < FEWEST:
                continue
            line = {"model": model, "canvas_pixels": size, "probe": name, "n": len(same)}
            for key in ("accuracy", *SCORES.values(), "answered_at"):
                if key in same and same[key].notna().any():
                    mean, half_width, count = t_interval(same[key].dropna().tolist())
                    line |= {key: mean, f"{key}_interval": half_width, f"{key}_n": count}
            lines.append(line)
    return pd.DataFrame(lines).to_csv(index=False, lineterminator="\n", float_format="%.12g")


def _counts(rows: Rows) -> dict[tuple[int, str], tuple[int, int]]:
    """{(canvas, alteration): (images whose arrow points at the circle, others)}, of canvases with altered images."""
    sizes = {row["canvas_pixels"] for row in rows if row["probe"] != GIVEN}
    at = lambda row: round(row["images"] * (row["labelled_at"] or 0))  # noqa: E731
    both = [row for row in rows if row["canvas_pixels"] in sizes]
    return {(row["canvas_pixels"], row["probe"]): (at(row), row["images"] - at(row)) for row in both}


def _mean(values: Sequence[float | None]) -> str:
    """Mean and interval of the measured values, with their number if some are missing; a dash if all are."""
    measured = [value for value in values if value is not None]
    if not measured:
        return "–"
    mean, half_width, _ = t_interval(measured)
    interval = f" ± {half_width:.3f}" if half_width is not None else ""
    return f"{mean:.3f}{interval}" + (f" (n={len(measured)})" if len(measured) < len(values) else "")
