"""Numbers and tables in Markdown documents, filled in from the results.

    <!-- begin: table arrow-demo -->         the first grid of results/tables/arrow-demo.md, its links made relative
    <!-- end -->
    <!--= FILE PLACE*FACTOR:FORMAT -->12.3<!--/-->      a number of a JSON, JSONL or CSV file; *FACTOR may be left out

A place is a path such as `rows[grid=12,structure=general].ours.median_seconds`, or `rows.0.ratio` by position; of the
runs in a JSONL file it begins with a choice, `[seed=43].record.metrics.last.test.accuracy`, and so it does of the rows
in a table's CSV file, `[section=MUTAG,model=pLSTM].test_best`.
"""

import csv
import functools
import json
import os
import re
from pathlib import Path
from typing import Any

from plstm.errors import UserError

PAIR = re.compile(
    r"""(?<!`)(?:
        (?P<open><!--=[ ](?P<file>\S+)[ ](?P<place>[^>]*?)(?:\*(?P<factor>[\d.e+-]+))?:(?P<form>[^:>]*)[ ]-->)
        (?:(?!<!--).)*<!--/-->
        |(?P<begin><!--[ ]begin:[ ]table[ ](?P<table>\S+)[ ]-->)(?:(?!<!--).)*<!--[ ]end[ ]-->
        |(?P<bad><!--\s*(?:=|/|begin\b|end\b))
    )""",
    re.VERBOSE | re.DOTALL,
)


def document_paths(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def fill_document(path: Path, root: Path) -> str:
    """A document's text with all its markers filled; UserError naming file and line at a damaged one."""
    text = path.read_text(encoding="utf-8")

    def filled(pair: re.Match) -> str:
        where = f"{path}, line {text.count(chr(10), 0, pair.start()) + 1}"
        if pair["bad"]:
            raise UserError(f"{where}: a damaged or unpaired marker; see plstm/studies/documents.py for their form")
        file = pair["file"] or f"results/tables/{pair['table']}.md"
        try:
            if pair["table"]:
                return f"{pair['begin']}\n{_first_grid(root / file, path.parent)}\n<!-- end -->"
            number = find_value(_read(root / file), pair["place"])
            number = number * float(pair["factor"]) if pair["factor"] else number
            return f"{pair['open']}{number:{pair['form']}}<!--/-->"
        except (OSError, KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
            raise UserError(f"{where}: {file} has no such number or table ({type(error).__name__}: {error})") from error

    return PAIR.sub(filled, text)


def _first_grid(path: Path, folder: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|"))
    end = next((n for n, line in enumerate(lines) if n > start and not line.startswith("|")), len(lines))
    text = "\n".join(lines[start:end])
    return re.sub(r"\]\(([^)\s]+)\)", lambda link: f"]({os.path.relpath(path.parent / link[1], folder)})", text)


@functools.lru_cache(maxsize=64)
def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return [{key: _as_number(cell) for key, cell in row.items()} for row in csv.DictReader(text.splitlines())]
    if path.suffix != ".jsonl":
        return json.loads(text)
    lines = map(json.loads, text.splitlines())
    return [line["record"] | line for line in lines]  # a run is chosen by fields of its record


def _as_number(cell: str) -> float | str:
    return json.loads(cell) if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?(e[+-]?\d+)?", cell) else cell


def find_value(node: Any, place: str) -> Any:
    """The value at a place in a JSON value; KeyError, IndexError, StopIteration or TypeError where there is none."""
    for key, choice in re.findall(r"([^.\[\]]*)(?:\[([^\]]*)\])?", place):
        if key:
            node = node[int(key)] if isinstance(node, list) else node[key]
        if choice:
            wanted = dict(part.split("=") for part in choice.split(","))
            node = next(row for row in node if all(str(row.get(name)) == value for name, value in wanted.items()))
    return node
