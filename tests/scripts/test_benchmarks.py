"""The benchmark harness, and its subjects at their smallest."""

import json
import os
import statistics
from pathlib import Path

import pytest

from data import decoding
from data.augment.recipes import RECIPES
from plstm.ops.grid import FORMS
from scripts import benchmark
from scripts.benchmarks import models, operators
from tests.commands import ROOT, call, call_here


def measured(subject: str, out: Path, *arguments: object, **options) -> dict:
    """The record of a subject measured with one repeat."""
    printed = call("scripts/benchmark.py", subject, *arguments, "--repeats", 1, "--out", out, **options)
    record = json.loads(out.read_text())
    assert len(printed.splitlines()) >= len(record["rows"]) + 1 and f"Written to {out}" in printed
    assert record["command"].startswith(f"python scripts/benchmark.py {subject}") and "commit" in record
    assert record["hardware"]["platform"] == "cpu" and record["settings"]["repeats"] == 1
    assert record["peak_memory_bytes"] > 2**20
    return record


def test_runs_take_turns_after_a_round_to_warm_up():
    calls = []
    runs = {name: (lambda name=name: calls.append(name), {"of": name}) for name in "ab"}
    found = operators.compare(runs, 2)
    assert calls == ["a", "b"] * 3
    assert [(row["of"], len(row["seconds"])) for row in found.values()] == [("a", 2), ("b", 2)]


def test_ratios_are_of_medians_and_within_rounds():
    found = {"slow": operators.timing([2.0, 30.0, 4.0]), "fast": operators.timing([1.0, 10.0, 4.0])}
    expected = {"speedup": 1.0, "speedup_by_round": 2.0}
    assert operators.ratio(found, "slow", "fast", "speedup") == expected
    assert found["slow"]["median_seconds"] == statistics.median([2.0, 30.0, 4.0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: subject"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["operator", "--grids", "0"], "'0' must be a whole number from 1"),
        (["chunks", "--cases", "12"], "invalid side_x_images value: '12'"),
        (["steps"], "--against: name the folder of a checkout"),
        (["steps", "--against=/"], "--against /: no checkout"),
        (["data", "--images=1", "--repeats=1", "--out=/proc/x.json"], "/proc/x.json: No such file"),
    ],
)
def test_bad_input_is_named_in_one_line(arguments, words):
    status, _, errors = call_here(benchmark.main, *arguments)
    assert status == 2 and errors.startswith("error: ") and words in errors and errors.count("\n") == 1


@pytest.mark.slow
def test_sequence_operators_are_compared_with_steps_and_attention(tmp_path):
    sizes = ["--operators", "mlstm", "--lengths", 8, 16, 32, "--batch", 1, "--heads", 1, "--dim", 4]
    rows = measured("sequences", tmp_path / "sequences.json", *sizes, "--recurrent_up_to", 16)["rows"]
    assert [row["length"] for row in rows] == [8, 16, 32]
    for before, row in zip([None, *rows], rows, strict=False):
        ours = row["chunkwise"]
        assert ("speedup" in row) == ("recurrent" in row) == (row["length"] <= 16) and "attention_over_operator" in row
        if before:
            growth = ours["memory_bytes"] / before["chunkwise"]["memory_bytes"] / 2
            assert row["bytes_growth"] == pytest.approx(growth) and row["seconds_growth"] > 0


@pytest.mark.slow
def test_the_operator_is_compared_with_the_scan(tmp_path):
    sizes = ["--grids", 2, "--batch", 1, "--heads", 1, "--dim", 4]
    rows = measured("operator", tmp_path / "operator.json", *sizes)["rows"]
    assert {row["structure"] for row in rows} == {"general", "shared_incoming", "d_mode"}
    for row in rows:
        assert row["speedup_over_scan"] == row["scan"]["median_seconds"] / row["ours"]["median_seconds"]


@pytest.mark.slow
def test_chunks_are_compared_with_all_at_once(tmp_path):
    (row,) = measured("chunks", tmp_path / "x.json", "--structures", "shared_incoming", "--cases", "3x2")["rows"]
    assert (row["structure"], row["grid"], row["images"], row["chunks"]) == ("shared_incoming", 3, 2, 1)
    assert row["speedup"] == row["at_once"]["median_seconds"] / row["chunked"]["median_seconds"]


@pytest.mark.slow
def test_steps_are_compared_with_those_of_another_checkout(tmp_path):
    small = ["--experiments", "reduced/vit", "--overrides", "debug=smoke", "model.dim=16"]
    (row,) = measured("steps", tmp_path / "steps.json", *small, "--against", ROOT)["rows"]
    assert row["speedup"] == row["before"]["median_seconds"] / row["here"]["median_seconds"]
    assert len(row["before_commit"]) == 40


@pytest.mark.slow
def test_other_models_are_timed_beside_plstm_and_vit(tmp_path):
    options = ["--groups", "reduced", "--models", "efficientnet", "--batch", 1, "--grid", 4]
    row, *operators = measured("baselines", tmp_path / "baselines.json", *options)["rows"]
    assert (row["group"], row["images"]) == ("reduced", 16) and "efficientnet_over_plstm" in row
    expected = row["efficientnet"]["median_seconds"] / row["vit"]["median_seconds"]
    assert row["efficientnet_over_vit"] == expected
    assert [(found["operator"], found["grid"]) for found in operators] == [("mamba2d", 4), ("ss2d", 4), ("mlstm", 4)]
    assert all(found["memory_bytes"] > found["temporary_bytes"] > 0 for found in operators)
    assert all(found["memory_bytes_an_image"] == found["memory_bytes"] for found in operators)


@pytest.mark.slow
def test_every_form_is_timed(tmp_path):
    rows = measured("tune", tmp_path / "tune.json", "--grids", 3, "--batches", 1)["rows"]
    assert [(row["structure"], set(row["forms"])) for row in rows] == [
        (structure, {*forms, "chunkwise"}) for structure, forms in FORMS.items()
    ]
    for row in rows:
        times = {name: form["median_seconds"] for name, form in row["forms"].items()}
        assert row["fastest"] == min(times, key=times.get)


@pytest.mark.slow
def test_both_models_are_timed_and_their_ratio_written(tmp_path):
    record = measured("scaling", tmp_path / "scaling.json", "--sizes", 16, 32, "--batch", 1)
    assert [row["tokens"] for row in record["rows"]] == [1, 4]
    assert record["summary"].keys() == {"pLSTM", "ViT", "pLSTM_is_faster_from_pixels"}
    for row in record["rows"]:
        assert row["ratio"] == row["pLSTM"]["median_seconds"] / row["ViT"]["median_seconds"]
        assert min(row[name]["flops_per_second"] for name in ("pLSTM", "ViT")) > 0


@pytest.mark.slow
def test_epochs_of_each_graph_model_are_timed(tmp_path):
    options = ["--sets", "TOY", "--models", "gin", "gcn"]
    environment = os.environ | {"PLSTM_DATA": str(ROOT / "tests/data")}
    rows = measured("graphs", tmp_path / "graphs.json", *options, environment=environment)["rows"]
    assert [(row["set"], row["model"], row["steps"]) for row in rows] == [("TOY", "gin", 1), ("TOY", "gcn", 1)]
    assert min(row["compile_seconds"] for row in rows) > 0


def test_photographs_have_the_size_of_imagenet_s():
    for number in range(3):
        content = models.make_photograph(number)
        assert decoding.decode(content).size == (500, 375)
        assert 70_000 < len(content) < 105_000


def test_every_recipe_is_measured_with_every_decoder(tmp_path):
    rows = measured("data", tmp_path / "data.json", "--images", 1)["rows"]
    decoders = {"pillow"} | ({"simplejpeg"} if decoding.simplejpeg else set())
    expected = {(recipe, decoder) for recipe in ("decoding alone", *RECIPES) for decoder in decoders}
    assert {(row["recipe"], row["decoder"]) for row in rows} == expected
    assert all(row["views_per_second"] == row["rates"][0] > 0 for row in rows)


def row_of_size(size: int, plstm: float, vit: float) -> dict:
    parts = {name: {"median_seconds": seconds} for name, seconds in (("pLSTM", plstm), ("ViT", vit))}
    return {"size": size, "tokens": (size // 16) ** 2, "ratio": plstm / vit, **parts}


def test_exponents_and_the_crossing():
    rows = [row_of_size(16, 2.0, 1.0), row_of_size(32, 8.0, 16.0), row_of_size(64, 32.0, 256.0)]  # linear, quadratic
    summary = models.summarise_scaling(rows)
    assert summary["pLSTM"] == {"exponent": pytest.approx(1), "a_token": pytest.approx(1)}
    assert summary["ViT"] == {"exponent": pytest.approx(2), "a_token": pytest.approx(16)}
    assert summary["pLSTM_is_faster_from_pixels"] == pytest.approx(16 * 2**0.5)
    assert models.crossing([*rows, row_of_size(128, 2, 1)]) is None  # not to the end
    assert models.crossing(rows[1:]) == 32


@pytest.mark.slow
def test_pr_lstm_is_compared_with_lstm(tmp_path):
    sizes = ["--lengths", 9, 16, "--dims", 4, "--batch", 2, "--models", "rnn", "pr_rnn"]
    rows = measured("languages", tmp_path / "languages.json", *sizes)["rows"]
    assert [row.get("steps") for row in rows] == [9, 16, None, None]
    assert [row.get("model") for row in rows] == [None, None, "rnn", "pr_rnn"]
    # The leaves, two in each composition up the tree and down the blocks, the readout; and one a step.
    assert [row["pr_lstm"]["products_in_sequence"] for row in rows[:2]] == [1 + 2 * (3 + 3) + 1, 1 + 2 * (4 + 4) + 1]
    assert [row["lstm"]["products_in_sequence"] for row in rows[:2]] == [1 + 9 + 1, 1 + 16 + 1]
    assert all(row["ratio"] > 0 for row in rows[:2]) and rows[3]["steps_per_second"] > 0


@pytest.mark.slow
def test_the_parts_of_a_run_are_timed(tmp_path):
    (row,) = measured("start", tmp_path / "start.json")["rows"]
    (run,) = row["runs"]
    parts = [seconds for name, seconds in run.items() if name.startswith("to ")]
    assert len(parts) == 7 and min(parts) > 0 and sum(parts) == pytest.approx(run["seconds"])
    assert sum(parts[:5]) == pytest.approx(run["before the first step"])
