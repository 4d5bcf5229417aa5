"""Results tables, made from run records alone: Markdown with links to the runs, and CSV.

The same records give the same bytes: there are no dates, and CSV numbers have 12 significant digits because the last
bits of a t quantile differ between SciPy releases.
"""

import os
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from plstm.studies.definitions import COSTS, PRIMARY_METRIC, Reference, TableDefinition, read_baselines
from plstm.studies.probes import render_probes
from plstm.studies.records import Record, commits_of, record_path
from plstm.studies.sweeps import Cell, Group, find_groups

DASH = "–"
FAR_APART = 0.1  # two seeds of a column
EXPERIMENTS = Path(__file__).resolve().parents[2] / "configs" / "experiment"
CostOf = Callable[[str], Any]  # experiment -> its pixels, epochs, steps, parameters, flops (two a multiply-add)
Line = dict[str, Any]  # of the CSV file; None where nothing is known
ONLY_SHOWN = ["shown", "link", "giga", "hours"]  # parts of a line that the CSV file does not have


def render_table(
    table: TableDefinition, records: Sequence[Record], results_dir: Path, cost: CostOf | None = None
) -> dict[Path, bytes]:
    """The .md and .csv of a table, and the .md of its probes, path -> contents; `cost` is asked with `costs` only."""
    groups, left_out = find_groups(table, records)
    experiments = os.path.relpath(EXPERIMENTS, results_dir / "tables")
    lines = [_cell_line(table, group, cell, cost, experiments) for group in groups for cell in group.cells]
    for section in table.section_values:
        lines += [_baseline_line(table, entry, section) for entry in read_baselines(table, results_dir)]
        for model in table.references:
            own = {"section": section, "model": model.name, "epochs": model.epochs}
            own |= {f"{key}_paper": model.paper.get(key) for key in COSTS}
            lines.append(own | _paper_line(table, model, section))
    text = _markdown(table, [line for line in lines if line.get("shown", True)], _notes(table, groups, left_out))
    texts = [{k: f"{v:.12g}" if isinstance(v, float) else v for k, v in line.items()} for line in lines]
    frame = pd.DataFrame(texts, dtype=object)
    frame = frame.drop(columns=ONLY_SHOWN, errors="ignore").dropna(axis="columns", how="all")
    texts = {"md": text, "csv": frame.to_csv(index=False, lineterminator="\n")}
    shown = [group.chosen for group in groups if table.figure.sizes and group.chosen.row.own]
    probes = render_probes(table, shown, results_dir)
    return {results_dir / "tables" / f"{table.name}.{kind}": text.encode() for kind, text in texts.items()} | probes


def _notes(table: TableDefinition, groups: list[Group], left_out: list[str]) -> list[str]:
    fewer, partial, apart = [], [], []
    for group, cell in ((own, cell) for own in groups for cell in own.cells):
        choice = f"{table.chosen_name} {cell.choice}" if table.select else ""
        place = ", ".join(filter(None, [cell.row.name, table.section_title(cell.section), choice]))
        least = min(len(cell.means), 1) if table.choose_once else len(cell.means)
        if cell is group.chosen and len(group.shared_seeds) < least:
            fewer.append(f"{place}: {len(group.shared_seeds)} of {len(cell.means)}")
        if cell is group.chosen and table.took_off is not None and _are_far_apart(table, cell):
            values = cell.means[[column.name for column in table.columns]].map(f"{{:.{table.digits}f}}".format)
            seeds = (f"{' / '.join(own)} (seed {seed})" for seed, *own in values.itertuples())
            apart.append(f"{place}: {', '.join(seeds)}")
        if left := cell.finished - len(cell.runs):
            partial.append(f"{place}: {left}")
    stars = [commit for own in groups for commit in commits_of(own.chosen.runs) if "*" in commit]
    titles = " / ".join(column.title.lower() for column in table.columns)
    notes = {
        f"Seeds that are far apart, {titles}: {'; '.join(apart)}.": apart,
        f"Chosen on fewer seeds than shown, those that all values have: {'; '.join(fewer)}.": fewer,
        f"Finished runs of seeds that are not whole, not counted: {'; '.join(partial)}.": partial,
        "* The code of a run may differ from the commit: changed files in its working tree, or no git.": stars,
        f"Not counted: {len(left_out)} finished runs that do not fit the table: {', '.join(left_out)}.": left_out,
    }
    return [*table.notes, *(note for note, about in notes.items() if about)]


def _are_far_apart(table: TableDefinition, cell: Cell) -> bool:
    values = cell.means[[column.name for column in table.columns]]
    return bool((values.max() - values.min() > FAR_APART * table.scale).any())


# ---------------------------------------------------------------------- lines
def _cell_line(table: TableDefinition, group: Group, cell: Cell, cost: CostOf | None, experiments: str) -> Line:
    finished = sum(other.finished for other in group.cells)
    missing = sum(len(other.keys) - other.finished for other in group.needed)
    link = f"[{_escape(cell.row.name)}]({experiments}/{cell.row.experiment}.yaml)"
    link += f" ({finished} of {finished + missing} runs)" * bool(missing)
    line = {"shown": cell is group.chosen, "link": link, "section": cell.section, "model": cell.row.name}
    line |= {"experiment": cell.row.experiment, "init_from": cell.row.init_from}
    line |= {"runs_finished": cell.finished, "runs_planned": len(cell.keys), "runs_missing": missing}
    line |= {"n": len(cell.means), "n_planned": cell.planned_seeds}
    if table.select:
        line |= {"chosen": int(cell is group.chosen and bool(cell.runs)), table.chosen_name: cell.choice}
        line[f"{table.chosen_name}_paper"] = cell.row.paper.get(table.chosen_name)
    if table.costs:
        own, start = cost(cell.row.experiment), cell.row.init_from
        line |= {"pixels": own.pixels, "steps": own.steps, "epochs_before": cost(start).epochs if start else None}
        line |= {"epochs": own.epochs, "parameters": own.parameters, "multiply_adds": own.flops // 2}
        line |= {f"{key}_paper": cell.row.paper.get(key) for key in COSTS}
        line["giga"] = f"{line['multiply_adds'] / 1e9:.3g}G"
    else:
        line |= {"epochs": cell.mean("epochs"), "parameters": cell.runs[0].parameters if cell.runs else None}
    for name, measure in table.measures.items():
        mean, half_width, _ = cell.interval(measure)
        deviation = float(cell.deviations[name].mean()) if table.average_over and cell.runs else None
        line |= {name: mean, f"{name}_interval": half_width, f"{name}_deviation": deviation}
    if table.took_off is not None:
        far = (cell.means[table.select.name] > table.took_off).sum()
        line["took_off"] = f"{far} of {len(cell.means)}" if cell.runs else None
        line["took_off_paper"] = cell.row.paper.get("took_off")
    if table.seed_values:
        line |= {f"{column.name}_max": cell.means[column.name].max() if cell.runs else None for column in table.columns}
    for name in [column.name for column in table.columns if table.seed_values or table.took_off is not None]:
        line[f"{name}_each"] = ", ".join(f"{value:.{table.digits}f}" for value in cell.means[name]) or None
    for column in table.columns:
        if column.solved is not None and cell.runs:
            line[f"{column.name}_solved"] = f"{(cell.means[column.name] >= column.solved).sum()} of {len(cell.means)}"
    line |= _paper_line(table, cell.row, cell.section)
    for name in (column.name for column in table.columns):
        ours, paper = line.get(f"{name}_max", line[name]), line[f"{name}_paper"]
        line[f"{name}_difference"] = None if None in (ours, paper) else ours - paper
    line |= {field: cell.mean(field) for field in ("examples_per_second", "wall_seconds")}
    line["hours"] = line["wall_seconds"] and line["wall_seconds"] / 3600
    line |= {"seeds": " ".join(cell.means.index), "runs": " ".join(run.id for run in cell.runs)}
    return line | {"commits": " ".join(commits_of(cell.runs, digits=40))}


def _paper_line(table: TableDefinition, model: Reference, section: Any) -> Line:
    line = {}
    for column in table.columns:
        number, interval = [*table.paper(model, column, section), None, None][:2]
        line |= {f"{column.name}_paper": number, f"{column.name}_paper_interval": interval}
    return line


def _baseline_line(table: TableDefinition, entry: dict[str, Any], section: Any) -> Line:
    line = {"section": section, "model": entry["name"]}
    for column in table.columns:
        value = entry.get(str(section) if table.sections else column.split)
        is_primary = column.metric.partition("@")[0] == PRIMARY_METRIC  # also at one length
        is_other = not is_primary or (table.sections and column.split != table.columns[0].split)
        line[column.name] = None if value is None or is_other else table.scale * value
    return line


# ---------------------------------------------------------------------- Markdown
def _markdown(table: TableDefinition, lines: list[Line], notes: list[str]) -> str:
    columns = _columns(table, lines)
    text = [f"# {table.title}", "", table.caption.strip(), ""]
    if table.sections:
        what = table.overview_column.title.lower() + ", the highest of the seeds" * table.seed_values
        ours = "Ours (paper)" if any(row.paper for row in table.rows) else "Ours"
        text += [f"{ours}, {what}:", "", *_pipes(_overview(table, lines))]
    for section in table.section_values:
        text += ["", f"## {table.section_title(section)}", ""] if table.sections else []
        own = [line for line in lines if line["section"] == section]
        cells = [[_text(table, line, name, form) for name, (_, form) in columns.items()] for line in own]
        text += _pipes([[_escape(title) for title, _ in columns.values()], *cells])
    if notes:
        text += ["", "## Notes", "", *(f"- {_escape(note)}" for note in notes)]
    return "\n".join(text) + "\n"


def _columns(table: TableDefinition, lines: list[Line]) -> dict[str, tuple[str, str]]:
    """Part of a line -> title and number format; without those of the paper where it has nothing for any line."""
    digits, known = f".{table.digits}f", {key for line in lines for key, value in line.items() if value is not None}
    sizes = {"epochs": ("Epochs", ".4g"), "parameters": ("Parameters", ",")}
    if table.costs:
        sizes = {"pixels": ("Pixels", "d")} | sizes | {"parameters_paper": ("Parameters (paper)", "")}
        sizes |= {"giga": ("Multiply-adds", ""), "flops_paper": ("FLOPS (paper)", "")}
    own = {}
    if name := table.chosen_name:
        own = {name: (name, ""), f"{name}_paper": (f"{name} (paper)", "")}
    if table.took_off is not None:
        own |= {"took_off": ("Took off", ""), "took_off_paper": ("Took off (paper)", "")}
    for column in table.columns:
        own[column.name] = column.title, digits
        if table.average_over:
            keys = ", ".join(key.split(".")[-1] for key in table.average_over)
            own[f"{column.name}_deviation"] = f"± over {keys}", digits
        if table.seed_values and (column is table.columns[0] or f"{column.name}_paper" in known):
            own[f"{column.name}_max"] = "Highest", digits
        if table.seed_values and column is table.columns[0]:
            own[f"{column.name}_each"] = "Each seed", ""
        if column.solved is not None:
            own[f"{column.name}_solved"] = f"Seeds from {column.solved:g}", ""
        own |= {f"{column.name}_paper": ("Paper", digits), f"{column.name}_difference": ("Difference", f"+{digits}")}
    hours = "Hours a run", ".2g" if table.average_over else ".2f"
    rest = {"examples_per_second": ("Examples/s", ".0f"), "hours": hours, "commits": ("Commit", "")}
    found = {"link": ("Model", "")} | (sizes | own if table.costs else own | sizes) | rest
    return {
        key: column
        for key, column in found.items()
        if not key.endswith(("_paper", "_difference")) or f"{key.rpartition('_')[0]}_paper" in known
    }


def _text(table: TableDefinition, line: Line, name: str, form: str) -> str:
    value = line.get(name)
    if name == "link":
        return value or _escape(line["model"])
    if value in (None, "") or (name == table.chosen_name and not line["n"]):
        return DASH
    if name == "commits":
        value = re.sub(r"\b(\w{7})\w*", r"\1", value).replace(" ", ", ")
    text = _escape(value) if isinstance(value, str) else format(value, form)
    if name == "epochs" and line.get("epochs_before"):
        text = f"{line['epochs_before']:g}+{text}"
    if (interval := line.get(f"{name}_interval")) is not None:
        text += f" ± {interval:{form}}"
    if line.get("n") and name in {column.name for column in table.columns}:
        text += f" ([n={line['n']}]({record_path(line['experiment'], '..')}))"
    return text


def _overview(table: TableDefinition, lines: list[Line]) -> list[list[str]]:
    """A line a model and a column a section, or the other way round where there are more sections than models, then the
    averages of what has all sections."""
    name = table.overview_column.name
    upright = len(table.section_values) > len(table.rows)
    grid = [["" if upright else "Model", *map(table.section_title, table.section_values), "AVG"]]
    for row in table.rows:
        own = {line["section"]: line for line in lines if line["model"] == row.name}
        texts = []
        for key, form in ((f"{name}_max" if table.seed_values else name, "{}"), (f"{name}_paper", " ({})")):
            values = [own.get(section, {}).get(key) for section in table.section_values]
            values.append(None if None in values else statistics.fmean(values))
            texts.append([value if value is None else form.format(f"{value:.{table.digits}f}") for value in values])
        grid.append([_escape(row.name), *((ours or DASH) + (paper or "") for ours, paper in zip(*texts, strict=True))])
    return [list(line) for line in zip(*grid, strict=True)] if upright else grid


def _pipes(grid: list[list[str]]) -> list[str]:
    header, *rows = ("| " + " | ".join(cells) + " |" for cells in grid)
    return [header, "|" + " --- |" * len(grid[0]), *rows]


def _escape(text: str) -> str:
    """Text that means only itself in a Markdown table."""
    return text.replace("|", "\\|").replace("*", "\\*")
