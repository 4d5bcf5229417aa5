"""Results tables, made from run records alone: Markdown with a link behind every number, CSV, and LaTeX.

The same records give the same bytes: there are no dates, and CSV numbers have 12 significant digits because the last
bits of a t quantile differ between SciPy releases.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.files import write_file
from plstm.results import fold_tables
from plstm.results.baselines import read_baselines
from plstm.results.definitions import Row, TableDefinition
from plstm.results.intervals import Interval, t_interval
from plstm.results.records import RunRecord, commits_of, mark
from plstm.results.sweeps import match_records
from plstm.results.typesetting import DASH, Latex, Markdown, Style, latex_page, markdown_table

if TYPE_CHECKING:
    from plstm.runs.cost import Cost

COSTS = ("parameters", "flops")


@dataclass(frozen=True)
class TableRow:
    """A row of the definition with its finished runs.

    `runs` are all of them, `chosen` those with the value of `select.over` that `select` chooses, `planned` the number
    that the sweep asks for. Accuracies are in the table's unit, `scale` times a fraction. `cost` is there where the
    table shows costs.
    """

    row: Row
    planned: int
    runs: list[RunRecord]
    chosen: list[RunRecord]
    scale: int = 1
    cost: Cost | None = None

    def ours(self, split: str) -> Interval | None:
        """Accuracy on a split over the chosen runs' seeds, None before the first."""
        return t_interval([self.scale * run.metric(split) for run in self.chosen]) if self.chosen else None

    def paper(self, split: str) -> list[float] | None:
        """The published [mean, +-], or [mean] in a table of percentages; None where there is none."""
        published = (self.row.paper or {}).get(split)
        return [published] if isinstance(published, float) else published

    def difference(self, split: str) -> float | None:
        """Ours - paper."""
        ours, paper = self.ours(split), self.paper(split)
        return ours.mean - paper[0] if ours and paper else None

    def mean(self, field: str) -> float | None:
        """The mean of a numeric record field over the chosen runs."""
        return t_interval([getattr(run, field) for run in self.chosen]).mean if self.chosen else None


def table_rows(table: TableDefinition, records: Sequence[RunRecord]) -> tuple[list[TableRow], list[RunRecord]]:
    """The rows in the definition's order, and the table's records that no row counts: its sweep does not list them."""
    matched, outside = match_records(table, records)
    rows = []
    for row in table.rows:
        mine = [record for run, record in matched if run.row is row]
        runs = sorted((r for r in mine if r), key=lambda r: [r.config_value(key) for key in reversed(table.sweep)])
        cost = _cost(row.experiment) if table.costs else None
        rows.append(TableRow(row, len(mine), runs, _choose(table, runs), _scale(table), cost))
    return rows, outside


def _scale(table: TableDefinition) -> int:
    return 100 if table.percent else 1


def _cost(experiment: str) -> Cost:
    from plstm.runs.cost import experiment_cost  # it brings in JAX

    return experiment_cost(experiment)


def _choose(table: TableDefinition, runs: list[RunRecord]) -> list[RunRecord]:
    select = table.select
    if select is None or not runs:
        return runs
    groups = [[r for r in runs if r.config_value(select.over) == value] for value in table.sweep[select.over]]
    return max(filter(None, groups), key=lambda g: t_interval([r.metric(select.split, select.metric) for r in g]).mean)


def render_table(table: TableDefinition, records: Sequence[RunRecord], results_dir: Path) -> dict[Path, bytes]:
    """The files of a table, path -> contents: `tables/<name>.md`, `.csv` and `.tex` below `results_dir`."""
    texts = (fold_tables.render if table.folds else _render)(table, records, results_dir)
    return {results_dir / "tables" / f"{table.name}.{kind}": text.encode() for kind, text in texts.items()}


def _render(table: TableDefinition, records: Sequence[RunRecord], results_dir: Path) -> dict[str, str]:
    rows, outside = table_rows(table, records)
    baselines = read_baselines(table, results_dir)
    notes = [*table.notes, *_notes(rows, outside)]
    return {
        "md": _markdown_file(table, rows, baselines, notes),
        "csv": _csv_file(table, rows, baselines),
        "tex": _latex_file(table, rows, baselines, notes),
    }


def write_table(table: TableDefinition, records: Sequence[RunRecord], results_dir: Path) -> list[Path]:
    """Write the files of `render_table`; return their paths."""
    files = render_table(table, records, results_dir)
    for path, data in files.items():
        write_file(path, data)
    return list(files)


def stale_files(table: TableDefinition, records: Sequence[RunRecord], results_dir: Path) -> list[str]:
    """One line for every file of the table that is missing or is not what the records give."""
    files = render_table(table, records, results_dir)
    missing = [f"missing: {path}" for path in files if not path.is_file()]
    return missing + [f"stale: {path}" for path in files if path.is_file() and path.read_bytes() != files[path]]


def _notes(rows: list[TableRow], outside: list[RunRecord]) -> list[str]:
    notes = []
    if any(mark(run) for row in rows for run in row.runs):
        notes.append("* The code of this run may differ from the commit: changed files in its working tree, or no git.")
    if outside:
        names = ", ".join(f"runs/{run.id}.json" for run in outside)
        notes.append(f"Not counted, because the sweep of this table does not list their values: {names}.")
    return notes


def _grid(
    table: TableDefinition, rows: list[TableRow], baselines: list[dict[str, Any]], style: Style
) -> list[list[str]]:
    """The table as text, headers first.

    Models, what they cost to compute, their accuracies beside the paper's, and what the runs took; then the baselines
    and other models' published figures.
    """
    published = bool(table.references) or any(row.row.paper for row in rows)
    header = ["Model", *_cost_header(table)]
    if table.select:
        header.append(style.escape(table.swept_name))
        header += [style.escape(f"{table.swept_name} (paper)")] * published
    first = len(header)
    for title in table.columns.values():
        header += [style.escape(title), *["Paper", "Difference"] * published]
    header += [*["Epochs"] * (not table.costs), "Images/s", "Hours a run", "Commit"]
    grid = [header]
    for row in rows:
        cells = [_model(row, style), *_cost_cells(table, row)]
        if table.select:
            cells.append(str(row.chosen[0].config_value(table.select.over)) if row.chosen else DASH)
            cells += [str((row.row.paper or {}).get(table.swept_name, DASH))] * published
        for split in table.columns:
            cells.append(_ours(table, row, split, style))
            if published:
                cells.append(_published(table, row.paper(split), style))
                cells.append(_number(row.difference(split), f"+.{table.digits}f", style))
        seconds = row.mean("wall_seconds")
        cells += [_number(row.mean("epochs"), ".4g")] * (not table.costs)
        cells.append(_number(row.mean("images_per_second"), ".0f"))
        cells.append(_number(None if seconds is None else seconds / 3600, ".2f"))
        cells.append(", ".join(map(style.escape, commits_of(row.chosen))) or DASH)
        grid.append(cells)
    for entry in baselines:
        cells = [style.escape(entry["name"]), *[DASH] * (len(header) - 1)]
        for index, split in enumerate(table.columns):
            value = entry.get(split)
            value = None if value is None else _scale(table) * value
            cells[first + index * (1 + 2 * published)] = _number(value, f".{table.digits}f")
        grid.append(cells)
    for model in table.references:
        costs = [DASH, model.epochs, DASH, model.parameters, DASH, model.flops]
        cells = [style.escape(model.name), *map(style.escape, costs), *[DASH] * (len(header) - 7)]
        for index, split in enumerate(table.columns):
            cells[first + index * 3 + 1] = _published(table, [model.accuracy[split]], style)
        grid.append(cells)
    return grid


def _cost_header(table: TableDefinition) -> list[str]:
    if not table.costs:
        return []
    header = ["Pixels", "Epochs", "Parameters", "Parameters (paper)", "Multiply-adds", "FLOPS (paper)"]
    return header if _has_paper_costs(table) else [title for title in header if "paper" not in title]


def _has_paper_costs(table: TableDefinition) -> bool:
    return bool(table.references) or any("flops" in (row.paper or {}) for row in table.rows)


def _cost_cells(table: TableDefinition, row: TableRow) -> list[str]:
    """Of the row's experiment; a fine-tuned row's epochs stand behind those of the run that it starts from."""
    if row.cost is None:
        return []
    epochs = f"{row.cost.epochs:g}"
    if row.row.init_from:
        epochs = f"{_cost(row.row.init_from).epochs:g}+{epochs}"
    shown = [f"{row.cost.parameters:,}", f"{row.cost.flops / 2e9:.3g}G"]
    paper = [[(row.row.paper or {}).get(key, DASH)] * _has_paper_costs(table) for key in COSTS]
    return [str(row.cost.pixels), epochs, shown[0], *paper[0], shown[1], *paper[1]]


def _published(table: TableDefinition, paper: list[float] | None, style: Style) -> str:
    return style.math(f" {style.pm} ".join(f"{number:.{table.digits}f}" for number in paper)) if paper else DASH


def _model(row: TableRow, style: Style) -> str:
    name = style.link(style.escape(row.row.name), f"../../configs/experiment/{row.row.experiment}.yaml")
    return f"{name} ({len(row.runs)} of {row.planned} runs)" if len(row.runs) < row.planned else name


def _ours(table: TableDefinition, row: TableRow, split: str, style: Style) -> str:
    ours = row.ours(split)
    if ours is None:
        return DASH
    interval = "" if ours.half_width is None else f" {style.pm} {ours.half_width:.{table.digits}f}"
    star = style.escape(max(mark(run) for run in row.chosen))
    return f"{style.math(f'{ours.mean:.{table.digits}f}{interval}')}{star} (n={ours.n}{style.sources(row.chosen)})"


def _number(value: float | None, form: str, style: Style = Markdown) -> str:
    return DASH if value is None else style.math(format(value, form))


def _markdown_file(
    table: TableDefinition, rows: list[TableRow], baselines: list[dict[str, Any]], notes: list[str]
) -> str:
    lines = [f"# {table.title}", "", table.caption.strip(), ""]
    lines += markdown_table(_grid(table, rows, baselines, Markdown))
    if notes:
        lines += ["", "## Notes", "", *(f"- {Markdown.escape(note)}" for note in notes)]
    if any(row.runs for row in rows):
        lines += ["", "## Runs", "", "Every finished run; those marked ✓ are in the table above.", ""]
        lines += markdown_table(_run_list(table, rows))
    return "\n".join(lines) + "\n"


def _run_list(table: TableDefinition, rows: list[TableRow]) -> list[list[str]]:
    splits = list(table.columns)
    if table.select and table.select.split not in splits:
        splits.insert(0, table.select.split)
    grid = [["Run", "Model", *table.sweep, *splits, "In", "Curve", "Images/s", "Hours", "Device", "Commit"]]
    for row in rows:
        for run in row.runs:
            hardware = run.hardware
            on_cpu = hardware["platform"] == "cpu"
            device = f"{hardware['cpu_cores']} cores" if on_cpu else f"{hardware['device_count']}"
            cells = [f"[{run.name}](../runs/{run.id}.json)", Markdown.escape(row.row.name)]
            cells += [str(run.config_value(key)) for key in table.sweep]
            cells += [f"{row.scale * run.metric(split):.{table.digits + 1}f}" for split in splits]
            cells += ["✓" if run in row.chosen else "", f"[csv](../curves/{run.id}.csv)"]
            cells += [f"{run.images_per_second:.0f}", f"{run.wall_seconds / 3600:.2f}"]
            cells += [f"{device} × {hardware['cpu_model'] if on_cpu else hardware['device_kind']}"]
            cells += [Markdown.escape(", ".join(commits_of([run])))]
            grid.append(cells)
    return grid


def _csv_file(table: TableDefinition, rows: list[TableRow], baselines: list[dict[str, Any]]) -> str:
    """One line a row, empty where nothing is known; ids, commits and seeds are those of the chosen runs."""
    lines = []
    for row in rows:
        line: dict[str, Any] = {"model": row.row.name, "experiment": row.row.experiment}
        line |= {"runs_finished": len(row.runs), "runs_planned": row.planned}
        if row.cost:
            line |= {"init_from": row.row.init_from, "pixels": row.cost.pixels, "steps": row.cost.steps}
            line |= {"parameters": row.cost.parameters, "multiply_adds": row.cost.flops // 2}
            line |= {f"{key}_paper": (row.row.paper or {}).get(key) for key in COSTS}
        if table.select:
            line[table.swept_name] = row.chosen[0].config_value(table.select.over) if row.chosen else None
            line[f"{table.swept_name}_paper"] = (row.row.paper or {}).get(table.swept_name)
        line["n"] = len(row.chosen)
        for split in table.columns:
            ours, paper = row.ours(split) or Interval(None, None, 0), [*(row.paper(split) or ()), None, None]
            line |= {split: ours.mean, f"{split}_interval": ours.half_width}
            line |= {f"{split}_paper": paper[0], f"{split}_paper_interval": paper[1]}
            line[f"{split}_difference"] = row.difference(split)
        line |= {"epochs": row.cost.epochs if row.cost else row.mean("epochs")}
        line |= {field: row.mean(field) for field in ("images_per_second", "wall_seconds")}
        line["seeds"] = " ".join(str(run.seed) for run in row.chosen)
        line["runs"] = " ".join(run.id for run in row.chosen)
        line["commits"] = " ".join(commits_of(row.chosen, digits=40))
        lines.append(line)
    fields = list(lines[0])
    for entry in baselines:
        known = {split: _scale(table) * entry[split] for split in table.columns if split in entry}
        lines.append({"model": entry["name"], **known})
    for model in table.references:
        known = {f"{key}_paper": getattr(model, key) for key in COSTS}
        known |= {f"{split}_paper": value for split, value in model.accuracy.items()}
        lines.append({"model": model.name, "epochs": model.epochs, **known})
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: f"{value:.12g}" if isinstance(value, float) else value for key, value in line.items()})
    return text.getvalue()


def _latex_file(table: TableDefinition, rows: list[TableRow], baselines: list[dict[str, Any]], notes: list[str]) -> str:
    header, *body = _grid(table, rows, baselines, Latex)
    lines = [" & ".join(cells) + r" \\" for cells in body]
    if baselines:
        lines.insert(len(rows), r"\midrule")
    return latex_page(table, header, [r"\midrule", *lines], notes)
