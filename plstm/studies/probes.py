"""What `scripts/probe_arrow.py` found of a table's runs, and the shortcut baselines on the same canvases."""

import json
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from plstm.errors import UserError
from plstm.studies.definitions import TableDefinition
from plstm.studies.records import Record
from plstm.studies.sweeps import Cell, t_interval

Rows = list[dict[str, Any]]  # a canvas size and an alteration (of baselines: a name) each, with its scores
DASH = "–"
GIVEN = "as given"
RETRAINED = "-retrained"  # in the name of a second training's file: the same config, as the run's weights were gone
FEWEST = 50  # images, of a band of distances or of the rarer label: a score of fewer is not shown


class Probes(NamedTuple):
    """What was found of the runs of a row."""

    rows: list[Rows]  # of each probed run
    retrained: int  # how many of them are second trainings

    @property
    def count(self) -> str:
        retrained = str(self.retrained) if self.retrained < len(self.rows) else "all"
        return f"n={len(self.rows)}" + f", {retrained} retrained" * bool(self.retrained)


def probe_path(run: Record, results_dir: Path) -> Path | None:
    """The file of a run's scores, else that of its second training's; None where there is neither."""
    for kind in ("", RETRAINED):
        for name in (f"{run.name}-{run.id}", run.id):
            if (path := results_dir / "probes" / f"{name}{kind}.json").is_file():
                return path
    return None


def read_probes(runs: Sequence[Record], results_dir: Path) -> Probes:
    paths = [path for run in runs if (path := probe_path(run, results_dir))]
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
    bands = [band for band in bands if band["images"] >= FEWEST]
    return [((band["from_pixels"] + band["to_pixels"]) / 2, band["accuracy"]) for band in bands]


def _given(rows: Rows) -> Rows:
    return [row for row in rows if row.get("probe", GIVEN) == GIVEN]


def render_probes(table: TableDefinition, cells: Sequence[Cell], results_dir: Path) -> dict[str, str]:
    """probes.md and probes.csv, the scores on altered images; nothing where no run was probed."""
    found = {cell.row.name: read_probes(cell.runs, results_dir) for cell in cells}
    probed = {name: probes.rows for name, probes in found.items() if probes.rows}
    if not probed:
        return {}
    counts, *others = (_counts(rows) for runs in probed.values() for rows in runs)
    if any(other != counts for other in others):
        words = f"runs of table {table.name} were probed on different images; probe them again with the same --count"
        raise UserError(f"{results_dir / 'probes'}: {words}")
    shown = [place for place, count in counts.items() if min(count) >= FEWEST]
    sizes, names = (list(dict.fromkeys(part)) for part in zip(*sorted(counts, key=itemgetter(0)), strict=True))
    names = [name for name in names if any(name == other for _, other in shown)]
    models = probed | {name: [rows] for name, rows in read_sizes(table, results_dir).items()}

    def scores(runs: list[Rows], size: int, name: str, key: str) -> str:
        return _mean(_same(runs, size, name, key)) if (size, name) in shown else DASH

    text = [f"# {table.title}: altered images", "", CAPTION]
    if retrained := [f"{name} ({probes.count})" for name, probes in found.items() if probes.retrained]:
        text += ["", f"{AGAIN} {', '.join(retrained)}."]
    header = [["Model", "n", "Canvas", *names], ["---"] * (3 + len(names))]
    for size in sizes:
        images = (f"{at:,} / {past:,}" for at, past in (counts.get((size, name), (0, 0)) for name in names))
        header.append(["images: points at it / not", "", str(size), *images])
    for title, key in SCORES.items():
        lines = [
            [model, str(len(runs)), str(size), *(scores(runs, size, name, key) for name in names)]
            for model, runs in models.items()
            for size in sizes
        ]
        text += ["", f"## {title}", "", *("| " + " | ".join(line) + " |" for line in header + lines)]
    return {"probes.md": "\n".join(text) + "\n", "probes.csv": _csv(probed, counts)}


SCORES = {"Balanced accuracy": "balanced_accuracy", "Area under the ROC curve": "area_under_roc"}
CAPTION = (
    "Scores on test images as given and altered: mean over n runs ± Student's 90% t interval; (n=...) where fewer were "
    "measured. The altered geometry gives the label; without the circle it is the label from before. Balanced accuracy "
    "is the mean of the accuracies on arrows that point at the circle and on those that do not. The area under the ROC "
    "curve does not depend on the threshold. All runs see the same images, whose sampling error the interval leaves "
    f"out; no score is shown where a label has fewer than {FEWEST} images. The last rows are classifiers that see only "
    "the named part of the exact geometry. Made by `scripts/probe_arrow.py` and `scripts/shortcut_baselines.py`."
)
AGAIN = "Retrained for its scores, because the weights were gone; these may differ from the recorded run's:"


def _csv(probed: dict[str, list[Rows]], counts: dict[tuple[int, str], tuple[int, int]]) -> str:
    """A line a row, canvas, alteration of enough images, metric, and mean, interval or n (`seed`, as in table.csv)."""
    lines = []
    for model, runs in probed.items():
        places = dict.fromkeys((row["canvas_pixels"], row["probe"]) for rows in runs for row in rows)
        for size, name in places:
            if min(counts.get((size, name), [FEWEST])) < FEWEST:
                continue
            for key in ("accuracy", *SCORES.values(), "answered_at"):
                mean, half_width, count = t_interval(_measured(_same(runs, size, name, key)))
                values = {"mean": mean, "interval": half_width, "n": count} if count else {}
                own = ((seed, key, value) for seed, value in values.items() if value is not None)
                lines += [(model, size, name, *line) for line in own]
    frame = pd.DataFrame(lines, columns=["row", "canvas", "probe", "seed", "metric", "value"])
    return frame.to_csv(index=False, lineterminator="\n", float_format="%.9g")


def _same(runs: list[Rows], size: int, name: str, key: str) -> list[float | None]:
    """A score of each run on one canvas with one alteration."""
    rows = (row for rows in runs for row in rows)
    return [row.get(key) for row in rows if (row["canvas_pixels"], row.get("probe", GIVEN)) == (size, name)]


def _measured(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _counts(rows: Rows) -> dict[tuple[int, str], tuple[int, int]]:
    """{(canvas, alteration): (images whose arrow points at the circle, others)}, of canvases with altered images."""
    sizes = {row["canvas_pixels"] for row in rows if row["probe"] != GIVEN}
    at = {(row["canvas_pixels"], row["probe"]): round(row["images"] * (row["labelled_at"] or 0)) for row in rows}
    return {
        place: (at[place], row["images"] - at[place])
        for row in rows
        if (place := (row["canvas_pixels"], row["probe"]))[0] in sizes
    }


def _mean(values: Sequence[float | None]) -> str:
    """Mean and interval of the measured values, with their number if some are missing; a dash if all are."""
    mean, half_width, count = t_interval(_measured(values))
    if not count:
        return DASH
    interval = f" ± {half_width:.3f}" if half_width is not None else ""
    return f"{mean:.3f}{interval}" + f" (n={count})" * (count < len(values))
