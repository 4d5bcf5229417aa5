"""The trained weights in results/weights: few, small, whole, of a run with a record, and listed by a study."""

import re
from argparse import Namespace

import pytest

import plstm
from plstm.models import SequenceConfig, build_model
from plstm.models.weights import read_info
from plstm.studies.definitions import load_table
from plstm.studies.documents import fill_document
from plstm.studies.records import write_record
from plstm.studies.weights import missing_weights, weights_problems
from scripts.run_table import keep_weights
from tests.commands import ROOT
from tests.runs.test_weights import CONFIG, ID, drawn, save_run

from .conftest import example_curve, example_record

OTHER = "0123456789ab"
STUDY = f"""
name: kept
title: Kept
caption: Two runs
columns: [{{title: Test, split: test}}, {{title: Best, split: test, at: best}}]
rows: [{{name: ViT, experiment: arrow_48/vit}}]
sweep: {{seed: [43]}}
weights: {{vit: "{ID}", later: "{OTHER}"}}
"""


def test_the_repository_keeps_few_and_small_files():
    files = list((ROOT / "results/weights").iterdir())
    assert 0 < len(files) <= 12 and sum(path.stat().st_size for path in files) <= 14e6


@pytest.fixture
def kept(tmp_path):
    """The table of a study that keeps the weights of one finished run and of one unfinished, its records, results."""
    records = [example_record(id=ID, name="vit-s43", test=0.75)]
    write_record(records[0], example_curve(0.9), tmp_path / "results")
    path = tmp_path / "configs/study/kept.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(STUDY)
    return load_table(path), records, tmp_path / "results"


def test_a_table_writes_the_weights_of_a_finished_run_and_its_page_names_them(kept, tmp_path):
    table, records, results = kept
    file = results / "weights" / "vit.safetensors"
    assert missing_weights(table, records, results) == {file: ID}
    runs = tmp_path / "runs"
    keep_weights(table, records, Namespace(results=results, runs=runs))  # a clone has no runs
    (problem,) = weights_problems([table], records, results)
    assert problem == f"{file}: missing; run: python scripts/export.py {ID} {file}"
    save_run(runs / ID, CONFIG, {2: (drawn(2), {}, 0.1)})
    keep_weights(table, records, Namespace(results=results, runs=runs))
    assert read_info(file).run == ID and not list(weights_problems([table], records, results))
    page = results / "kept" / "README.md"
    page.parent.mkdir()
    page.write_text("<!-- begin: weights kept -->\n<!-- end -->\n")
    assert fill_document(page, tmp_path).splitlines()[1:-1] == [
        "| Weights | Run | Test |",
        "| --- | --- | --- |",
        "| [vit](../weights/vit.safetensors) | vit-s43 | 0.750 |",
    ]
    index = results / "README.md"
    index.write_text("<!-- begin: weights -->\n<!-- end -->\n")
    assert fill_document(index, tmp_path).splitlines()[1:-1] == [
        "| Weights | Study | Run |",
        "| --- | --- | --- |",
        "| [vit](weights/vit.safetensors) | [kept](kept/README.md) | vit-s43 |",
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vit", b"damaged", "vit.safetensors: not a whole safetensors file"),
        ("vit", None, f"vit.safetensors: is of run unknown, and its study lists run {ID}"),
        ("other", b"", "other.safetensors: no file of configs/study lists it under weights"),
    ],
)
def test_files_that_do_not_belong_there_are_named(kept, name, content, words):
    table, _, results = kept
    path = results / "weights" / f"{name}.safetensors"
    plstm.save(build_model(SequenceConfig(dim=8), 0, {"vocabulary": 2, "classes": 2}), path)
    if content is not None:
        path.write_bytes(content)
    (problem,) = weights_problems([table], [], results)
    assert re.search(words, problem)
