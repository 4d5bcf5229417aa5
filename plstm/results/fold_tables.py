"""Tables of cross-validations, such as the paper's Table 1: a section a data set, a row a model.

A cell is what one model reaches on one set: a cross-validation for each seed, of which only whole ones count.
"""

from __future__ import annotations

import csv
import io
import itertools
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plstm.results.baselines import read_baselines
from plstm.results.definitions import Row, TableDefinition
from plstm.results.intervals import Interval, t_interval
from plstm.results.records import RunRecord, commits_of, mark, read_collection, record_path
from plstm.results.sweeps import match_records, planned_runs
from plstm.results.typesetting import DASH, Latex, Markdown, Style, latex_page, markdown_table

Accuracy = Callable[[RunRecord], float]


def at_best(split: str) -> Accuracy:
    """A run's accuracy on a split at the epoch that its validation accuracy chose."""
    return lambda run: run.metrics["best"][split]["accuracy"]


def at_last(split: str) -> Accuracy:
    """A run's accuracy on a split at the last epoch."""
    return lambda run: run.metrics["last"][split]["accuracy"]


@dataclass(frozen=True)
class Cell:
    """One model, with one value of `select.over`, on one set. `seeds` has the folds' runs of every whole seed."""

    row: Row
    column: str
    chosen_value: Any
    planned: int
    seeds: dict[int, list[RunRecord]]
    partial: int  # finished runs of other seeds

    @property
    def runs(self) -> list[RunRecord]:
        """Of the whole seeds."""
        return list(itertools.chain(*self.seeds.values()))

    def mean(self, accuracy: Accuracy, seeds: Collection[int] | None = None) -> Interval:
        """Over the folds, then over the seeds (all, or those named) with their interval."""
        counted = [runs for seed, runs in self.seeds.items() if seeds is None or seed in seeds]
        return t_interval([statistics.fmean(map(accuracy, runs)) for runs in counted])

    def deviation(self, accuracy: Accuracy) -> float:
        """The sample deviation over the folds, the mean over the seeds."""
        return statistics.fmean(statistics.stdev(map(accuracy, runs)) for runs in self.seeds.values())

    @property
    def paper(self) -> list[float] | None:
        """The published [mean, +-]."""
        return (self.row.paper or {}).get(self.column)


def find_cells(table: TableDefinition, records: Sequence[RunRecord]) -> tuple[list[Cell], list[RunRecord]]:
    """All cells of a table by column, row and value, and the table's records that no cell counts."""
    matched, outside = match_records(table, records)
    fold, over, chosen = table.folds.fold, table.folds.over, table.select.over
    groups: dict[tuple, dict[int, list[RunRecord | None]]] = {}
    for run, record in matched:
        key = table.sweep[over].index(run.values[over]), table.rows.index(run.row), run.values[chosen]
        groups.setdefault(key, {}).setdefault(run.values["seed"], []).append(record)
    cells = []
    for (column, row, value), seeds in sorted(groups.items()):
        whole = {seed: runs for seed, runs in seeds.items() if None not in runs}
        partial = sum(run is not None for seed, runs in seeds.items() if seed not in whole for run in runs)
        folds = {seed: sorted(runs, key=lambda run: run.config_value(fold)) for seed, runs in whole.items()}
        cells.append(Cell(table.rows[row], table.sweep[over][column], value, len(seeds), folds, partial))
    return cells, outside


def choose(table: TableDefinition, cells: Iterable[Cell]) -> list[Cell]:
    """One cell a row and column: the highest validation accuracy at the best epoch, of those with a whole seed.

    Compared over the seeds that all of these have, where there are such.
    """
    picked = []
    for _, group in itertools.groupby(cells, key=lambda cell: (cell.column, cell.row.name)):
        group = list(group)
        whole, common = [cell for cell in group if cell.seeds], _common_seeds(group) or None
        best = max(whole, key=lambda cell: cell.mean(at_best(table.select.split), common).mean, default=group[0])
        picked.append(best)
    return picked


def _common_seeds(group: Sequence[Cell]) -> set[int]:
    """The seeds that all cells of a row and column have, but for those without any."""
    seeds = [set(cell.seeds) for cell in group if cell.seeds]
    return set.intersection(*seeds) if seeds else set()


def superfluous_runs(table: TableDefinition, records: Sequence[RunRecord]) -> set[tuple]:
    """The `PlannedRun.key` of the runs that `folds.choose_once` saves: those of cells not chosen, where one is."""
    if not (table.folds and table.folds.choose_once):
        return set()
    cells, _ = find_cells(table, records)
    rejected = set()
    for chosen in choose(table, cells):
        group = _group_of(chosen, cells)
        if all(cell.seeds for cell in group) and _common_seeds(group):
            rejected |= {(cell.row.experiment, cell.column, cell.chosen_value) for cell in group if cell is not chosen}
    over, value = table.folds.over, table.select.over
    runs = planned_runs(table)
    return {run.key for run in runs if (run.row.experiment, run.values[over], run.values[value]) in rejected}


def _group_of(cell: Cell, cells: Iterable[Cell]) -> list[Cell]:
    """The cells of its row and column, one for each value of `select.over`."""
    return [other for other in cells if (other.row, other.column) == (cell.row, cell.column)]


def describe_folds(finished: Iterable[tuple[Path, str]]) -> list[str]:
    """A line for every cross-validation of which several folds are among these runs, (record's path, id) each."""
    ids: dict[Path, set[str]] = {}
    for path, run in finished:
        if path.suffix == ".jsonl":
            ids.setdefault(path, set()).add(run)
    groups: dict[str, list[RunRecord]] = {}
    for path, wanted in ids.items():
        for record in read_collection(path):
            if record.id in wanted:
                same = [o for o in record.overrides if not o.startswith(("data.fold=", "experiment=", "data.name="))]
                what = [record.experiment, record.config["data"]["name"], f"seed {record.seed}"]
                what += [o for o in same if not o.startswith("seed=")]
                groups.setdefault(", ".join(what), []).append(record)
    lines = []
    for what, runs in groups.items():
        if len(runs) > 1:
            best, last = ([accuracy("test")(run) for run in runs] for accuracy in (at_best, at_last))
            figures = [f"{statistics.fmean(found):.4f} ± {statistics.stdev(found):.4f}" for found in (best, last)]
            lines.append(
                f"{what}: test accuracy over {len(runs)} folds {figures[0]} at the best validation epoch, {figures[1]} "
                "at the last (± deviation over the folds)"
            )
    return lines


def render(table: TableDefinition, records: Sequence[RunRecord], results_dir: Path) -> dict[str, str]:
    """The contents of the table's .md, .csv and .tex."""
    cells, outside = find_cells(table, records)
    shown = choose(table, cells)
    baselines = read_baselines(table, results_dir)
    notes = [*table.notes, *_notes(cells, shown, outside)]
    return {
        "md": _markdown(table, cells, shown, baselines, notes),
        "csv": _csv(table, cells, shown),
        "tex": _latex(table, cells, shown, baselines, notes),
    }


def _notes(cells: list[Cell], shown: list[Cell], outside: list[RunRecord]) -> list[str]:
    notes = []
    fewer = []
    for cell in shown:
        common = len(_common_seeds(_group_of(cell, cells)))
        if common < len(cell.seeds):
            fewer.append(f"{cell.row.name} on {cell.column}: {common} of {len(cell.seeds)}")
    if fewer:
        notes.append(f"Rows whose depth was chosen by fewer seeds, those that both depths have: {'; '.join(fewer)}.")
    partial = [f"{c.row.name} on {c.column}, {c.chosen_value} layers: {c.partial}" for c in cells if c.partial]
    if partial:
        notes.append(f"Finished runs of seeds that miss folds, not counted: {'; '.join(partial)}.")
    if any(mark(run) for cell in cells for run in cell.runs):
        notes.append("* The code of a run may differ from the commit: changed files in its working tree, or no git.")
    if outside:
        notes.append(f"Not counted, because the sweep of this table does not list their values: {len(outside)} runs.")
    return notes


HEADER = ["Model", "Layers", "Best epoch", "Over seeds", "Last epoch", "Over seeds", "Paper", "Difference"]
HEADER += ["Parameters", "Seconds a fold", "Seeds", "Commit"]


def _cells(table: TableDefinition, cells: list[Cell], cell: Cell, style: Style) -> list[str]:
    paper = style.math(f"{cell.paper[0]:.4f} {style.pm} {cell.paper[1]:.2f}") if cell.paper else DASH
    name = style.escape(cell.row.name)
    if not cell.seeds:
        return [name, *[DASH] * 5, paper, *[DASH] * 3, f"0 of {cell.planned}", DASH]
    missing = [str(other.chosen_value) for other in _group_of(cell, cells) if not other.seeds]
    layers = f"{cell.chosen_value}" + (f" ({', '.join(missing)} not run)" if missing else "")
    figures = []
    for accuracy in (at_best("test"), at_last("test")):
        mean = cell.mean(accuracy)
        deviation, width = cell.deviation(accuracy), mean.half_width
        figures.append(style.math(f"{mean.mean:.{table.digits}f} {style.pm} {deviation:.{table.digits}f}"))
        figures.append(DASH if width is None else style.math(f"{style.pm} {width:.{table.digits}f}"))
    difference = cell.mean(at_best("test")).mean - cell.paper[0] if cell.paper else None
    first = cell.runs[0]
    where = record_path(first.id, first.config, "..")
    return [
        style.link(name, str(where)),
        layers,
        *figures,
        paper,
        DASH if difference is None else style.math(f"{difference:+.{table.digits}f}"),
        f"{first.parameters:,}",
        f"{statistics.fmean(run.wall_seconds for run in cell.runs):.1f}",
        f"{len(cell.seeds)} of {cell.planned}",
        ", ".join(map(style.escape, commits_of(cell.runs))),
    ]


def _baseline(table: TableDefinition, entry: dict[str, Any], column: str, style: Style) -> list[str]:
    value = entry.get(column)
    figure = DASH if value is None else style.math(f"{value:.{table.digits}f}")
    return [style.escape(entry["name"]), DASH, figure, DASH, figure, *[DASH] * (len(HEADER) - 5)]


def _section(table: TableDefinition, cells, shown, baselines, column: str, style: Style) -> list[list[str]]:
    rows = [_cells(table, cells, cell, style) for cell in shown if cell.column == column]
    return rows + [_baseline(table, entry, column, style) for entry in baselines]


def _overview(table: TableDefinition, shown: list[Cell]) -> list[list[str]]:
    """Ours at the best epoch, and the paper's in brackets."""
    grid = [["Model", *table.columns.values()]]
    for row in table.rows:
        line = [Markdown.escape(row.name)]
        for column in table.columns:
            cell = next((c for c in shown if c.row is row and c.column == column), None)
            ours = f"{cell.mean(at_best('test')).mean:.{table.digits}f}" if cell and cell.seeds else DASH
            paper = (row.paper or {}).get(column)
            line.append(f"{ours} ({paper[0]:.{table.digits}f})" if paper else ours)
        grid.append(line)
    return grid


def _markdown(table: TableDefinition, cells, shown, baselines, notes) -> str:
    lines = [f"# {table.title}", "", table.caption.strip(), "", "Ours at the best epoch (paper):", ""]
    lines += markdown_table(_overview(table, shown))
    for column, title in table.columns.items():
        lines += ["", f"## {title}", ""]
        lines += markdown_table([HEADER, *_section(table, cells, shown, baselines, column, Markdown)])
    lines += ["", "## Notes", "", *(f"- {Markdown.escape(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def _csv(table: TableDefinition, cells: list[Cell], shown: list[Cell]) -> str:
    """One line a cell, those of the table marked as chosen."""
    lines = []
    for cell in cells:
        line: dict[str, Any] = {"set": cell.column, "model": cell.row.name, "experiment": cell.row.experiment}
        line |= {table.swept_name: cell.chosen_value, "chosen": int(any(cell is c for c in shown) and bool(cell.seeds))}
        line |= {"seeds_finished": len(cell.seeds), "seeds_planned": cell.planned, "partial_runs": cell.partial}
        for name, accuracy in (
            ("val_best", at_best(table.select.split)),
            ("test_best", at_best("test")),
            ("test_last", at_last("test")),
        ):
            mean = cell.mean(accuracy) if cell.seeds else Interval(None, None, 0)
            line |= {name: mean.mean, f"{name}_interval": mean.half_width}
            line[f"{name}_deviation"] = cell.deviation(accuracy) if cell.seeds else None
        paper = [*(cell.paper or ()), None, None]
        line |= {"paper": paper[0], "paper_deviation": paper[1]}
        line["parameters"] = cell.runs[0].parameters if cell.seeds else None
        line["seconds_a_fold"] = statistics.fmean(r.wall_seconds for r in cell.runs) if cell.seeds else None
        line["seeds"] = " ".join(map(str, cell.seeds))
        lines.append(line)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: f"{value:.12g}" if isinstance(value, float) else value for key, value in line.items()})
    return text.getvalue()


def _latex(table: TableDefinition, cells, shown, baselines, notes) -> str:
    style, lines = Latex, []
    for column, title in table.columns.items():
        lines.append(rf"\midrule \multicolumn{{{len(HEADER)}}}{{l}}{{{style.escape(title)}}} \\")
        section = _section(table, cells, shown, baselines, column, style)
        lines += [" & ".join(line) + r" \\" for line in section]
    return latex_page(table, HEADER, lines, notes)
