"""Results tables, made from run records alone: Markdown with links to the runs, CSV, and LaTeX.

The same records give the same bytes: there are no dates, and CSV numbers have 12 significant digits because the last
bits of a t quantile differ between SciPy releases.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from data.files import write_file
from plstm.results.cells import Cell, Group, find_groups
from plstm.results.definitions import COSTS, PRIMARY_METRIC, Column, Reference, TableDefinition, read_baselines
from plstm.results.records import Record, commits_of, record_path

DASH = "–"
CostOf = Callable[[str], Any]  # experiment -> its pixels, epochs, steps, parameters, flops (two a multiply-add)
Line = dict[str, Any]  # of the CSV file; None where nothing is known


# ---------------------------------------------------------------------- files
def render_table(
    table: TableDefinition, records: Sequence[Record], results_dir: Path, cost: CostOf | None = None
) -> dict[Path, bytes]:
    """The files of a table, path -> contents: `tables/<name>.md`, `.csv` and `.tex` below `results_dir`.

    cost: asked for the experiments of a table with `costs`.
    """
    groups, left_out = find_groups(table, records)
    lines = [_cell_line(table, group, cell, cost) for group in groups for cell in group.cells]
    for section in table.section_values:
        lines += [_baseline_line(table, entry, section) for entry in read_baselines(table, results_dir)]
        lines += [_reference_line(table, model, section) for model in table.references]
    shown = [line for line in lines if line.get("shown", True)]
    notes = [*table.notes, *_notes(table, groups, left_out)]
    frame = pd.DataFrame([{key: _csv_text(value) for key, value in line.items()} for line in lines])
    frame = frame.drop(columns=["shown", "runs_group"]).dropna(axis="columns", how="all")
    texts = {
        "md": _markdown(table, shown, notes),
        "csv": frame.to_csv(index=False, lineterminator="\n"),
        "tex": _latex(table, shown, notes),
    }
    return {results_dir / "tables" / f"{table.name}.{kind}": text.encode() for kind, text in texts.items()}


def write_table(*arguments: Any) -> list[Path]:
    """Write the files of `render_table`, which has the same arguments; return their paths."""
    files = render_table(*arguments)
    for path, data in files.items():
        write_file(path, data)
    return list(files)


def stale_files(*arguments: Any) -> list[str]:
    """One line for every file of `render_table`, which has the same arguments, that is missing or not the same."""
    files = render_table(*arguments).items()
    return [f"stale: {path}" for path, data in files if not path.is_file() or path.read_bytes() != data]


def _notes(table: TableDefinition, groups: list[Group], left_out: dict[str, str]) -> list[str]:
    notes, fewer, partial = [], [], []
    for group, cell in ((own, cell) for own in groups for cell in own.cells):
        place = ", ".join(filter(None, [cell.row.name, table.section_title(cell.section)]))
        place += f", {table.chosen_name} {cell.choice}" * bool(table.select)
        if cell is group.chosen and len(group.shared_seeds) < len(cell.means):
            fewer.append(f"{place}: {len(group.shared_seeds)} of {len(cell.means)}")
        if left := cell.finished - len(cell.runs):
            partial.append(f"{place}: {left}")
    if fewer:
        notes.append(f"Chosen on fewer seeds than shown, those that all values have: {'; '.join(fewer)}.")
    if partial:
        notes.append(f"Finished runs of seeds that are not whole, not counted: {'; '.join(partial)}.")
    if any("*" in commit for own in groups for commit in commits_of(own.chosen.runs)):
        notes.append("* The code of a run may differ from the commit: changed files in its working tree, or no git.")
    for why, count in sorted(Counter(left_out.values()).items()):
        notes.append(f"Not counted: {count} finished runs of these experiments ({why}).")
    return notes


# ---------------------------------------------------------------------- lines
def _cell_line(table: TableDefinition, group: Group, cell: Cell, cost: CostOf | None) -> Line:
    line = {"shown": cell is group.chosen, "section": cell.section, "model": cell.row.name}
    line |= {"experiment": cell.row.experiment, "init_from": cell.row.init_from}
    line |= {"runs_finished": cell.finished, "runs_planned": cell.planned}
    line |= {"runs_group": sum(other.finished for other in group.cells)}
    line |= {"runs_missing": sum(other.planned - other.finished for other in group.needed)}
    line |= {"n": len(cell.means), "n_planned": cell.planned_seeds}
    if table.select:
        line |= {"chosen": int(cell is group.chosen and bool(cell.runs)), table.chosen_name: cell.choice}
        line[f"{table.chosen_name}_paper"] = cell.row.paper.get(table.chosen_name)
    if table.costs:
        own, start = cost(cell.row.experiment), cell.row.init_from
        line |= {"pixels": own.pixels, "steps": own.steps, "epochs_before": cost(start).epochs if start else None}
        line |= {"epochs": own.epochs, "parameters": own.parameters, "multiply_adds": own.flops // 2}
        line |= {f"{key}_paper": cell.row.paper.get(key) for key in COSTS}
    else:
        line |= {"epochs": cell.mean("epochs"), "parameters": cell.runs[0].parameters if cell.runs else None}
    for measure in {m.name: m for m in (table.select, *table.columns) if m}.values():
        name, (mean, half_width, _) = measure.name, cell.interval(measure)
        line |= {name: mean, f"{name}_interval": half_width}
        line[f"{name}_deviation"] = cell.deviation(measure) if table.average_over else None
    for column in table.columns:
        line |= _paper_line(table, cell.row, column, cell.section)
        mean, paper = line[column.name], line[f"{column.name}_paper"]
        line[f"{column.name}_difference"] = None if None in (mean, paper) else mean - paper
    line |= {field: cell.mean(field) for field in ("examples_per_second", "wall_seconds")}
    line["device"] = ", ".join(sorted({_device(run) for run in cell.runs})) or None
    line["seeds"] = " ".join(cell.means.index)
    line["runs"] = " ".join(run.id for run in cell.runs)
    return line | {"commits": " ".join(commits_of(cell.runs, digits=40))}


def _paper_line(table: TableDefinition, model: Reference, column: Column, section: Any) -> Line:
    number, interval = [*table.paper(model, column, section), None, None][:2]
    return {f"{column.name}_paper": number, f"{column.name}_paper_interval": interval}


def _reference_line(table: TableDefinition, model: Reference, section: Any) -> Line:
    line = {"section": section, "model": model.name, "epochs": model.epochs}
    line |= {f"{key}_paper": model.paper.get(key) for key in COSTS}
    for column in table.columns:
        line |= _paper_line(table, model, column, section)
    return line


def _baseline_line(table: TableDefinition, entry: dict[str, Any], section: Any) -> Line:
    line = {"section": section, "model": entry["name"]}
    for column in table.columns:
        value = entry.get(str(section) if table.sections else column.split)
        line[column.name] = None if value is None or column.metric != PRIMARY_METRIC else table.scale * value
    return line


def _device(run: Record) -> str:
    hardware = run.hardware
    if hardware["platform"] == "cpu":
        return f"{hardware['cpu_cores']} cores × {hardware['cpu_model']}"
    return f"{hardware['device_count']} × {hardware['device_kind']}"


def _csv_text(value: Any) -> str | None:
    return None if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------- the shown grid
FORMATS = {"pixels": "d", "epochs": ".4g", "parameters": ",", "examples_per_second": ".0f"}


def _titles(table: TableDefinition, lines: list[Line]) -> dict[str, str]:
    """Column of the CSV file -> title; without those of the paper where it has nothing for any line."""
    costs = {"epochs": "Epochs", "parameters": "Parameters", "parameters_paper": "Parameters (paper)"}
    if table.costs:
        costs = {"pixels": "Pixels"} | costs | {"multiply_adds": "Multiply-adds", "flops_paper": "FLOPS (paper)"}
    own = {}
    if name := table.chosen_name:
        own = {name: name, f"{name}_paper": f"{name} (paper)"}
    for column in table.columns:
        own[column.name] = column.title
        if table.average_over:
            own[f"{column.name}_deviation"] = f"± over {', '.join(key.split('.')[-1] for key in table.average_over)}"
        own |= {f"{column.name}_paper": "Paper", f"{column.name}_difference": "Difference"}
    rest = {"examples_per_second": "Examples/s", "wall_seconds": "Hours a run", "device": "Device", "commits": "Commit"}
    titles = {"model": "Model"} | (costs | own if table.costs else own | costs) | rest
    known = {key for line in lines for key, value in line.items() if value is not None}
    return {
        key: title
        for key, title in titles.items()
        if not key.endswith(("_paper", "_difference")) or f"{key.rpartition('_')[0]}_paper" in known
    }


def _text(table: TableDefinition, line: Line, name: str) -> str:
    value, digits, chosen = line.get(name), table.digits, table.chosen_name
    if name == "model":
        return _model(line)
    if value in (None, "") or (name == chosen and not line["n"]):
        return DASH
    if name == "commits":
        return _escape(", ".join(sorted({commit[:7] + "*" * commit.endswith("*") for commit in value.split()})))
    if isinstance(value, str) or name in (chosen, f"{chosen}_paper"):
        return _escape(str(value))
    if name == "epochs" and line.get("epochs_before"):
        return f"{line['epochs_before']:g}+{value:g}"
    if name == "multiply_adds":
        return f"{value / 1e9:.3g}G"
    if name == "wall_seconds":
        return format(value / 3600, ".2g" if table.average_over else ".2f")
    if name in FORMATS:
        return format(value, FORMATS[name])
    text = format(value, f"+.{digits}f" if name.endswith("_difference") else f".{digits}f")
    if (interval := line.get(f"{name}_interval")) is not None:
        text += f" ± {interval:.{digits}f}"
    if line.get("n") and name in {column.name for column in table.columns}:
        star = "\\*" * ("*" in line["commits"])
        text += f"{star} ([n={line['n']}]({record_path(line['experiment'], '..')}))"
    return text


def _model(line: Line) -> str:
    name = _escape(line["model"])
    if "experiment" in line:
        name = f"[{name}](../../configs/experiment/{line['experiment']}.yaml)"
    finished, missing = line.get("runs_group"), line.get("runs_missing")
    return f"{name} ({finished} of {finished + missing} runs)" if missing else name


def _grid(table: TableDefinition, lines: list[Line]) -> tuple[list[str], list[tuple[str, list]]]:
    """The header, and (title, lines of cells) for each section."""
    titles = _titles(table, lines)
    sections = []
    for section in table.section_values:
        own = [line for line in lines if line.get("section") == section]
        cells = [[_text(table, line, name) for name in titles] for line in own]
        sections.append((table.section_title(section), cells))
    return [_escape(title) for title in titles.values()], sections


def markdown_table(grid: list[list[str]]) -> list[str]:
    """The lines of a table whose first row is its header."""
    header, *rows = ("| " + " | ".join(cells) + " |" for cells in grid)
    return [header, "|" + " --- |" * len(grid[0]), *rows]


def _markdown(table: TableDefinition, lines: list[Line], notes: list[str]) -> str:
    header, sections = _grid(table, lines)
    text = [f"# {table.title}", "", table.caption.strip(), ""]
    if table.sections:
        text += [f"Ours (paper), {table.columns[0].title.lower()}:", "", *markdown_table(_overview(table, lines))]
    for title, cells in sections:
        text += ["", f"## {title}", ""] if title else []
        text += markdown_table([header, *cells])
    if notes:
        text += ["", "## Notes", "", *(f"- {_escape(note)}" for note in notes)]
    return "\n".join(text) + "\n"


def _overview(table: TableDefinition, lines: list[Line]) -> list[list[str]]:
    """A line a model and a column a section, then the averages of what has all sections."""
    name = table.columns[0].name
    grid = [["Model", *map(table.section_title, table.section_values), "AVG"]]
    for row in table.rows:
        own = {line["section"]: line for line in lines if line["model"] == row.name}
        cells = [own.get(section, {}) for section in table.section_values]
        pairs = [(cell.get(name), cell.get(f"{name}_paper")) for cell in cells]
        pairs.append(tuple(None if None in values else statistics.fmean(values) for values in zip(*pairs, strict=True)))
        texts = [[DASH if value is None else f"{value:.{table.digits}f}" for value in pair] for pair in pairs]
        texts = [ours if paper == DASH else f"{ours} ({paper})" for ours, paper in texts]
        grid.append([_escape(row.name), *texts])
    return grid


def _latex(table: TableDefinition, lines: list[Line], notes: list[str]) -> str:
    header, sections = _grid(table, lines)
    body = []
    for title, cells in [("", [header]), *sections]:
        body += [r"\midrule"] * bool(body)
        body += [rf"\multicolumn{{{len(header)}}}{{l}}{{{_latex_text(title)}}} \\"] * bool(title)
        body += [" & ".join(map(_latex_text, texts)) + r" \\" for texts in cells]
    text = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{_latex_text(f'{table.title}. {table.caption.strip()}')}}}",
        rf"\label{{tab:{table.name}}}",
        r"\centering\footnotesize",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *[rf"\par {_latex_text(note)}" for note in notes],
        r"\end{table}",
    ]
    return "\n".join(text) + "\n"


def _escape(text: str) -> str:
    """Text that means only itself in a Markdown table."""
    return text.replace("|", "\\|").replace("*", "\\*")


def _latex_text(text: str) -> str:
    """A cell of the Markdown table, or plain text, in LaTeX."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)  # links
    text = re.sub(r"\\([|*])", r"\1", text)
    if re.fullmatch(r"[-+]\d.*", text):
        return f"${text}$"
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"±": r"$\pm$", "×": r"$\times$", "<": "$<$", ">": "$>$"}
    return re.sub(r"[\\~^±×<>&%$#_{}]", lambda match: special.get(match[0], f"\\{match[0]}"), text)
