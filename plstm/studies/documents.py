"""Numbers, tables and claims in Markdown pages, filled in from the results.

A number in prose is a reference link whose definition, at the foot of the page, says in its title where it is:

    pLSTM has [0.745][d43] on larger images.

    [d43]: ../runs/arrow_48-plstm.jsonl "seed=43 config.optim.peak_lr=0.002 metrics.last.test_ext.accuracy*100:.1f"

The title is split like a shell command. Words with `=` choose one row of a CSV file or one run of a JSONL file, by
fields of its record. The last word is the field (of a CSV file `value`, if left out), a factor and a format (`.3f`, if
left out). Of a study's table.csv only chosen rows count, and without a seed the number is the mean with its interval:
`0.745 ± 0.020`; `seed=43,44,45` gives it for these seeds. In a JSON file the field is a path such as
`rows[grid=12,kind='as given'].ours.0.seconds`.

    <!-- begin: NAME -->
    <!-- end -->

hold what is generated whole: `table STUDY`, `weights STUDY`, `claims STUDY...` of these studies' claims.yaml, and of
all studies `index` and `weights`. The `ours` of a claim is text with titles of table.csv in braces: `{row=pLSTM
metric=test} against {row=ViT metric=test}`.
"""

import contextlib
import csv
import functools
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from plstm.errors import UserError
from plstm.studies.definitions import load_table
from plstm.studies.markdown import pipes
from plstm.studies.records import read_records
from plstm.studies.sweeps import t_interval
from plstm.studies.weights import weights_path

DEFINITION = re.compile(r'^\[([^\]\n]+)\]: (\S+) "(.*)"$', re.MULTILINE)
BLOCK = re.compile(r"^<!-- begin: (.+) -->\n(?:(?!<!--)[^\n]*\n)*<!-- end -->$", re.MULTILINE)
NUMBER = re.compile(r"\[([-+]?\d[^\[\]]*|)\]\[([^\]\n]+)\]")
CHOICE = re.compile(r"[\w.@-]+=")
STEP = re.compile(r"([^.\[]*)(?:\[([^\]]*)\])?\.?(.*)")
FIELD = re.compile(r"(?P<path>(?:\[[^\]]*\]|[^*:\[])*)(?:\*(?P<factor>[\d.e+-]+))?(?::(?P<form>.*))?")
VERDICTS = ("reproduced", "not shown", "contradicted", "not run")
MAX_LINE = 200
FENCE = re.compile(r"^ *```", re.MULTILINE)
MEASURED = re.compile(r"(?<![\w.\[])[\d.,]*\d (?:[kMGT]i?B|ms|GFLOPs?)\b")  # counted or timed, so in some file


def document_paths(root: Path) -> list[Path]:
    """The pages with generated numbers: README.md, docs, the studies' pages, examples."""
    patterns = ("README.md", "docs/*.md", "examples/*.md", "results/README.md", "results/*/README.md")
    return [path for pattern in patterns for path in sorted(root.glob(pattern))]


def fill_document(path: Path, root: Path) -> str:
    """A page's text with all its numbers and blocks filled; UserError naming the page and what is wrong with it."""

    def filled_block(block: re.Match) -> str:
        name, *studies = block[1].split()
        with _named(path, f"block '{block[1]}'"):
            body = BLOCKS[name]([root / "results" / study for study in studies], path.parent)
        return f"<!-- begin: {block[1]} -->\n{body}\n<!-- end -->"

    text = BLOCK.sub(filled_block, path.read_text(encoding="utf-8"))
    numbers = {}
    for key, file, title in DEFINITION.findall(text):
        with _named(path, f"[{key}]"):
            numbers[key] = find_text((path.parent / file).resolve(), title.replace('\\"', '"'))
    if unpaired := {key for _, key in NUMBER.findall(text)} ^ set(numbers):
        raise UserError(f"{path}: numbers without a source, or sources without a number: {unpaired}")
    return NUMBER.sub(lambda number: f"[{numbers[number[2]]}][{number[2]}]", text)


@contextlib.contextmanager
def _named(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: {what}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def document_problems(path: Path) -> list[str]:
    """What is wrong with the form of a page: a code block without an end, definitions that a paragraph swallows, lines
    too long to read, markup that GitHub takes for HTML, and sizes and times that no link holds."""
    text = path.read_text(encoding="utf-8")
    problems = [f"{path}: a code block has no end"] if len(FENCE.findall(text)) % 2 else []
    lines = text.splitlines()
    for number, (before, line) in enumerate(zip(["", *lines], lines, strict=False), 1):
        if DEFINITION.match(line) and before and not DEFINITION.match(before):
            problems.append(f"{path}, line {number}: a paragraph ends above it: leave a blank line between")
        if len(line) > MAX_LINE and not line.startswith("|") and not DEFINITION.match(line):
            problems.append(f"{path}, line {number}: over {MAX_LINE} characters")
        if re.match(r"<!--(?! begin: .* -->$| end -->$)", line):
            problems.append(f"{path}, line {number}: a damaged marker; see plstm/studies/documents.py")
        if found := MEASURED.search(line):
            problems.append(f"{path}, line {number}: {found[0]}: link the number to a file, or leave it out")
    return problems


def find_text(path: Path, title: str) -> str:
    """The number that a title describes, as text; LookupError, TypeError or ValueError where there is none."""
    words = shlex.split(title)
    choice = dict(word.split("=", 1) for word in words if CHOICE.match(word))
    (field,) = [word for word in words if not CHOICE.match(word)] or ["value"]
    match = FIELD.fullmatch(field)
    if match is None:
        raise ValueError(f"not a field: {field}")

    def formatted(value: Any) -> str:
        number = float(value) * float(match["factor"] or 1)
        return f"{int(number) if number.is_integer() else number:{match['form'] or '.3f'}}"

    found = _read(path)
    if path.suffix == ".csv" and "seed" in found[0]:  # a long table
        choice = ({"chosen": "1"} if "chosen" in found[0] else {}) | choice
        if "seed" not in choice:
            rows = [row for seed in ("mean", "interval") for row in _rows(found, choice | {"seed": seed})]
            return " ± ".join(formatted(row["value"]) for row in rows)
        if "," in choice["seed"]:
            rows = [row for seed in choice["seed"].split(",") for row in _rows(found, choice | {"seed": seed})]
            mean, half_width, _ = t_interval([float(row["value"]) for row in rows])
            return f"{formatted(mean)} ± {formatted(half_width)}"
    if path.suffix in (".csv", ".jsonl"):
        (found,) = _rows(found, choice)
    return formatted(_follow(found, match["path"] or "value"))


def _rows(rows: list[dict[str, Any]], choice: dict[str, str]) -> list[dict[str, Any]]:
    """Those with these values; LookupError if several, and if there is none unless an interval is asked for."""
    chosen = [row for row in rows if all(_fits(row, key, value) for key, value in choice.items())]
    if len(chosen) > 1 or not chosen and choice.get("seed") != "interval":
        raise LookupError(f"{len(chosen)} rows have {' '.join(f'{key}={value}' for key, value in choice.items())}")
    return chosen


def _fits(row: dict[str, Any], key: str, value: str) -> bool:
    try:
        return str(_follow(row, key)) == value
    except (LookupError, TypeError):
        return False


def _follow(node: Any, place: str) -> Any:
    """The value at a path such as rows[grid=12].ours.0.seconds; a key may have dots itself."""
    if not place:
        return node
    if isinstance(node, dict) and (known := [key for key in node if f"{place}.".startswith(f"{key}.")]):
        key = max(known, key=len)
        return _follow(node[key], place[len(key) + 1 :])
    key, choice, rest = STEP.fullmatch(place).groups()
    node = node[int(key)] if isinstance(node, list) else node[key]
    if choice:
        (node,) = _rows(node, dict(part.split("=") for part in re.split(r",(?=[\w.]+=)", choice)))
    return _follow(node, rest)


@functools.lru_cache(maxsize=64)
def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    if path.suffix == ".jsonl":  # a run is chosen by fields of its record
        return [line["record"] | line for line in map(json.loads, text.splitlines())]
    return json.loads(text)


def _table(studies: list[Path], folder: Path) -> str:
    """The first table of the study's table.md, its links made relative to `folder`."""
    (path,) = [study / "table.md" for study in studies]
    text = re.search(r"(?:^\|.*\n)+", path.read_text(encoding="utf-8"), re.MULTILINE)[0].rstrip()
    return re.sub(r"\]\(([^)\s]+)\)", lambda link: f"]({os.path.relpath(path.parent / link[1], folder)})", text)


def read_claims(study: Path) -> list[dict[str, str]]:
    """The study's claims with the numbers of `ours` filled in; ValueError for a claim of another form."""
    claims = yaml.safe_load((study / "claims.yaml").read_text(encoding="utf-8"))
    for claim in claims:
        if not {"claim", "paper", "ours", "verdict"} <= set(claim) <= {"claim", "paper", "ours", "verdict", "note"}:
            raise ValueError(f"a claim needs claim, paper, ours and verdict, and may have a note: {claim}")
        if claim["verdict"] not in VERDICTS:
            raise ValueError(f"{claim['verdict']}: not one of {', '.join(VERDICTS)}")
        claim["ours"] = re.sub(r"\{(.*?)\}", lambda title: find_text(study / "table.csv", title[1]), claim["ours"])
    return claims


def _claims(studies: list[Path], folder: Path) -> str:
    """One row a claim; of several studies with a link to the study's page, of one with notes."""
    several = len(studies) > 1
    header = ["Study"] * several + ["Claim", "Paper", "Ours", "Verdict"] + ["Note"] * (not several)
    rows = [header]
    for study in studies:
        link = f"[{study.name}]({os.path.relpath(study / 'README.md', folder)})"
        for number, claim in enumerate(read_claims(study)):
            cells = [claim[key] for key in ("claim", "paper", "ours", "verdict")]
            rows.append([link if number == 0 else "", *cells] if several else [*cells, claim.get("note", "")])
    return "\n".join(pipes(rows))


def _index(_: list[Path], folder: Path) -> str:
    """One row a study: its page and how many claims have which verdict, or the command that runs it and its cost."""
    rows = [["Study", "What", "Claims, or command and cost"]]
    for path in sorted((folder.parent / "configs/study").glob("*.yaml"), key=lambda path: path.stem):
        study = folder / path.stem
        name, text = path.stem, path.read_text(encoding="utf-8")
        if (study / "claims.yaml").is_file():
            verdicts = [claim["verdict"] for claim in read_claims(study)]
            counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts]
            name, state = f"[{name}]({name}/README.md)", ", ".join(counts)
        elif (study / "README.md").is_file():
            name, state = f"[{name}]({name}/README.md)", "no claim of a paper"
        else:  # the first line of a study's file has its command and cost
            first = re.match(r"# (make \S+)\s+(.*)", text)
            if first is None:
                raise ValueError(f"{path.name}: its first line must have its command and cost: # make table-x  2 runs")
            command, cost = first.groups()
            state = f"not run: `{command}`, {cost}"
        rows.append([name, yaml.safe_load(text)["title"], state])
    return "\n".join(pipes(rows))


def _weights(studies: list[Path], folder: Path) -> str:
    """One row for each file of weights that the study keeps, with what its last step has in the table's columns; if no
    study is named, one for each file of all studies, with a link to its study."""
    if not studies:
        return _all_weights(folder)
    (study,) = studies
    results = study.parent
    table = load_table(results.parent / "configs" / "study" / f"{study.name}.yaml")
    columns = [column for column in table.columns if column.at == "last"]
    records = {record.id: record for record in read_records(results)}
    rows = [["Weights", "Run", *(column.title for column in columns)]]
    for name, run in table.weights.items():
        if run in records:
            path = weights_path(name, results)
            found = (records[run].metric(column.split, column.metric) for column in columns)
            cells = [f"[{path.stem}]({os.path.relpath(path, folder)})", records[run].name]
            rows.append([*cells, *(f"{value * table.scale:.{table.digits}f}" for value in found)])
    return "\n".join(pipes(rows))


def _all_weights(results: Path) -> str:
    runs = {record.id: record.name for record in read_records(results)}
    rows = [["Weights", "Study", "Run"]]
    for path in sorted((results.parent / "configs/study").glob("*.yaml")):
        for name, run in load_table(path).weights.items():
            if run in runs:
                file = weights_path(name, results).relative_to(results)
                rows.append([f"[{name}]({file})", f"[{path.stem}]({path.stem}/README.md)", runs[run]])
    return "\n".join(pipes(rows))


BLOCKS = {"table": _table, "claims": _claims, "index": _index, "weights": _weights}
