"""The task of source code: its batches and windows, which bytes are scored and how, what the probes ask."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.code import SEPARATOR, toy
from data.structure import mark
from plstm.errors import UserError
from plstm.runs.compose import to_config
from plstm.tasks.code import CodeSplit, CodeTask
from plstm.training.steps import evaluate

from .batches import assert_batches_depend_on_seed_and_step


@pytest.fixture(scope="module")
def make(composed):
    def make(*overrides):
        return CodeTask(to_config(composed("experiment=code/language", "debug=smoke", *overrides)))

    return make


def test_batches_depend_on_seed_and_step_alone(make):
    task, other, again = assert_batches_depend_on_seed_and_step(make, pinned="d0d138e3")
    assert again["tokens"].shape == (32, 65) and again["tokens"].dtype == np.uint16
    text = "".join(map(chr, task.text))
    assert all("".join(map(chr, row)) in text for row in again["tokens"])
    for each in (task, other):
        assert all(each.split(name).groups is each.corpus[name] for name in each.splits)


def of_text(*texts):
    return np.concatenate([[SEPARATOR, *text.encode()] for text in texts]).astype(np.uint16)


def test_windows_score_each_byte_but_the_first_once():
    tokens = np.arange(10, dtype=np.uint16)
    windows = CodeSplit({"a": tokens, "b": tokens[:3]}, 4, 100).windows
    assert [row[row < SEPARATOR].tolist() for row in windows["tokens"]] == [
        [0, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
        [8, 9],
        [0, 1, 2],
    ]
    assert windows["group"].tolist() == [0, 0, 0, 1]
    assert len(CodeSplit({"a": np.arange(100)}, 4, 3)) == 3


class Fixed:
    """Gives each byte a probability that depends on the byte before it and its place alone."""

    def __call__(self, tokens, key=None):
        value = jnp.sin(tokens[..., None] * 0.37 + jnp.arange(256) * 1.3 + jnp.arange(tokens.shape[-1])[:, None])
        return 3 * value


def test_metrics_are_those_by_hand(make):
    task = make("data.context=128")
    split = task.split("test")
    found = evaluate(jax.jit(lambda _, batch: task.metrics(Fixed(), batch)), None, split, 32)
    tokens = split.windows["tokens"].astype(int)
    logits = np.asarray(Fixed()(jnp.asarray(tokens[:, :-1])), np.float64)
    bits = np.log2(np.exp(logits).sum(-1, keepdims=True)) - logits / math.log(2)
    targets = tokens[:, 1:]
    own = np.take_along_axis(bits, np.minimum(targets, 255)[..., None], axis=-1)[..., 0]
    scored = targets < 256
    assert (~scored).sum() > 0 and len(split) == found["count"] == 16
    assert found["bits"] == pytest.approx(own[scored].mean(), rel=1e-5)
    assert found["loss"] == pytest.approx(found["bits"] * math.log(2), rel=1e-6)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == targets)[scored].mean())
    for number, name in enumerate(split.lengths):
        rows = split.windows["group"] == number
        assert found[f"bits@{name}"] == pytest.approx(own[rows][scored[rows]].mean(), rel=1e-5)
    for part in range(4):
        place = np.s_[:, 32 * part : 32 * part + 32]
        assert found[f"bits_part{part + 1}"] == pytest.approx(own[place][scored[place]].mean(), rel=1e-5)
    for n in (1, 2, 3):
        of_names = split.windows["occurrence"] == n
        assert found[f"bits_name{n}"] == pytest.approx(own[of_names].mean(), rel=1e-5)
    assert {"bracket1", "bracket2", "indent"} < found.keys()
    assert split.summarise({"bits": 1.0, "indent": math.nan}) == {"bits": 1.0}  # of what no window asks


def test_a_training_loss_leaves_out_separators(make):
    task = make()
    tokens = of_text("ab", "c", "de")[None]
    loss, metrics = task.loss(
        lambda tokens, key: jnp.zeros((*tokens.shape, 256)), {"tokens": tokens}, jax.random.key(0)
    )
    assert float(loss) == pytest.approx(math.log(256)) and metrics["loss"][1] == 5


class Copying:
    """Says that the next byte is the given one."""

    def __init__(self, following):
        self.following = following

    def __call__(self, tokens, key=None):
        return jnp.broadcast_to(10 * jax.nn.one_hot(self.following, 256), (*tokens.shape, 256))


CODE = "def f(a_name, x):\n    if x[0]:\n        g(a_name)\n    y = a_name\nreturn"


def test_what_is_asked_of_names_brackets_and_indentation():
    occurrence, depth, indent = (["-", *map(str, row)] for row in mark(CODE.encode()))
    assert "".join(occurrence).replace("-", "0") == "".join(
        "0" * len(part) if part[:1] != "a" else str(n) * 6
        for part, n in (("def f(", 0), ("a_name", 1), (", x):\n    if x[0]:\n        g(", 0), ("a_name", 2))
    ) + "0" * len(")\n    y = ") + "3" * 6 + "0" * len("\nreturn")
    assert {place: depth[place] for place, letter in enumerate(CODE) if letter in ")]"} == {15: "1", 28: "1", 47: "1"}
    assert {place: value for place, value in enumerate(indent) if value not in "-0"} == {53: "5", 64: "1"}
    assert mark(b"([{x}])").depth.tolist() == [0, 0, 0, 2, 2, 1] and not mark(b"(x]))").depth.any()
    assert not mark(b"    x\n\n    # y\n\0\ny").indent[:-1].any()
    assert not mark(b"f:\n    (x\n\0y)\nz").indent.any() and not mark(b"(\0)").depth.any()  # of another file
    assert mark(b" 0xabc abc", b"9").occurrence.tolist() == [0] * 6 + [1] * 3  # no name within a number
    assert mark(b"abcd abcd").occurrence.tolist() == [1, 1, 1, 0, 2, 2, 2, 2]
    assert mark(b"abcd abcd", b"_").occurrence.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]  # a name's end is none


def test_a_line_counts_where_all_of_its_indentation_is_predicted(make):
    task = make("data.context=69")
    split = CodeSplit({"a": np.array([*CODE.encode()], np.uint16)}, 69, 1)
    measure = jax.jit(lambda following, batch: task.metrics(Copying(following), batch))
    cases = {None: (1, 1), 49: (0.5, 1), 53: (0.5, 1), 64: (0.5, 1), 45: (1, 1), 15: (1, 2 / 3)}
    assert len(CODE) == 70 and CODE[48:54] == "\n    y"
    for place, expected in cases.items():
        following = np.array([*CODE.encode()][1:])
        if place:
            following[place - 1] = ord({" ": "x", ")": "]"}.get(CODE[place], " "))
        found = evaluate(measure, jnp.asarray(following), split, 1)
        assert (found["indent"], found["bracket1"]) == pytest.approx(expected), place


def test_text_that_does_not_fit_is_named(make, tmp_path):
    with pytest.raises(UserError, match=r"data.path=/x: only data.name=folder has it"):
        make("data.path=/x")
    for split, groups in toy().items():
        (tmp_path / split).mkdir()
        (tmp_path / split / "a").write_text("x" * 100 * len(groups))
    folder = ("data.name=folder", f"data.path={tmp_path}")
    with pytest.raises(UserError, match=r"data.context=200: must be under 101, the tokens to train on"):
        _ = make(*folder, "data.context=200").text
    with pytest.raises(UserError, match=r"data.digest=abc: data.path=.* has [0-9a-f]{12}; take the data"):
        _ = make(*folder, "data.digest=abc").corpus
