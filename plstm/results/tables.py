"""Results tables, made from run records alone: Markdown with links to the runs, CSV, and LaTeX.

The same records give the same bytes: there are no dates, and CSV numbers have 12 significant digits because the last
bits of a t quantile differ between SciPy releases.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from data.files import write_file
from plstm.results.cells import Cell, choose, find_cells, groups, shared_seeds
from plstm.results.definitions import COSTS, PRIMARY_METRIC, Column, TableDefinition, read_baselines
from plstm.results.intervals import Interval
from plstm.results.records import Record, commits_of, mark, record_path
from plstm.results.typesetting import DASH, Latex, Markdown, Style, latex_page, markdown_table

CostOf = Callable[[str], Any]  # experiment -> its pixels, epochs, steps, parameters, flops (two a multiply-add)
Texts = dict[str, str]  # the texts of a line, by column


def render_table(
    table: TableDefinition, records: Sequence[Record], results_dir: Path, cost: CostOf | None = None
) -> dict[Path, bytes]:
    """The files of a table, path -> contents: `tables/<name>.md`, `.csv` and `.tex` below `results_dir`.

    cost: asked for the experiments of a table with `costs`.
    """
    cells, left_out = find_cells(table, records)
    shown = [(choose(table, group), group) for group in groups(cells)]
    notes = [*table.notes, *_notes(table, shown, left_out)]
    rest = read_baselines(table, results_dir), cost

    def sections(style: Style) -> dict[Any, list[Texts]]:
        return {section: _lines(table, section, shown, *rest, style) for section in table.section_values}

    texts = {
        "md": _markdown(table, sections(Markdown), shown, notes),
        "csv": _csv(table, cells, [cell for cell, _ in shown], *rest),
        "tex": _latex(table, sections(Latex), notes),
    }
    return {results_dir / "tables" / f"{table.name}.{kind}": text.encode() for kind, text in texts.items()}


def write_table(*arguments) -> list[Path]:
    """Write the files of `render_table`, which has the same arguments; return their paths."""
    files = render_table(*arguments)
    for path, data in files.items():
        write_file(path, data)
    return list(files)


def stale_files(*arguments) -> list[str]:
    """One line for every file of `render_table`, which has the same arguments, that is missing or has other contents."""
    files = render_table(*arguments)
    missing = [f"missing: {path}" for path in files if not path.is_file()]
    return missing + [f"stale: {path}" for path in files if path.is_file() and path.read_bytes() != files[path]]


def _notes(table: TableDefinition, shown: list[tuple[Cell, list[Cell]]], left_out: dict[str, str]) -> list[str]:
    notes = []
    counts = [(cell, len(shared_seeds(group)), len(cell.means)) for cell, group in shown]
    if fewer := [f"{_place(table, cell)}: {shared} of {n}" for cell, shared, n in counts if shared < n]:
        notes.append(
            f"{table.swept_name} was chosen on fewer seeds, those that all its values have: {'; '.join(fewer)}."
        )
    partial = [(cell, cell.finished - len(cell.runs)) for _, group in shown for cell in group]
    if words := [f"{_place(table, cell)}: {count}" for cell, count in partial if count]:
        notes.append(f"Finished runs of seeds that are not whole, not counted: {'; '.join(words)}.")
    if any(mark(cell.runs) for cell, _ in shown):
        notes.append("* The code of a run may differ from the commit: changed files in its working tree, or no git.")
    for why, count in sorted(Counter(left_out.values()).items()):
        notes.append(f"Not counted: {count} finished runs of these experiments ({why}).")
    return notes


def _place(table: TableDefinition, cell: Cell) -> str:
    """Such as "GIN, MUTAG, depth 4"."""
    words = [cell.row.name] + [table.section_title(cell.section)] * bool(table.sections)
    return ", ".join(words + [f"{table.swept_name} {cell.choice}"] * bool(table.select))


# ---------------------------------------------------------------------- lines of the shown table
def _titles(table: TableDefinition) -> Texts:
    """Column -> title, in order."""
    titles = {"model": "Model"}
    if table.costs:
        titles |= {"pixels": "Pixels", "epochs": "Epochs", "parameters": "Parameters"}
        titles |= {"parameters_paper": "Parameters (paper)"}
        titles |= {"flops": "Multiply-adds", "flops_paper": "FLOPS (paper)"}
    if table.select:
        titles |= {"choice": table.swept_name, "choice_paper": f"{table.swept_name} (paper)"}
    for column in table.columns:
        titles[column.name] = column.title
        if table.average_over:
            titles[f"{column.name}_deviation"] = f"± over {', '.join(k.rpartition('.')[2] for k in table.average_over)}"
        titles |= {f"{column.name}_paper": "Paper", f"{column.name}_difference": "Difference"}
    rest = {"epochs": "Epochs", "parameters": "Parameters", "speed": "Examples/s", "hours": "Hours a run"}
    titles |= {key: title for key, title in rest.items() if key not in titles}
    return titles | {"device": "Device", "commit": "Commit"}


def _lines(table: TableDefinition, section: Any, shown, baselines, cost: CostOf | None, style: Style) -> list[Texts]:
    """The models of a section, the baselines, and other models' published numbers."""
    lines = [_model(table, cell, group, cost, style) for cell, group in shown if cell.section == section]
    for entry in baselines:
        line = {"model": style.escape(entry["name"])}
        for column in table.columns:
            line[column.name] = _number(_baseline(table, entry, column, section), f".{table.digits}f")
        lines.append(line)
    for other in table.references:
        line = {"model": other.name, "epochs": other.epochs}
        line |= {f"{key}_paper": getattr(other, key) for key in COSTS}
        line = {key: style.escape(text) for key, text in line.items()}
        lines.append(line | {f"{key}_paper": _published(table, [value], style) for key, value in other.paper.items()})
    return lines


def _baseline(table: TableDefinition, entry: dict[str, Any], column: Column, section: Any) -> float | None:
    value = entry.get(str(section) if table.sections else column.split)
    return None if value is None or column.metric != PRIMARY_METRIC else table.scale * value


def _model(table: TableDefinition, cell: Cell, group: list[Cell], cost: CostOf | None, style: Style) -> Texts:
    paper, seconds = cell.row.paper or {}, cell.mean("wall_seconds")
    line = {"model": _name(cell, group, style)} | {f"{key}_paper": paper[key] for key in COSTS if key in paper}
    if table.select:
        not_run = ", ".join(str(other.choice) for other in group if not other.runs)
        line["choice"] = f"{cell.choice}" + f" ({not_run} not run)" * bool(not_run) if cell.runs else DASH
        line |= {"choice_paper": str(paper[table.swept_name])} if table.swept_name in paper else {}
    for column in table.columns:
        line[column.name] = _ours(table, cell, column, style)
        line[f"{column.name}_deviation"] = _number(cell.deviation(column), f".{table.digits}f", style)
        if published := table.paper(cell.row, column, cell.section):
            line[f"{column.name}_paper"] = _published(table, published, style)
            line[f"{column.name}_difference"] = _number(_difference(table, cell, column), f"+.{table.digits}f", style)
    if table.costs:
        own, start = cost(cell.row.experiment), cell.row.init_from
        line |= {"pixels": str(own.pixels), "flops": f"{own.flops / 2e9:.3g}G", "parameters": f"{own.parameters:,}"}
        line["epochs"] = f"{cost(start).epochs:g}+{own.epochs:g}" if start else f"{own.epochs:g}"
    else:
        line["epochs"] = _number(cell.mean("epochs"), ".4g")
        line["parameters"] = f"{cell.runs[0].parameters:,}" if cell.runs else DASH
    line["speed"] = _number(cell.mean("examples_per_second"), ".0f")
    line["hours"] = _number(None if seconds is None else seconds / 3600, ".2g" if table.average_over else ".2f")
    line["device"] = style.escape(", ".join(sorted({_device(run) for run in cell.runs})) or DASH)
    return line | {"commit": style.escape(", ".join(commits_of(cell.runs)) or DASH)}


def _name(cell: Cell, group: list[Cell], style: Style) -> str:
    name = style.link(style.escape(cell.row.name), f"../../configs/experiment/{cell.row.experiment}.yaml")
    needed = [cell] if all(other.runs for other in group) else group
    finished, missing = sum(c.finished for c in group), sum(c.planned - c.finished for c in needed)
    return f"{name} ({finished} of {finished + missing} runs)" if missing else name


def _ours(table: TableDefinition, cell: Cell, column: Column, style: Style) -> str:
    ours = cell.interval(column)
    if ours is None:
        return DASH
    interval = "" if ours.half_width is None else f" {style.pm} {ours.half_width:.{table.digits}f}"
    number = style.math(f"{ours.mean:.{table.digits}f}{interval}") + style.escape(mark(cell.runs))
    return f"{number} ({style.link(f'n={ours.n}', str(record_path(cell.row.experiment, '..')))})"


def _published(table: TableDefinition, paper: list[float], style: Style) -> str:
    return style.math(f" {style.pm} ".join(f"{number:.{table.digits}f}" for number in paper))


def _difference(table: TableDefinition, cell: Cell, column: Column) -> float | None:
    """Ours - paper."""
    ours, paper = cell.interval(column), table.paper(cell.row, column, cell.section)
    return ours.mean - paper[0] if ours and paper else None


def _number(value: float | None, form: str, style: Style = Markdown) -> str:
    return DASH if value is None else style.math(format(value, form))


def _device(run: Record) -> str:
    hardware = run.hardware
    if hardware["platform"] == "cpu":
        return f"{hardware['cpu_cores']} cores × {hardware['cpu_model']}"
    return f"{hardware['device_count']} × {hardware['device_kind']}"


# ---------------------------------------------------------------------- files
def _grid(table: TableDefinition, sections: dict[Any, list[Texts]], style: Style) -> tuple[list[str], dict]:
    """The header, and the lines of each section; without columns of the paper where it has no number for any line."""
    known = {key for lines in sections.values() for line in lines for key in line}
    titles = {key: title for key, title in _titles(table).items() if key in known}
    cells = {
        section: [[line.get(key, DASH) for key in titles] for line in lines] for section, lines in sections.items()
    }
    return [style.escape(title) for title in titles.values()], cells


def _markdown(table: TableDefinition, sections: dict[Any, list[Texts]], shown, notes: list[str]) -> str:
    lines = [f"# {table.title}", "", table.caption.strip(), ""]
    if table.sections:
        lines += [f"Ours (paper), {table.columns[0].title.lower()}:", "", *markdown_table(_overview(table, shown))]
    header, cells = _grid(table, sections, Markdown)
    for section, rows in cells.items():
        lines += ["", f"## {table.section_title(section)}", ""] * bool(table.sections)
        lines += markdown_table([header, *rows])
    if notes:
        lines += ["", "## Notes", "", *(f"- {Markdown.escape(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def _overview(table: TableDefinition, shown: list[tuple[Cell, list[Cell]]]) -> list[list[str]]:
    """A line a model and a column a section, then the average of rows that have all sections."""
    grid = [["Model", *map(table.section_title, table.section_values), "AVG"]]
    for row in table.rows:
        cells = {cell.section: cell for cell, _ in shown if cell.row is row}
        ours = [cells[s].interval(table.columns[0]) if s in cells else None for s in table.section_values]
        means = [interval and interval.mean for interval in ours]
        paper = [(table.paper(row, table.columns[0], s) or [None])[0] for s in table.section_values]
        for numbers in (means, paper):
            numbers.append(None if None in numbers else statistics.fmean(numbers))
        pairs = [[_number(number, f".{table.digits}f") for number in pair] for pair in zip(means, paper, strict=True)]
        texts = [own if published == DASH else f"{own} ({published})" for own, published in pairs]
        grid.append([Markdown.escape(row.name), *texts])
    return grid


def _latex(table: TableDefinition, sections: dict[Any, list[Texts]], notes: list[str]) -> str:
    header, cells = _grid(table, sections, Latex)
    lines = []
    for section, rows in cells.items():
        title = rf"\multicolumn{{{len(header)}}}{{l}}{{{Latex.escape(table.section_title(section))}}} \\"
        lines += [r"\midrule", *[title] * bool(table.sections), *(" & ".join(row) + r" \\" for row in rows)]
    return latex_page(table, header, lines, notes)


def _csv(table: TableDefinition, cells: list[Cell], shown: list[Cell], baselines, cost: CostOf | None) -> str:
    """A line for each row, section and value of `select.over`, empty where nothing is known; then those without runs."""
    lines = [_csv_line(table, cell, any(cell is other for other in shown), cost) for cell in cells]
    for section in table.section_values:
        for entry in baselines:
            known = {column.name: _baseline(table, entry, column, section) for column in table.columns}
            lines.append({"section": section, "model": entry["name"]} | known)
    for other in table.references:
        known = {f"{key}_paper": getattr(other, key) for key in COSTS} | {
            f"{k}_paper": v for k, v in other.paper.items()
        }
        lines.append({"model": other.name, "epochs": other.epochs} | known)
    frame = pd.DataFrame([{key: _csv_text(value) for key, value in line.items()} for line in lines])
    return frame.dropna(axis="columns", how="all").to_csv(index=False, lineterminator="\n")


def _csv_text(value: Any) -> str | None:
    return f"{value:.12g}" if isinstance(value, float) else None if value is None else str(value)


def _csv_line(table: TableDefinition, cell: Cell, is_shown: bool, cost: CostOf | None) -> dict[str, Any]:
    paper = cell.row.paper or {}
    line = {"section": cell.section, "model": cell.row.name, "experiment": cell.row.experiment}
    line |= {"init_from": cell.row.init_from, "runs_finished": cell.finished, "runs_planned": cell.planned}
    line |= {"n": len(cell.means), "n_planned": cell.planned_seeds}
    if table.select:
        line |= {table.swept_name: cell.choice, "chosen": int(is_shown and bool(cell.runs))}
        line[f"{table.swept_name}_paper"] = paper.get(table.swept_name)
    if table.costs:
        own = cost(cell.row.experiment)
        line |= {"pixels": own.pixels, "steps": own.steps, "epochs": own.epochs, "parameters": own.parameters}
        line |= {"multiply_adds": own.flops // 2} | {f"{key}_paper": paper.get(key) for key in COSTS}
    else:
        line |= {"epochs": cell.mean("epochs"), "parameters": cell.runs[0].parameters if cell.runs else None}
    for measure in {m.name: m for m in (*table.columns, table.select) if m}.values():
        ours = cell.interval(measure) or Interval(None, None, 0)
        line |= {measure.name: ours.mean, f"{measure.name}_interval": ours.half_width}
        line[f"{measure.name}_deviation"] = cell.deviation(measure) if table.average_over else None
        if isinstance(measure, Column):
            published = [*(table.paper(cell.row, measure, cell.section) or ()), None, None]
            line |= {f"{measure.name}_paper": published[0], f"{measure.name}_paper_interval": published[1]}
            line[f"{measure.name}_difference"] = _difference(table, cell, measure)
    line |= {field: cell.mean(field) for field in ("examples_per_second", "wall_seconds")}
    line["seeds"] = " ".join(cell.means.index)
    line["runs"] = " ".join(run.id for run in cell.runs)
    return line | {"commits": " ".join(commits_of(cell.runs, digits=40))}
