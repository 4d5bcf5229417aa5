"""The benchmark harness, and its subjects at their smallest."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from data import decoding
from data.augment.recipes import RECIPES
from plstm.ops.grid.chunkwise import chunkwise
from plstm.runs.compose import compose_experiment
from plstm.training.flops import forward_flops
from scripts import benchmark
from scripts.draw_blocks import multiply_adds
from tests.commands import ROOT, call, call_here
from tests.training.test_flops import product_flops


def measured(out: Path, subject: str, *arguments: object) -> list[dict]:
    """The rows of a subject measured with one repeat."""
    printed = call("scripts/benchmark.py", subject, *arguments, "--repeats", 1, "--out", out)
    record = json.loads(out.read_text())
    assert len(printed.splitlines()) == len(record["rows"]) + 1 and f"Written to {out}" in printed
    assert record["command"].startswith(f"python scripts/benchmark.py {subject}") and "commit" in record
    assert record["hardware"]["platform"] == "cpu"
    assert all(row["median_seconds"] == row["seconds"][0] > 0 for row in record["rows"])
    return record["rows"]


def test_forms_take_turns_after_a_round_to_warm_up_and_ratios_are_within_rounds():
    calls = []
    times = {"slow": iter([9.0, 2.0, 30.0, 4.0]), "fast": iter([9.0, 1.0, 10.0, 4.0])}
    forms = {name: (lambda name=name: calls.append(name) or next(times[name])) for name in times}
    found = benchmark.compare(forms, 3)
    assert calls == ["slow", "fast"] * 4
    assert found["slow"] == {"median_seconds": 4.0, "over_first": 1.0, "seconds": [2.0, 30.0, 4.0]}
    assert found["fast"]["over_first"] == 0.5


def test_a_form_that_fails_leaves_its_error_and_the_others_are_timed():
    def refuses(x):
        raise ValueError("takes grids of at most 64 columns\nof any height")

    forms = {"fused": (refuses, (1.0,)), "sine": (jnp.sin, (1.0,)), "zero": (jnp.zeros_like, (1.0,))}
    rows = [*benchmark.compare_operators(forms, ["forward", "both"], 1)]
    assert [(row["form"], row["passes"]) for row in rows] == [(f, p) for p in ("forward", "both") for f in forms]
    assert [row["error"] for row in rows if row["form"] == "fused"] == ["takes grids of at most 64 columns"] * 2
    assert all(row["median_seconds"] > 0 and row["memory_bytes"] > 0 for row in rows if row["form"] != "fused")
    assert not [*benchmark.compare_operators({"fused": forms["fused"]}, ["both"], 1)][1:]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: subject"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["operator", "--grids", "0"], "'0' must be a whole number from 1"),
        (["steps", "arrow/vit", "--against=/"], "--against /: no checkout"),
        (["data", "--images=1", "--repeats=1", "--out=/proc/x.json"], "/proc/x.json: No such file"),
    ],
)
def test_bad_input_is_named_in_one_line(arguments, words):
    status, _, errors = call_here(benchmark.main, *arguments)  # the last prints its rows first
    assert status == 2 and errors.startswith("error: ") and words in errors and errors.count("\n") == 1


@pytest.mark.parametrize("block", [1, 2, 4])
def test_the_multiply_adds_that_are_drawn_are_those_of_the_program(block):
    inputs = benchmark.draw_operator_inputs("general", grid=8, batch=1, dim=16)
    program = jax.make_jaxpr(partial(chunkwise, structure="general", block=block, chunks=1))(*inputs)
    assert product_flops(program.jaxpr) == 2 * 8 * 8 * benchmark.HEADS * 4 * multiply_adds(block, 16)


@pytest.mark.slow
def test_the_operator_is_timed_in_every_form(tmp_path):
    rows = measured(tmp_path / "x.json", "operator", "--grids", 2, "--batch", 1, "--blocks", 2)
    forms = {structure: set() for structure in benchmark.STRUCTURES}
    for row in rows:
        forms[row["structure"]].add(row["form"])
    for structure, names in forms.items():
        assert names == {"auto", "chunkwise", "recurrent", "at once", "block 2", *benchmark.FORMS[structure]}


@pytest.mark.slow
def test_sequence_operators_are_compared_with_steps_and_attention(tmp_path):
    arguments = ["--lengths", 8, 16, "--batch", 1, "--recurrent_up_to", 8]
    rows = measured(tmp_path / "x.json", "sequences", *arguments)
    found = {(row["operator"], row["length"], row["form"]) for row in rows}
    assert {name for name, *_ in found} == set(benchmark.SEQUENCES)
    assert {("mlstm", 8, "recurrent"), ("mlstm", 16, "chunkwise"), ("slstm", 16, "attention")} < found
    assert ("mlstm", 16, "recurrent") not in found


@pytest.mark.slow
def test_training_steps_are_compared_with_other_experiments_and_another_checkout(tmp_path):
    small = "debug=smoke model.dim=16 model.heads=2 model.depth=2"
    cases = [f"arrow/plstm {small}", f"arrow/vit {small}"]
    rows = measured(tmp_path / "x.json", "steps", *cases, "--against", ROOT)
    assert [row["experiment"] for row in rows] == [cases[0], cases[0], cases[1], cases[1]]
    assert rows[0]["commit"] == rows[2]["commit"] == "here" and len(rows[1]["commit"]) == 40
    assert all(row["memory_bytes"] > 0 and row["compile_seconds"] > 0 for row in rows)


@pytest.mark.slow
def test_a_step_alone_is_timed_and_its_operations_are_counted(tmp_path):
    small = ["debug=smoke", "model.dim=16", "model.heads=2", "optim.batch_size=4"]
    (row,) = measured(tmp_path / "x.json", "step", "arrow/vit", *small)
    assert row["examples_per_second"] == pytest.approx(4 / row["median_seconds"])
    operations = 3 * 4 * forward_flops(compose_experiment("arrow/vit", *small).model)
    assert row["teraflops"] == pytest.approx(operations / row["median_seconds"] * 1e-12)
    assert row["peak_bytes"] is None and row["memory_bytes"] > 0  # CPUs do not say


def test_photographs_have_the_size_of_imagenet_s():
    for number in range(3):
        content = benchmark.make_photograph(number)
        assert decoding.decode(content).size == (500, 375)
        assert 70_000 < len(content) < 105_000


def test_every_recipe_is_measured_with_every_decoder(tmp_path):
    rows = measured(tmp_path / "x.json", "data", "--images", 1)
    decoders = {"pillow"} | ({"simplejpeg"} if decoding.simplejpeg else set())
    assert {(row["recipe"], row["decoder"]) for row in rows} == {(name, one) for name in RECIPES for one in decoders}
