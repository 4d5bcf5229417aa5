"""`make verify`: a digit changed anywhere is seen, by its file's digest and, where it can be, by computing it again."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from plstm.results.sums import NAME, refresh_sums, sums_problems, write_sums

from plstm.errors import UserError
from plstm.results.definitions import load_table
from plstm.results.records import read_records, write_record
from plstm.results.tables import stale_files
from plstm.results.verify import claim_problems, measured_problems, record_problems, rerun_problems

from .conftest import ROOT

RUN = "89a5a319e62d"
METRICS = json.loads((ROOT / f"results/runs/{RUN}.json").read_text())["metrics"]
BEST = METRICS["best"]["step"]
ACCURACY = f"{METRICS['last']['test']['accuracy']:.3f}"


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """README, docs and results as they are here."""
    root = tmp_path_factory.mktemp("verify")
    for name in ("results", "docs", "configs"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "README.md", root)
    return root


@pytest.fixture
def changed(copied):
    """Function (path below the root, place of a digit) that changes this digit; what it changed is put back."""
    before = {}

    def change(name: str, place: int) -> None:
        path = copied / name
        text = before.setdefault(path, path.read_bytes())
        digit = b"%d" % ((int(text[place : place + 1]) + 1) % 10)
        path.write_bytes(text[:place] + digit + text[place + 1 :])

    yield change
    for path, text in before.items():
        path.write_bytes(text)


def digits(text: str, pattern: str) -> list[int]:
    """Places of the digits within the first group of each match."""
    groups = [match.span(1) for match in re.finditer(pattern, text, re.DOTALL)]
    return [place for start, end in groups for place in range(start, end) if text[place].isdigit()]


def problems_of_records(root: Path) -> list[str]:
    try:
        (record,) = (record for record in read_records(root / "results") if record.id == RUN)
        return record_problems(record, root / "results")
    except UserError as error:
        return [str(error)]


def test_the_results_here_are_as_they_were_written(copied):
    assert not sums_problems(copied / "results")
    assert not measured_problems(copied / "results")
    assert not claim_problems(copied)
    assert not problems_of_records(copied)
    assert not stale_files(demo_table(), read_records(copied / "results"), copied / "results")


def demo_table():
    return load_table(ROOT / "configs/tables/arrow-demo.yaml")


def test_a_digit_of_any_file_of_the_results(copied, changed):
    results = copied / "results"
    names = [path.relative_to(copied).as_posix() for path in sorted(results.rglob("*.*")) if path.is_file()]
    assert len(names) > 40
    for name in names:
        text = (copied / name).read_bytes()
        places = [place for place, byte in enumerate(text) if chr(byte).isdigit() and byte < 128]
        for place in (places[0], places[len(places) // 2], places[-1]):
            changed(name, place)
            (line,) = sums_problems(results)
            assert str(copied / name) in line and "changed" in line
        (copied / name).write_bytes(text)


def test_a_digit_of_a_final_or_best_metric_of_a_record_or_its_curve(copied, changed):
    name = f"results/runs/{RUN}.json"
    text = (copied / name).read_text()
    places = digits(text, r'"metrics": (\{.*\})') + digits(
        text, r'"(?:steps|epochs|parameters|flops_per_image)": (\S+),'
    )
    places += digits(text, r'"(?:peak_lr|epochs|dim|seed|train_seed|size)": (\S+)') + digits(text, r'seed=(\d+)"')
    assert len(places) > 200
    for place in places[::12]:
        changed(name, place)
        same = json.loads((copied / name).read_text()) == json.loads(text)  # a 17th digit may leave the number as it is
        counted = '"count"' in text[place - 15 : place] and place > text.index('"best"')  # of no other place
        assert problems_of_records(copied) or same or counted, text[place - 30 : place + 5]
    (copied / name).write_text(text)
    name = f"results/curves/{RUN}.csv"
    text = (copied / name).read_text()
    for place in digits(text, rf"\n(?:1560|{BEST}),[^\n]*(?:val|test)[^\n]*,(\d\.\d{{8}})")[::9]:
        changed(name, place)
        assert problems_of_records(copied), text[place - 20 : place + 10]


def test_a_point_more_or_less_in_a_curve_and_another_best_step(copied, changed):
    path = copied / f"results/curves/{RUN}.csv"
    text = path.read_text()
    changed(f"results/curves/{RUN}.csv", digits(text, r"(\d)")[0])
    lines = text.splitlines(keepends=True)
    middle = next(n for n, line in enumerate(lines) if line.startswith("390,") and ",val,accuracy" in line)
    for rest, words in (
        (lines[:middle] + lines[middle + 1 :], "has no accuracy of val at step 390"),
        (lines + [lines[middle].replace("390,", "391,")], "has accuracy of val at step 391, where the run has none"),
        (lines + [lines[middle]], "has a point twice"),
        ([line.replace(",1.0,val,", ",1.5,val,") for line in lines], "step 390 is epoch 1.0, not 1.5"),
    ):
        path.write_text("".join(rest))
        assert any(words in line for line in problems_of_records(copied)), words
    line = lines[middle]
    path.write_text(text.replace(line, line.rpartition(",")[0] + ",0.999\n"))
    assert any(
        f"metrics.best.step is {BEST}, but 390 follows from its curve" in line for line in problems_of_records(copied)
    )


def test_a_digit_of_a_table(copied, changed):
    for kind in ("md", "csv", "tex"):
        name = f"results/tables/arrow-demo.{kind}"
        text = (copied / name).read_text()
        for place in digits(text, r"(\d+)")[::17]:
            changed(name, len(text[:place].encode()))
            (line,) = stale_files(demo_table(), read_records(copied / "results"), copied / "results")
            assert line == f"stale: {copied / name}"
        (copied / name).write_text(text)


def test_a_digit_of_a_measurement(copied, changed):
    for name, pattern in (
        ("results/benchmarks/operator-cpu.json", r'"(?:median_seconds|speedup)": (\d\.\d{8})'),
        ("results/benchmarks/model-cpu.json", r'"(?:median_seconds|ratio)": (\d\.\d{8})'),
        ("results/benchmarks/memory-cpu.json", r'"(?:time|memory)_ratio": (\d\.\d{8})'),
        ("results/probes/1f392ab62038.json", r'"as given",\s+"images": \d+,\s+"accuracy": (\d\.\d+)'),
    ):
        text = (copied / name).read_text()
        places = digits(text, pattern)
        assert places
        for place in places[::7]:
            changed(name, place)
            assert measured_problems(copied / "results"), text[place - 30 : place + 10]
        (copied / name).write_text(text)


def test_a_digit_of_the_readme_and_of_what_it_shows(copied, changed):
    claims = yaml.safe_load((copied / "docs/claims.yaml").read_text())
    for claim in claims:
        words = re.split(r"\{[^{}]+\}", claim["text"])
        text = (copied / claim["file"]).read_text()
        pattern = r"([\d.,]*\d)".join(re.sub(r"(\\\s)+", r"\\s+", re.escape(part)) for part in words)
        found = re.search(pattern, text)
        assert found, claim
        for group in range(1, len(words)):
            changed(claim["file"], found.end(group) - 1)
            problems = claim_problems(copied)
            assert any(claim["from"] in line and claim["file"] in line for line in problems), claim
        (copied / claim["file"]).write_text(text)


def test_numbers_that_link_a_record_without_a_claim(copied, changed):
    path = copied / "README.md"
    text = path.read_text()
    changed("README.md", digits(text, r"(\d)")[0])
    link = f"(results/runs/{RUN}.json)"
    path.write_text(f"{text}\n[{ACCURACY}]{link} [{float(ACCURACY):.1%}]{link} [126,994]{link} [the record]{link}")
    assert not claim_problems(copied)
    path.write_text(f"{text}\n[0.803]{link} [80.3%]{link} [126,995]{link} [gone](results/runs/0.json)")
    assert len(claim_problems(copied)) == 4


def test_a_claim_of_a_number_that_is_not_there_is_named(copied, changed):
    path = copied / "docs/claims.yaml"
    text = path.read_text()
    changed("docs/claims.yaml", digits(text, r"(\d)")[0])
    for place in ("metrics.last.train.accuracy:.3f", "metrics:.3f", "rows[grid=3].x:.1f"):
        path.write_text(f"- {{file: README.md, from: results/runs/{RUN}.json, text: 'x {{{place}}}'}}")
        with pytest.raises(UserError, match="no such number there"):
            claim_problems(copied)
    path.write_text("- {file: README.md}")
    with pytest.raises(UserError, match="file, from and text"):
        claim_problems(copied)


def test_records_and_curves_are_written_down_once(add, tmp_path):
    record = add()
    refresh_sums(tmp_path)
    assert not (tmp_path / NAME).exists()
    assert "not in SHA256SUMS; run: make tables" in sums_problems(tmp_path)[0]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "arrow.md").write_text("1")
    write_sums(tmp_path)
    assert not sums_problems(tmp_path)
    (tmp_path / "tables" / "arrow.md").write_text("2")
    assert "changed" in sums_problems(tmp_path)[0]
    refresh_sums(tmp_path)
    assert not sums_problems(tmp_path)
    (tmp_path / "folds").mkdir()
    folds = tmp_path / "folds" / "graphs-gin-MUTAG.jsonl"
    folds.write_text("first\n")
    write_sums(tmp_path)
    folds.write_text("first\nsecond\n")
    write_sums(tmp_path)
    folds.write_text("second\n")
    with pytest.raises(UserError, match=r"MUTAG.jsonl.*never change"):
        write_sums(tmp_path)
    folds.write_text("first\nsecond\n")
    write_record(dataclasses.replace(record, wall_seconds=1.0), [], tmp_path)
    with pytest.raises(UserError, match="records and curves never change"):
        write_sums(tmp_path)
    (tmp_path / "runs" / f"{record.id}.json").unlink()
    assert any("missing" in line for line in sums_problems(tmp_path))
    (tmp_path / NAME).write_text("0123  runs/a.json\n")
    with pytest.raises(UserError, match="line 1"):
        sums_problems(tmp_path)


def test_a_run_of_another_kind_of_device_is_not_compared(add, tmp_path):
    problems, line = rerun_problems(add(), tmp_path)
    assert not problems and "not compared: its record is from 1 x H100" in line


def test_verify_is_what_ci_runs_and_fails_with_status_1(copied, changed, capsys, monkeypatch):
    assert "make verify" in (ROOT / ".ci/run").read_text()
    spec = importlib.util.spec_from_file_location("verify_script", ROOT / "scripts/verify.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "load_tables", lambda folder: [demo_table()])
    monkeypatch.setattr(script, "record_problems", lambda record, results: [])
    monkeypatch.setattr("sys.argv", ["verify.py", "--root", str(copied)])
    assert script.main() == 0
    text = (copied / "README.md").read_text()
    changed("README.md", digits(text, rf"\[({re.escape(ACCURACY)})\]")[-1])
    assert script.main() == 1
    assert ACCURACY in capsys.readouterr().out
