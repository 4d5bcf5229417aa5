"""Models of formal languages: golden logits of sequential references, padding that changes nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.models import LanguageConfig, build_model
from plstm.nn.recurrent import Rows, TapeRNN
from tests.drawing import fill, sines

SIZES = {"vocabulary": 2, "classes": 2}
ENCODER = ["attention.query", "attention.key", "attention.value", "attention.out", "attention_norm", "up", "down"]
ENCODER += ["mlp_norm"]
# Layers in the order in which the golden values count their parameters.
ORDER = {
    "pr_lstm": ["leaves", "composition", "refinements"],
    "pr_rnn": ["leaf", "composition", "refinements"],
    "rnn": ["input", "recurrent"],
    "lstm": ["gates"],
    "stack_rnn": ["input", "recurrent", "push", "action"],
    "tape_rnn": ["input", "recurrent", "write", "action"],
    "transformer": ["embedding", "layers"],
}
# Of float64 references: logits at the last step for tokens 1 0 1 1 0 1 and a blank, and for token 1 and a blank.
GOLDEN = [
    ("pr_lstm", dict(refinements=0), [0.03457765, 0.39506049], [0.01608159, 0.50237963]),
    ("pr_lstm", dict(refinements=1), [-0.36413914, -0.25376049], [-0.37384509, -0.23495400]),
    ("pr_lstm", dict(refinements=2), [0.48012461, -0.23060972], [0.47783947, -0.23033472]),
    ("pr_rnn", dict(refinements=0), [0.47167807, -0.39847328], [0.48578553, -0.40086289]),
    ("pr_rnn", dict(refinements=1), [-0.30678636, 0.17494474], [-0.29321264, 0.12163401]),
    ("pr_rnn", dict(refinements=2), [0.33994629, -0.19588000], [0.37055301, -0.15867385]),
    ("rnn", {}, [0.11435355, 0.21398511], [0.10989433, 0.20674834]),
    ("lstm", {}, [-0.11069772, 0.41404708], [-0.19282917, 0.54239405]),
    ("stack_rnn", dict(memory_width=2, memory_cells=4), [-0.03904195, 0.38369851], [-0.01744968, 0.36862670]),
    (
        "tape_rnn",
        dict(memory_width=2, memory_cells=5, write_hidden=3),
        [0.08077277, -0.36117118],
        [0.08447193, -0.38617448],
    ),
    ("transformer", dict(dim=8, depth=2, heads=2, mlp_ratio=2), [1.53137844, 0.08459699], [1.20705714, -0.03660251]),
]
IDS = [f"{kind}-{options.get('refinements', '')}" for kind, options, *_ in GOLDEN]


def layers_of(module):
    """The modules with parameters, lists and encoder layers taken apart."""
    if isinstance(module, nnx.List):
        return [found for part in module for found in layers_of(part)]
    if hasattr(module, "attention_norm"):
        names = [name.split(".") for name in ENCODER]
        return [getattr(getattr(module, first), rest[0]) if rest else getattr(module, first) for first, *rest in names]
    return [module]


def by_formula(kind: str, **options):
    """A model of `sines`, and one more in the scales of norms."""
    config = LanguageConfig(kind=kind, **{"dim": 4, **options})
    model = nnx.eval_shape(lambda: build_model(config, 0, SIZES))
    modules = [found for name in ORDER[kind] for found in layers_of(getattr(model.layer, name))] + [model.head]
    named = [(name, getattr(m, name, None)) for m in modules for name in ("kernel", "scale", "bias")]
    named = [(name, leaf) for name, leaf in named if leaf is not None and leaf.get_value() is not None]
    for (name, leaf), values in zip(named, sines(*(leaf.shape for _, leaf in named)), strict=True):
        leaf.set_value(values + (name == "scale"))
    assert sum(leaf.size for _, leaf in named) == sum(
        leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))
    )
    return model


def rows_of(tokens: list[list[int]], blanks: int = 1, padding: int = 0) -> Rows:
    steps = max(map(len, tokens)) + blanks + padding
    padded = np.array([row + [2] * (steps - len(row)) for row in tokens])
    lengths = np.array([len(row) for row in tokens])
    return Rows(jnp.asarray(padded), jnp.asarray(lengths), jnp.asarray(lengths + blanks))


@pytest.mark.parametrize(("kind", "options", "long", "short"), GOLDEN, ids=IDS)
def test_golden_logits_in_one_batch_of_two_lengths(x64, kind, options, long, short):
    """Each row has its own length, so its own padding."""
    model = by_formula(kind, **options)
    found = nnx.jit(model, static_argnums=1)(rows_of([[1, 0, 1, 1, 0, 1], [1]]), 1)[:, 0]
    # Flax takes the softmax of attention in float32.
    np.testing.assert_allclose(found, [long, short], atol=1e-7 if kind == "transformer" else 1e-8, rtol=0)


def test_golden_logits_at_every_step_of_the_scan(x64):
    """As answers of a row without tokens, whose steps have the tokens of the golden row."""
    model, tokens = by_formula("pr_lstm", refinements=1), [1, 0, 1, 1, 0, 1, 2]
    wanted = [-0.41850864, -0.38169259, -0.36939904, -0.36882417, -0.36794727, -0.36545981, -0.36413914]
    rows = Rows(jnp.array([tokens + [2] * 3]), jnp.array([0]), jnp.array([7]))
    np.testing.assert_allclose(nnx.jit(model, static_argnums=1)(rows, 7)[0, :, 0], wanted, atol=1e-8, rtol=0)


@pytest.mark.parametrize("kind", ORDER)
def test_what_follows_the_last_answer_changes_nothing(kind):
    """Neither another token there, bit by bit, nor more padding, to rounding; nor other rows."""
    more_cells_than_steps = {"memory_cells": 20} if kind in ("stack_rnn", "tape_rnn") else {}
    model = by_formula(kind, **GOLDEN_OPTIONS[kind] | more_cells_than_steps)
    rows = rows_of([[1, 0, 1], [0, 1]], blanks=3, padding=2)
    answer = nnx.jit(model, static_argnums=1)
    found = np.asarray(answer(rows, 3))
    after = jnp.arange(rows.tokens.shape[1]) >= rows.steps[:, None]
    other = rows._replace(tokens=jnp.where(after, 0, rows.tokens))
    np.testing.assert_array_equal(found, answer(other, 3))
    alone = rows_of([[0, 1]], blanks=3)
    np.testing.assert_allclose(found[1:], answer(alone, 3), rtol=1e-5, atol=1e-6)
    assert np.abs(np.diff(found, axis=1)).max() > 1e-4, "answers differ from step to step"


GOLDEN_OPTIONS = {kind: options for kind, options, *_ in GOLDEN}


class RolledTape(TapeRNN):
    """The tape as such, its cells moved one by one."""

    def memory(self, rows, dtype):
        def change(h, cell, tape):
            value = self.write[2](jax.nn.relu(self.write[1](jax.nn.relu(self.write[0](h)))))
            tape = tape.at[:, 0].set(value)
            jump = lambda sign: jax.vmap(lambda own, length: jnp.roll(own, sign * length, 0))(tape, rows.length)  # noqa: E731
            moved = [tape, jnp.roll(tape, -1, 1), jnp.roll(tape, 1, 1), jump(-1), jump(1)]
            tape = jnp.einsum("ra,arcw->rcw", jax.nn.softmax(self.action(h)), jnp.stack(moved))
            return tape[:, 0], tape

        tape = jnp.zeros((len(rows.tokens), self.memory_cells, self.memory_width), dtype)
        return (tape[:, 0], tape), change


@pytest.mark.parametrize("cells", [1, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 8))])
def test_the_tape_s_transform_moves_it_as_rolling_does(x64, cells):
    rows = rows_of([[1, 0, 1, 1, 0, 1, 0], [1]], blanks=4)

    def answers(kind, state):
        layer = kind(3, 6, 3, cells, 5, nnx.Rngs(0))
        nnx.update(layer, state)
        return jnp.sin(layer(rows, 4)).sum()

    start = nnx.state(fill(lambda: TapeRNN(3, 6, 3, cells, 5, nnx.Rngs(0))))
    start = jax.tree.map(lambda x: x.astype(np.float64), start)
    found, wanted = (jax.jit(jax.value_and_grad(functools.partial(answers, k)))(start) for k in (TapeRNN, RolledTape))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11), found, wanted)


def test_the_start_is_that_of_the_released_code():
    model = nnx.jit(lambda: build_model(LanguageConfig(kind="transformer", dim=64), 0, SIZES))()
    for kernel, std in (
        (model.layer.layers[0].up.kernel, 1 / 8),
        (model.layer.layers[0].attention.query.kernel, 1 / 8),
        (model.layer.layers[0].attention.out.kernel, 1 / 8),
        (model.layer.layers[0].down.kernel, 1 / 16),
    ):
        assert np.abs(kernel[...]).max() <= 2 * std + 1e-6
        np.testing.assert_allclose(np.std(kernel[...]), 0.88 * std, rtol=0.03)  # of the normal cut at two deviations
    lstm = build_model(LanguageConfig(kind="lstm", dim=64), 0, SIZES)
    assert not lstm.layer.gates.bias[...].any()


def test_dropout_is_drawn_in_training_passes_only():
    model = by_formula("transformer", **GOLDEN_OPTIONS["transformer"])
    rows = rows_of([[1, 0, 1]])
    answer = nnx.jit(lambda key: model(rows, 1, key=key))
    found = [answer(key) for key in (None, None, jax.random.key(0), jax.random.key(0), jax.random.key(1))]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[2], found[3])
    assert not np.allclose(found[0], found[2]) and not np.allclose(found[2], found[4])
