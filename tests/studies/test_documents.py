import json
import re
import shutil

import pytest

from plstm.errors import UserError
from plstm.studies.documents import document_paths, fill_document
from plstm.studies.records import write_record
from scripts import make_tables

from .conftest import ROOT, example_curve, example_record, run_script

VALUE = "<!--= results/b.json rows[grid=12,kind=as given].ours.seconds*1000:,.1f -->old<!--/-->"


@pytest.fixture
def fill(tmp_path):
    """Function of a document's text: the text filled in, beside results with a benchmark, a record and a table."""
    (tmp_path / "results/tables").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    rows = [{"grid": 24}, {"model": "other"}, {"grid": 12, "kind": "as given", "ours": {"seconds": 1.23456}}]
    (tmp_path / "results/b.json").write_text(json.dumps({"rows": rows}))
    for seed in (43, 44):
        write_record(example_record(seed=seed, test=seed / 100), example_curve(0.9), tmp_path / "results")
    table = "# Title\n\n| Model | [a](../runs/a.jsonl) |\n| --- | --- |\n| x | 1 |\n\n| other |\n"
    (tmp_path / "results/tables/demo.md").write_text(table)
    (tmp_path / "results/tables/demo.csv").write_text("section,model,test,seeds\nA,x,0.5,43 44\nB,x,-2e-1,043\n")

    def filled(text, name="docs/page.md"):
        (tmp_path / name).write_text(text)
        return fill_document(tmp_path / name, tmp_path)

    return filled


def test_values_are_filled_in(fill):
    assert fill(f"a\n| {VALUE} | b") == f"a\n| {VALUE.replace('old', '1,234.6')} | b"
    places = {
        "results/b.json rows.0.grid:d": "24",
        "results/tables/demo.csv [section=B,model=x].test:+.2f": "-0.20",
        "results/tables/demo.csv [section=A].seeds:": "43 44",
        "results/tables/demo.csv [section=B].seeds:": "043",
        "results/runs/arrow-plstm.jsonl [seed=44].record.metrics.last.test.accuracy:.3f": "0.440",
        "results/runs/arrow-plstm.jsonl [seed=43].record.metrics.last.test.accuracy*100:.0f": "43",
        "results/runs/arrow-plstm.jsonl [seed=43].curve.step.0:d": "2000",
    }
    for place, expected in places.items():
        text = fill(f"<!--= {place} --><!--/-->")
        assert text == f"<!--= {place} -->{expected}<!--/-->" and fill(text) == text
    assert fill("no marker <!-- a comment --> `<!--= shown as code -->`") == (
        "no marker <!-- a comment --> `<!--= shown as code -->`"
    )


def test_a_table_s_first_grid_is_filled_in_with_relative_links(fill):
    text = "before\n<!-- begin: table demo -->\nold\n<!-- end -->\nafter"
    grid = "| Model | [a]({}runs/a.jsonl) |\n| --- | --- |\n| x | 1 |"
    for name, link in (("docs/page.md", "../results/"), ("README.md", "results/")):
        expected = f"before\n<!-- begin: table demo -->\n{grid.format(link)}\n<!-- end -->\nafter"
        assert fill(text, name) == expected == fill(expected, name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (VALUE.removesuffix("<!--/-->"), "line 2: a damaged or unpaired marker"),
        (f"{VALUE.removesuffix('<!--/-->')} {VALUE}", "line 2: a damaged or unpaired marker"),
        ("<!--/-->", "line 2: a damaged or unpaired marker"),
        ("<!-- end -->", "line 2: a damaged or unpaired marker"),
        ("<!-- begin: table demo -->\n<!--/-->", "line 2: a damaged or unpaired marker"),
        ("<!-- begin table demo -->\n<!-- end -->", "line 2: a damaged or unpaired marker"),
        ("<!--= results/b.json rows.0.grid -->1<!--/-->", "line 2: a damaged or unpaired marker"),
        (VALUE.replace("b.json", "c.json"), "line 2: results/c.json has no such number or table (FileNotFoundError"),
        (VALUE.replace("grid=12", "grid=3"), "line 2: results/b.json has no such number or table (StopIteration"),
        (VALUE.replace("seconds", "hours"), "line 2: results/b.json has no such number or table (KeyError"),
        (VALUE.replace(".ours.seconds", ""), "line 2: results/b.json has no such number or table (TypeError"),
        ("<!-- begin: table other -->\n<!-- end -->", "line 2: results/tables/other.md has no such number or table"),
    ],
)
def test_damaged_markers_are_named_with_file_and_line(fill, text, words):
    with pytest.raises(UserError) as error:
        fill(f"first\n{text}")
    assert "page.md, line" in str(error.value) and words in str(error.value) and "\n" not in str(error.value)


def test_the_documents_here_are_fresh_and_a_changed_digit_is_stale(tmp_path, monkeypatch):
    """The tables, which take longer, are checked by `make verify` alone."""
    assert any("<!--=" in path.read_text() for path in document_paths(ROOT))
    assert "make verify" in (ROOT / ".ci/run").read_text()
    for name in ("results", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    changed = re.sub(r"-->\d.*?<!--/-->", "-->0.12345<!--/-->", (ROOT / "README.md").read_text(), count=1)
    (tmp_path / "README.md").write_text(changed)
    monkeypatch.setattr(make_tables, "ROOT", tmp_path)
    stale = f"stale: {tmp_path / 'README.md'}; run: make tables\n"
    checked = run_script("make_tables", "--check")
    assert (checked.returncode, checked.stdout) == (1, stale) and run_script("make_tables").returncode == 0
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text()
