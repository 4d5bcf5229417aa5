"""Scripts of code models: a text is continued, functions are finished and compiled, and never run."""

import json

import pytest

import plstm
from data.code import as_tokens
from plstm.models.text import SIZES
from plstm.runs.compose import to_config
from plstm.runs.weights import trained_info
from plstm.tasks.code import CodeTask
from scripts import complete, probe_code
from scripts.probe_code import is_correct, pass_at_k, prompts
from tests.commands import call_here, refused

# samples, correct, k -> value
PASS_AT_K = [
    (64, 0, 64, 0.0),
    (64, 1, 1, 0.015625),
    (64, 1, 2, 0.03125),
    (64, 1, 64, 1.0),
    (64, 5, 8, 0.4990084611316764),
    (64, 32, 2, 0.753968253968254),
    (64, 63, 1, 0.984375),
    (10, 3, 5, 0.9166666666666666),
    (5, 5, 5, 1.0),
    (200, 13, 10, 0.4975511147306061),
]


def test_pass_at_k_is_that_of_humaneval():
    for samples, correct, k, value in PASS_AT_K:
        assert pass_at_k(samples, correct, k) == pytest.approx(value, abs=1e-15)


HEAD = 'def area(a):\n    """Of a square."""\n'


@pytest.mark.parametrize(
    ("drawn", "correct"),
    [
        ("    return a\n\nx = (", True),
        ("    return a * a\n    b = (", True),
        ("    raise SystemExit(1)\n", True),
        ("    return (a\n", False),
        ("    # nothing\nx = 1\n", False),
        ("return a\n", False),
        ("    return a", False),  # no whole line
        ("    x = '\0'\n", False),
        ("    break\n", False),  # which only the compiler refuses
    ],
)
def test_a_function_has_to_compile_and_do_something(drawn, correct):
    assert is_correct(HEAD, drawn.encode()) is correct


def test_prompts_are_heads_and_docstrings():
    ends_of_text_alone = "# \f\x0b\u2028\n"
    text = ends_of_text_alone + HEAD + "    return a\n\n"
    text += "class A:\n    def f(self):\n        '''d'''\n        pass\n\ndef g():\n    pass\n"
    empty = 'def h():\n    """Nothing more."""\n'
    corpus = {"test": {"a": as_tokens([text.encode(), b"x = (", empty.encode()])}}
    assert [*prompts(corpus)] == [HEAD]


@pytest.fixture(scope="module")
def weights(tmp_path_factory, composed):
    """Of a run on the toy that has not begun to learn."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    small = (
        "model=code/transformer",
        "model.blocks=[attention]",
        "model.mlp_width=64",
        "model.dim=8",
        "data.context=32",
    )
    config = to_config(composed("experiment=code/language", "debug=smoke", *small))
    model = CodeTask(config).build_model(0)
    model.info = trained_info(model, config, SIZES, (), "0123456789ab")
    plstm.save(model, path)
    return path


def test_a_text_is_continued(weights):
    code, out, err = call_here(complete.main, str(weights), "def area(self", "--bytes", "4")
    assert (code, err) == (0, "") and out.startswith("def area(self") and len(out) > len("def area(self\n")
    refusal = refused(complete.main, weights, "a", "--temperature", "-1")
    assert "model.safetensors: temperature=-1.0: must be at least 0" in refusal


def test_functions_are_finished_and_counted(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(probe_code, "machine_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(probe_code, "sample", lambda model, start, count, rows, **_: [b"    return 1\n", b"    ("])
    code, out, err = call_here(probe_code.main, str(weights), "--prompts", "3", "--samples", "2")
    assert (code, out, err) == (0, "pass@1 0.500  any 1.000\n", "")
    (path,) = (tmp_path / "results/probes").iterdir()
    found = json.loads(path.read_text())
    assert path.stem == "custom-attention-s43-0123456789ab" and found["correct"] == [1, 1, 1]
