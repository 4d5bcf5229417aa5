import json
import shutil

import pytest

from plstm.errors import UserError
from plstm.studies.documents import document_problems, fill_document
from plstm.studies.records import write_record
from scripts import make_tables
from tests.commands import call_here

from .conftest import example_curve, example_record

TABLE = """section,row,choice,chosen,seed,metric,value
,ViT,0.002,1,43,test,0.25
,ViT,0.002,1,44,test,0.75
,ViT,0.002,1,mean,test,0.5
,ViT,0.002,1,interval,test,0.125
,ViT,0.001,0,mean,test,0.75
,chance,,1,mean,test,0.5
"""
CLAIM = """
- claim: ViT is at chance
  paper: "0.5"
  ours: "{row=ViT metric=test *100:.1f} against {row=chance metric=test}"
  verdict: reproduced
  note: small
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a benchmark, records, and a study's table and claims."""
    for folder in ("results/demo", "results/empty", "docs", "configs/study"):
        (tmp_path / folder).mkdir(parents=True)
    rows = [{"grid": 24}, {"model": "other"}, {"grid": 12, "kind": "as given", "ours": {"seconds": 1.23456}}]
    (tmp_path / "results/b.json").write_text(json.dumps({"rows": rows}))
    for seed in (43, 44):
        write_record(example_record(seed=seed, test=seed / 100), example_curve(0.9), tmp_path / "results")
    (tmp_path / "results/demo/table.csv").write_text(TABLE)
    (tmp_path / "results/demo/table.md").write_text("# T\n\n| Model | [a](../a.jsonl) |\n| --- | --- |\n\n| other |\n")
    (tmp_path / "results/demo/claims.yaml").write_text(CLAIM)
    (tmp_path / "results/broken").mkdir()
    (tmp_path / "results/broken/claims.yaml").write_text("- claim: pLSTM: best")
    (tmp_path / "configs/study/demo.yaml").write_text("# make table-demo   2 runs\ntitle: A demo\n")
    (tmp_path / "configs/study/later.yaml").write_text("# make table-later  9 runs of an hour\ntitle: Later\n")
    return tmp_path


@pytest.fixture
def fill(project):
    """Function of a page's text and path: the text filled in."""

    def filled(text, name="docs/page.md"):
        (project / name).write_text(text)
        return fill_document(project / name, project)

    return filled


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("b.json \"rows[grid=12,kind='as given'].ours.seconds*1000:,.1f\"", "1,234.6"),
        ('b.json "rows.0.grid:d"', "24"),
        ('demo/table.csv "row=ViT metric=test"', "0.500 ± 0.125"),
        ('demo/table.csv "row=ViT metric=test choice=0.001 chosen=0 :.2f"', "0.75"),
        ('demo/table.csv "row=ViT metric=test seed=43 *100:.0f"', "25"),
        ('demo/table.csv "row=chance metric=test"', "0.500"),
        ('demo/table.csv "row=ViT metric=test seed=43,44 :.2f"', "0.50 ± 1.58"),  # t(0.95, 1) = 6.314
        ('runs/arrow-plstm.jsonl "seed=44 metrics.last.test.accuracy"', "0.440"),
        ('runs/arrow-plstm.jsonl "config.optim.peak_lr=0.0001 seed=43 metrics.last.test.accuracy*100:.0f"', "43"),
        ('runs/arrow-plstm.jsonl "seed=43 curve.step.0:d"', "2000"),
    ],
)
def test_a_number_is_filled_in_from_its_source(fill, source, expected):
    text = f"| a [{{}}][k] | b [link](x) |\n\n[k]: ../results/{source}\n[x]: ../other.md\n"
    assert fill(text.format("")) == text.format(expected) == fill(text.format(expected))


def test_blocks_are_generated_whole_with_relative_links(fill, project):
    assert fill("a\n<!-- begin: table demo -->\nold\n<!-- end -->\nb", "README.md") == (
        "a\n<!-- begin: table demo -->\n| Model | [a](results/a.jsonl) |\n| --- | --- |\n<!-- end -->\nb"
    )
    assert "| ViT is at chance | 0.5 | 50.0 ± 12.5 against 0.500 | reproduced | small |" in fill(
        "<!-- begin: claims demo -->\n<!-- end -->", "results/demo/README.md"
    )
    shutil.copytree(project / "results/demo", project / "results/other")
    several = fill("<!-- begin: claims demo other -->\n<!-- end -->")
    assert "| [other](../results/other/README.md) | ViT is at chance | 0.5 |" in several
    index = fill("<!-- begin: index -->\n<!-- end -->", "results/README.md")
    assert "| [demo](demo/README.md) | A demo | 1 reproduced |" in index
    assert "| later | Later | not run: `make table-later`, 9 runs of an hour |" in index
    (project / "configs/study/later.yaml").write_text("title: Later\n")
    with pytest.raises(UserError, match=r"block 'index': .*later.yaml: its first line must have its command"):
        fill("<!-- begin: index -->\n<!-- end -->", "results/README.md")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[1][k]\n\n[k]: ../results/c.json "x"', "[k]: FileNotFoundError"),
        ('[1][k]\n\n[k]: ../results/b.json "rows[grid=3].grid"', "[k]: LookupError: 0 rows have grid=3"),
        ('[1][k]\n\n[k]: ../results/b.json "rows[grid=12].ours"', "[k]: TypeError"),
        ('[1][k]\n\n[k]: ../results/runs/arrow-plstm.jsonl "task=arrow seed"', "[k]: LookupError: 2 rows have"),
        ('[1][k]\n\n[k]: ../results/demo/table.csv "row=GCN metric=test"', "[k]: LookupError: 0 rows have"),
        ("a number [0.5][k] without a source", "numbers without a source, or sources without a number: {'k'}"),
        ('[k]: ../results/b.json "rows.0.grid"', "numbers without a source, or sources without a number: {'k'}"),
        ("<!-- begin: table other -->\n<!-- end -->", "block 'table other': FileNotFoundError"),
        ("<!-- begin: claims broken -->\n<!-- end -->", "block 'claims broken': ScannerError"),
        ("<!-- begin: tables demo -->\n<!-- end -->", "block 'tables demo': KeyError"),
    ],
)
def test_a_wrong_source_is_named_with_its_page(fill, text, words):
    with pytest.raises(UserError) as error:
        fill(text)
    assert "page.md: " in str(error.value) and words in str(error.value)


def test_a_claim_has_one_of_four_verdicts(fill, project):
    (project / "results/demo/claims.yaml").write_text(CLAIM.replace("reproduced", "rather"))
    with pytest.raises(UserError, match="rather: not one of reproduced, not shown, contradicted, not run"):
        fill("<!-- begin: claims demo -->\n<!-- end -->")


def test_long_lines_damaged_markers_and_sizes_of_no_file_are_problems(tmp_path):
    page = tmp_path / "page.md"
    long = "x" * 201
    page.write_text(f'| {long} |\n[k]: file "{long}"\n<!-- begin: index -->\n<!-- end -->\n<!-- note -->\n')
    assert [problem.split("line ")[1].split(":")[0] for problem in document_problems(page)] == ["2", "5"]
    page.write_text("12 GB\n[1.5][k] ms, [12 GB][k]\nin `1.5 ms` a step\n100 MBit and a 2 x 3 GBase\n")
    assert [problem.split("line ")[1] for problem in document_problems(page)] == [
        f"{line}: {number}: link the number to a file, or leave it out"
        for line, number in ((1, "12 GB"), (3, "1.5 ms"))
    ]
    page.write_text("```\nmake demo\n```\n\n``` make test ```\n")
    assert document_problems(page) == [f"{page}: a code block has no end"]
    page.write_text('[1.5][a] [2][b]\n\n[a]: x.csv "y"\n[b]: x.csv "y"\n')
    assert not document_problems(page)
    page.write_text('[1.5][a]\n[a]: x.csv "y"\n')
    assert document_problems(page) == [f"{page}, line 2: a paragraph ends above it: leave a blank line between"]
    page.write_text(f"{long}\n<!--= a -->")
    assert [problem.split("line ")[1].split(":")[0] for problem in document_problems(page)] == ["1", "2"]


def test_make_tables_names_and_mends_a_stale_page(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/b.json").write_text('{"x": 0.5}')
    page = tmp_path / "README.md"
    page.write_text('[0.4][k]\n\n[k]: results/b.json "x"\n')
    monkeypatch.setattr(make_tables, "ROOT", tmp_path)
    checked = call_here(make_tables.main, "--check", "--results", tmp_path / "results")
    assert (checked.status, checked.output) == (1, f"stale: {page}; run: make tables\n")
    assert call_here(make_tables.main, "--results", tmp_path / "results").status == 0
    assert page.read_text() == '[0.500][k]\n\n[k]: results/b.json "x"\n'
