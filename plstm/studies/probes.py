"""What `scripts/probe_arrow.py` found of a table's runs, and the shortcut baselines on the same canvases."""

import json
from collections.abc import Container, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from plstm.errors import UserError
from plstm.studies.definitions import TableDefinition
from plstm.studies.markdown import DASH, pipes
from plstm.studies.records import Record
from plstm.studies.sweeps import Cell, t_interval

Rows = list[dict[str, Any]]  # a canvas size and an alteration (of baselines: a name) each, with its scores
# (canvas, alteration): (images whose arrow points at the circle, others)
Counts = dict[tuple[int, str], tuple[int, int]]
Models = dict[str, dict[int | None, Rows]]  # the runs of a model by seed; a baseline has none
Scores = dict[tuple, dict[int | None, float]]  # (model, canvas, alteration, metric) -> the runs that have one
GIVEN = "as given"
RETRAINED = "-retrained"  # in the name of a second training's file: the same config, as the run's weights were gone
AREA = "area_under_roc"
FEWEST = 50  # images of the rarer label: a score of fewer is not shown


class Probes(NamedTuple):
    """What was found of the runs of a row."""

    rows: dict[int, Rows]  # of each probed run, by its seed
    retrained: int  # how many of them are second trainings

    @property
    def count(self) -> str:
        retrained = str(self.retrained) if self.retrained < len(self.rows) else "all"
        return f"n={len(self.rows)}" + f", {retrained} retrained" * bool(self.retrained)


def probe_file(name: str, run: str, results_dir: Path, kind: str = "") -> Path:
    """Where the scores of a run, of this name and id, are or will be; kind: of its second training, RETRAINED."""
    return results_dir / "probes" / f"{name}-{run}{kind}.json"


def probe_path(run: Record, results_dir: Path) -> Path | None:
    """The file of a run's scores, else that of its second training's; None where there is neither."""
    paths = (probe_file(run.name, run.id, results_dir, kind) for kind in ("", RETRAINED))
    return next((path for path in paths if path.is_file()), None)


def read_probes(runs: Sequence[Record], results_dir: Path) -> Probes:
    """The scores of those runs that were probed."""
    paths = {run.seed: path for run in runs if (path := probe_path(run, results_dir))}
    found = {seed: rows for seed, path in paths.items() if (rows := _read(path, "rows"))}  # models of code have none
    return Probes(found, sum(paths[seed].stem.endswith(RETRAINED) for seed in found))


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


def roc_areas(runs: Sequence[Record], canvas: int, results_dir: Path) -> dict[int, float]:
    """Seed -> the area under the ROC curve of unaltered images of a canvas, of the runs that have one."""
    probed = read_probes(runs, results_dir).rows
    wanted = {"canvas_pixels": canvas, "probe": GIVEN}
    found = {seed: next((row for row in rows if wanted.items() <= row.items()), {}) for seed, rows in probed.items()}
    return {seed: row[AREA] for seed, row in found.items() if row.get(AREA) is not None}


def points_by_size(rows: Rows) -> list[tuple[float, float]]:
    """(canvas side, accuracy) of unaltered images."""
    return [(row["canvas_pixels"], row["accuracy"]) for row in rows if row.get("probe", GIVEN) == GIVEN]


def render_probes(table: TableDefinition, cells: dict[str, Cell], results_dir: Path) -> dict[str, str]:
    """probes.md and probes.csv, the scores on altered images; nothing where no run was probed."""
    found = {name: read_probes(cell.runs, results_dir) for name, cell in cells.items()}
    probed = {name: probes.rows for name, probes in found.items() if probes.rows}
    if not probed:
        return {}
    counts, *others = (_counts(rows) for runs in probed.values() for rows in runs.values())
    if any(other != counts for other in others):
        words = f"runs of table {table.name} were probed on different images; probe them again with the same --count"
        raise UserError(f"{results_dir / 'probes'}: {words}")
    models = probed | {name: {None: rows} for name, rows in read_sizes(table, results_dir).items()}
    scores = _scores(models, counts)
    caption = [CAPTION]
    if retrained := [f"{name} ({probes.count})" for name, probes in found.items() if probes.retrained]:
        caption += ["", f"{AGAIN} {', '.join(retrained)}."]
    text = [f"# {table.title}: altered images", "", *caption, *_tables(models, counts, scores)]
    return {"probes.md": "\n".join(text) + "\n", "probes.csv": _long_csv(table, scores, probed)}


def _scores(models: Models, counts: Counts) -> Scores:
    scores: Scores = {}
    found = ((model, seed, row) for model, runs in models.items() for seed, rows in runs.items() for row in rows)
    for model, seed, row in found:
        place = row["canvas_pixels"], row.get("probe", GIVEN)
        for key in METRICS:
            values = scores.setdefault((model, *place, key), {})
            if min(counts.get(place, [FEWEST])) >= FEWEST and row.get(key) is not None:
                values[seed] = row[key]
    return scores


def _tables(models: Models, counts: Counts, scores: Scores) -> Iterator[str]:
    """The lines of a table for each of TITLES: a row a model and canvas, a column an alteration."""
    sizes = sorted({size for size, _ in counts})
    names = list(dict.fromkeys(name for (_, name), count in counts.items() if min(count) >= FEWEST))
    header = [["Model", "n", "Canvas", *names]]
    for size in sizes:
        images = ("{:,} / {:,}".format(*counts[size, name]) for name in names)
        header.append(["images: points at it / not", "", str(size), *images])
    for title, key in TITLES.items():
        lines = []
        for (model, runs), size in product(models.items(), sizes):
            means = (_mean([*scores.get((model, size, name, key), {}).values()], len(runs)) for name in names)
            lines.append([model, str(len(runs)), str(size), *means])
        yield from ("", f"## {title}", "", *pipes(header + lines))


def _long_csv(table: TableDefinition, scores: Scores, probed: Container[str]) -> str:
    lines = []
    for (*place, metric), values in scores.items():
        summary = dict(zip(("mean", "interval", "n"), t_interval([*values.values()]), strict=True))
        shown = values | summary if table.shows_all_choices else summary
        if place[0] in probed and values:
            lines += [(*place, seed, metric, value) for seed, value in shown.items() if value is not None]
    frame = pd.DataFrame(lines, columns=["row", "canvas", "probe", "seed", "metric", "value"])
    return frame.to_csv(index=False, lineterminator="\n", float_format="%.9g")


TITLES = {"Balanced accuracy": "balanced_accuracy", "Area under the ROC curve": AREA}
METRICS = ("accuracy", *TITLES.values(), "answered_at")
CAPTION = f"""\
Mean over n runs ± Student's 90% t interval; (n=...) where fewer were measured. The altered geometry gives the label;
without the circle it is the label from before. Balanced accuracy is the mean over the two labels. All runs see the same
images, whose sampling error the interval leaves out; no score is shown where a label has fewer than {FEWEST} images.
The last rows are classifiers that see only the named part of the exact geometry."""
AGAIN = "Trained again for these scores, as the weights were gone; they may differ from the recorded run's:"


def _counts(rows: Rows) -> Counts:
    """Of canvases with altered images."""
    sizes = {row["canvas_pixels"] for row in rows if row["probe"] != GIVEN}
    at = [(row, round(row["images"] * (row["labelled_at"] or 0))) for row in rows if row["canvas_pixels"] in sizes]
    return {(row["canvas_pixels"], row["probe"]): (count, row["images"] - count) for row, count in at}


def _mean(values: list[float], runs: int) -> str:
    """Mean and interval of the measured values, with their number if some are missing; a dash if all are."""
    mean, half_width, count = t_interval(values)
    if mean is None:
        return DASH
    interval = f" ± {half_width:.3f}" if half_width is not None else ""
    return f"{mean:.3f}{interval}" + f" (n={count})" * (count < runs)
