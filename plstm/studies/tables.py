"""The tables of a study, made from run records alone: Markdown of at most seven columns, and a long CSV with the rest.

The same records give the same bytes: there are no dates, and CSV numbers have 9 significant digits because the last
bits of a t quantile differ between SciPy releases.
"""

import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from plstm.studies.definitions import COSTS, PRIMARY_METRIC, Reference, TableDefinition, read_baselines
from plstm.studies.differences import render_differences
from plstm.studies.markdown import DASH, Grid, escape, filled, pipes
from plstm.studies.probes import render_probes
from plstm.studies.records import Record, commits_of, record_path
from plstm.studies.sweeps import Cell, Group, find_groups, probed_cells

WIDEST = 7  # columns of a table in Markdown
MEASURES = 3  # of the definition's columns that are shown; all are in the CSV
DEFINITIONS = Path(__file__).resolve().parents[2] / "configs" / "study"
GAP = "gap"  # a metric
PER_RUN = ("parameters", "epochs", "examples_per_second", "wall_seconds")


class Line(NamedTuple):
    """A line of table.csv. `seed` is a seed or what is made of all of them: mean, interval (half width of Student's 90%
    interval), max, deviation (within a seed), n, count (seeds that reach the bound), paper, paper_interval, difference.
    """

    section: str
    row: str
    choice: str  # the value of the swept key that is selected over
    chosen: int  # 1 for the selected choice, or where there is nothing to select
    seed: str
    metric: str  # of a column; id, commit, multiply_adds and `PER_RUN` of the runs
    value: Any


def render_table(table: TableDefinition, records: Sequence[Record], results_dir: Path) -> dict[Path, bytes]:
    """Contents of table.md, table.csv and of the tables of probes, by path; empty before a first seed has finished."""
    groups = find_groups(table, records)
    if not any(cell.runs for group in groups for cell in group.cells):
        return {}
    lines = study_lines(table, groups, results_dir)
    frame = pd.DataFrame(lines, dtype=object).map(lambda value: f"{value:.9g}" if isinstance(value, float) else value)
    files = {
        "table.md": _markdown(table, lines, _notes(table, groups, results_dir), results_dir),
        "table.csv": frame.to_csv(index=False, lineterminator="\n"),
    }
    if table.figure.sizes:
        files |= render_probes(table, probed_cells(table, groups), results_dir)
    files |= render_differences(table, groups, results_dir)
    return {results_dir / table.name / name: text.encode() for name, text in files.items()}


def text_table(table: TableDefinition, records: Sequence[Record], results_dir: Path) -> str:
    """Means and intervals for a terminal; of a table with sections its overview."""
    lines = study_lines(table, find_groups(table, records), results_dir)
    titles = {"Model", *(column.title for column in table.columns)}
    texts = []
    for grid in _overview(table, lines) if table.sections else [_grid(table, lines, None)]:
        columns = [column for column in zip(*grid, strict=True) if table.sections or column[0] in titles]
        padded = ([cell.replace("\\", "").ljust(max(map(len, column))) for cell in column] for column in columns)
        for line in zip(*padded, strict=True):
            texts += ["  ".join(line).rstrip()] if any(cell.strip() != DASH for cell in line[1:]) else []
        texts.append("")
    return "\n".join(texts)


def _notes(table: TableDefinition, groups: list[Group], results_dir: Path) -> list[str]:
    fewer, partial, dirty = [], [], []
    finished = missing = 0
    for group in groups:
        missing += sum(len(cell.ids) - cell.finished for cell in group.needed)
        for cell in group.cells:
            finished += cell.finished
            choice = f"{table.chosen_name} {cell.choice}" if table.select else ""
            place = ", ".join(filter(None, [cell.row.name, table.section_title(cell.section), choice]))
            dirty += [place] if "*" in "".join(commits_of(cell.runs)) else []
            partial += [f"{place}: {left}"] if (left := cell.finished - len(cell.runs)) else []
            seeds = len(cell.means)
            shared = len(group.shared_seeds)
            if cell is group.chosen and shared < (min(seeds, 1) if table.choose_once else seeds):
                fewer.append(f"{place}: {shared} of {seeds}")
    unknown = [entry["name"] for entry in read_baselines(table, results_dir) if entry.keys() == {"name"}]
    notes = {
        f"{finished} runs have finished, up to {missing} are missing.": missing,
        f"Chosen on fewer seeds than shown, those that all values have: {'; '.join(fewer)}.": fewer,
        f"Finished runs of incomplete seeds, not counted: {'; '.join(partial)}.": partial,
        f"Runs whose code may differ from their commit: {'; '.join(dirty)}.": dirty,
        f"Missing: {', '.join(unknown)}.": unknown,
    }
    return [*table.notes, *(note for note, about in notes.items() if about)]


# ---------------------------------------------------------------------- lines of the CSV
def study_lines(table: TableDefinition, groups: Sequence[Group], results_dir: Path) -> list[Line]:
    """All that is known of a study, runs before baselines before models that only the paper has."""
    found = []
    for cell, is_chosen in ((cell, cell is group.chosen) for group in groups for cell in group.cells):
        own = (cell.section, cell.row.name, "" if cell.choice is None else str(cell.choice), int(is_chosen))
        found += [(*own, *value) for value in _values(table, cell, is_chosen)]
    for section in table.section_values:
        for entry in read_baselines(table, results_dir):
            found += [(section, entry["name"], "", 1, *value) for value in _baseline(table, entry, section)]
        for model in table.references:
            found += [(section, model.name, "", 1, *value) for value in _published(table, model, section)]
    lines = [Line("" if section is None else str(section), *rest) for section, *rest in found if rest[-1] is not None]
    return [*lines, *_gap_lines(table, lines)]


def _gap_lines(table: TableDefinition, lines: Sequence[Line]) -> Iterator[Line]:
    """Where each row and seed stands between the two that the table's gap names, once both are known."""
    gap = table.gap
    lines = [line for line in lines if gap and line.chosen and line.metric == gap.column]
    means = {line.row: line.value for line in lines if line.seed == "mean"}
    if gap is None or not {gap.zero, gap.one} <= means.keys() or means[gap.zero] == means[gap.one]:
        return
    start = means[gap.zero]
    size = means[gap.one] - start
    for line in lines:
        if line.seed in ("mean", "interval") or str(line.seed).isdecimal():
            value = line.value / abs(size) if line.seed == "interval" else (line.value - start) / size + 0.0  # not -0
            yield line._replace(metric=GAP, value=value)


def _values(table: TableDefinition, cell: Cell, is_chosen: bool) -> Iterator[tuple[str, str, Any]]:
    """Seed, metric and value; of a rejected choice ids, means and intervals, in a study of the choice also seeds."""
    yield from ((str(run.seed), "id", run.id) for run in cell.runs)
    for name, measure in table.measures.items() if cell.runs else ():
        values = cell.means[name]
        yield "mean", name, values.mean()
        yield "interval", name, cell.interval(measure)[1]
        if is_chosen or table.shows_all_choices:
            yield from ((seed, name, value) for seed, value in values.items())
        if is_chosen:
            yield "deviation", name, float(cell.deviations[name].mean()) if table.average_over else None
            yield "max", name, values.max() if table.seed_values else None
            if measure is table.select and table.above_chance is not None:
                yield "count", name, int((values > table.above_chance).sum())
            elif (bound := getattr(measure, "solved", None)) is not None:
                yield "count", name, int((values >= bound).sum())
    if cell.runs and is_chosen:
        yield "n", table.columns[0].name, len(cell.means)
        yield from (("mean", field, cell.mean(field)) for field in PER_RUN)
        flops = cell.runs[0].flops_per_example
        yield "mean", "multiply_adds", None if flops is None else flops / 2
        yield "mean", "commit", " ".join(commits_of(cell.runs, digits=12))
    if is_chosen:
        yield from _published(table, cell.row, cell.section, cell)


def _published(
    table: TableDefinition, model: Reference, section: Any, cell: Cell | None = None
) -> Iterator[tuple[str, str, Any]]:
    """The paper's numbers, and what ours, the highest where the seeds are shown, differ by."""
    for column in table.columns:
        paper, interval = [*table.paper(model, column, section), None, None][:2]
        yield from (("paper", column.name, paper), ("paper_interval", column.name, interval))
        if paper is not None and cell and cell.runs:
            values = cell.means[column.name]
            yield "difference", column.name, (values.max() if table.seed_values else values.mean()) - paper
    if table.select:
        yield "paper", table.chosen_name, model.paper.get(table.chosen_name)
        yield "paper", table.select.name, model.paper.get("above_chance")
    yield from (("paper", key, model.paper.get(key)) for key in COSTS)
    yield "paper", "epochs", model.epochs


def _baseline(table: TableDefinition, entry: dict[str, Any], section: Any) -> Iterator[tuple[str, str, float | None]]:
    for column in table.columns:
        is_primary = column.metric.partition("@")[0] == PRIMARY_METRIC  # also at one length
        is_other = not is_primary or (table.sections and column.split != table.columns[0].split)
        value = None if is_other else entry.get(str(section) if table.sections else column.split)
        value = entry.get(column.name, value)  # such as test_mase
        yield "mean", column.name, None if value is None else table.scale * value


# ---------------------------------------------------------------------- Markdown
def _markdown(table: TableDefinition, lines: list[Line], notes: list[str], results_dir: Path) -> str:
    source = os.path.relpath(DEFINITIONS / f"{table.name}.yaml", results_dir / table.name)
    text = [f"# {table.title}", "", filled(table.caption), ""]
    text += [f"Settings: [configs/study/{table.name}.yaml]({source}). All seeds and costs: [table.csv](table.csv).", ""]
    if table.sections:
        what = table.overview_column.title.lower() + ", the highest of the seeds" * table.seed_values
        text += [f"Ours{' (paper)' * any(row.paper for row in table.rows)}, {what}:", ""]
        for grid in _overview(table, lines):
            text += [*pipes(grid), ""]
    for section in table.section_values:
        text += [f"## {table.section_title(section)}", ""] if table.sections else []
        text += [*pipes(_grid(table, lines, section)), ""]
    text += ["## Notes", "", *(filled(f"- {escape(note)}", "  ") for note in notes)]
    return "\n".join(text) + "\n"


def _chosen(lines: list[Line]) -> dict[tuple[str, str, str, str], Any]:
    """Values by section, row, seed and metric; the choice itself as the mean of the metric `choice`."""
    found = {(line.section, line.row, line.seed, line.metric): line.value for line in lines if line.chosen}
    of_runs = (line for line in lines if line.chosen and line.metric == "id")
    return found | {(line.section, line.row, "mean", "choice"): line.choice for line in of_runs}


def _grid(table: TableDefinition, lines: list[Line], section: Any) -> Grid:
    """A line a row; of a section only rows with runs. Of more than `WIDEST` columns those of the lowest rank."""
    place = "" if section is None else str(section)
    values = _chosen(lines)
    published = {line.metric for line in lines if line.seed == "paper"}
    grid = []
    for name in dict.fromkeys(line.row for line in lines if line.section == place):
        own = {key[2:]: value for key, value in values.items() if key[:2] == (place, name)}
        if not table.sections or ("mean", table.columns[0].name) in own:
            cells = list(_cells(table, name, own, published))
            shown = sorted(sorted(range(len(cells)), key=lambda n: cells[n][0])[:WIDEST])
            grid += [[cells[n][column] for n in shown] for column in ((1, 2) if not grid else (2,))]
    return grid or [["Model"]]


def _cells(table: TableDefinition, name: str, own: dict, published: set[str]) -> Iterator[tuple[int, str, str]]:
    """Rank, title and text of the cells of a row; `own`: its values by seed and metric."""
    form = f".{table.digits}f"
    find = own.get
    row = next((row for row in table.rows if row.name == name), None)
    yield 0, "Model", escape(name)
    n = find(("n", table.columns[0].name))
    count = n if table.above_chance is None else f"{find(('count', table.select.name))} of {n}"
    title = "n" if table.above_chance is None else "Above chance"
    yield 0, title, f"[{count}]({record_path(row.experiment, '..')})" if n else DASH
    if table.select:
        yield 1, table.chosen_title, find(("mean", "choice")) or DASH
    if table.costs:
        yield 1, "Parameters", _text(find(("mean", "parameters"), find(("paper", "parameters"))), ",.0f")
        yield 1, "Multiply-adds", _text(find(("mean", "multiply_adds"), find(("paper", "flops"))), ",.0f")
    for column in table.columns[:MEASURES]:
        key = column.name
        yield 0, column.title, _text(find(("mean", key)), form, find(("interval", key)))
        if key in published:
            if table.seed_values:
                yield 1, "Highest", _text(find(("max", key)), form)
            yield 1, "Paper", _text(find(("paper", key)), form, find(("paper_interval", key)))
            yield 2, "Difference", _text(find(("difference", key)), f"+{form}")
    if table.gap:
        yield 0, table.gap.title, _text(find(("mean", GAP)), form, find(("interval", GAP)))


def _text(value: Any, form: str, interval: float | None = None) -> str:
    if value is None:
        return DASH
    text = escape(value) if isinstance(value, str) else format(value, form)
    return text if interval is None else f"{text} ± {interval:{form}}"


def _overview(table: TableDefinition, lines: list[Line]) -> list[Grid]:
    """A line a model and a column a section, or the other way round where there are more sections than models, then the
    averages of what has all sections and, with a bound, how many sections reach it; in several grids where there are
    more than `WIDEST` columns."""
    column = table.overview_column
    values = _chosen(lines)
    sections = [str(section) for section in table.section_values]
    grid = [["Model", *map(table.section_title, table.section_values), "Mean", "Solved"]]
    for row in table.rows:
        texts = []
        for seed in ("max" if table.seed_values else "mean", "paper"):
            own = [values.get((section, row.name, seed, column.name)) for section in sections]
            mean = None if None in own else statistics.fmean(own)
            texts.append([*(_text(value, f".{table.digits}f") for value in (*own, mean)), _solved(own, column.solved)])
        cells = (ours + f" ({paper})" * (paper != DASH) for ours, paper in zip(*texts, strict=True))
        grid.append([escape(row.name), *cells])
    known = [n for n, cells in enumerate(zip(*grid[1:], strict=True)) if n <= len(sections) or {*cells} != {DASH}]
    grid = [[line[n] for n in known] for line in grid]
    if len(sections) > len(table.rows):
        grid = [list(line) for line in zip(*grid, strict=True)]
        grid[0][0] = "Task"
    count = -(-(len(grid[0]) - 1) // (WIDEST - 1))
    size = -(-(len(grid[0]) - 1) // count)
    return [[[line[0], *line[start : start + size]] for line in grid] for start in range(1, len(grid[0]), size)]


def _solved(values: list[float | None], bound: float | None) -> str:
    known = [value for value in values if value is not None]
    return DASH if bound is None or not known else f"{sum(value >= bound for value in known)} of {len(known)}"
