"""Students of attention: published values of window, branches and alignment, and what a student has of its teacher."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.models import SequenceConfig, build_model, named_variables
from plstm.nn.distillation import BRANCHES, Student, alignment_loss, student_inputs, window_attention
from tests.drawing import sines, wave

GOLDEN = json.loads(Path(__file__).with_suffix(".json").with_stem("distillation").read_text())
SIZES = {"vocabulary": 5, "classes": 5}
GATES = ("write", "forget", None, "mix")  # after the features, in the order in which parameters are numbered


def published(block):
    """The student with the published parameters."""
    student = Student(block, 8, 2, 3, 1, nnx.Rngs(0))
    *maps, q, k = sines(*[(8, 8)] * 4, *[(2, 4, 4)] * 2)
    student.qkv.kernel.set_value(jnp.concatenate(maps[:3], axis=1))
    student.out.kernel.set_value(maps[3])
    gates = [*sines(*[(8, 8)] * 4, *[(2, 4, 4)] * 2, *[(24, 2), (2,)] * 4)][6:]
    for number, name in enumerate(GATES):
        if layer := name and getattr(student.linear, name, None):
            layer.kernel.set_value(gates[2 * number])
            layer.bias.set_value(gates[2 * number + 1])
    if hasattr(student.linear, "q"):
        student.linear.q.weight.set_value(q)
        student.linear.k.weight.set_value(k)
    return student


def window_mask(length: int, window: int, sinks: int) -> jax.Array:
    """bool [T, T]: whether token i sees token j, one of the last `window` up to itself or of the first `sinks`."""
    i, j = jnp.indices((length, length))
    return (j <= i) & ((i - j < window) | (j < sinks))


def test_the_published_mask():
    case = GOLDEN["window_mask"]
    values = jnp.eye(case["T"])  # and scores of zero: each row of the result is that token's weights
    weights = window_attention(0 * values, 0 * values, values, case["window"], case["sinks"])
    np.testing.assert_array_equal(weights > 0, np.array(case["mask"], bool))
    assert (weights > 0).sum(1).tolist() == case["visible_per_row"]


@pytest.mark.parametrize(("length", "window", "sinks"), [(11, 3, 4), (5, 9, 7)])
def test_blocks_see_what_the_mask_shows(x64, length, window, sinks):
    """Values and gradients."""

    def masked(q, k, v):
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 2
        weights = jax.nn.softmax(jnp.where(window_mask(length, window, sinks), scores, -jnp.inf))
        return jnp.einsum("bhqk,bhkd->bhqd", weights, v)

    def total(function, *parts):
        found = function(*parts)
        return (jnp.cos(jnp.arange(found.size)).reshape(found.shape) * found).sum(), found

    parts = jax.random.normal(jax.random.key(0), (3, 2, 2, length, 4), jnp.float64)
    banded = functools.partial(window_attention, window=window, sinks=sinks)
    ours, expected = (
        jax.jit(jax.grad(functools.partial(total, function), (0, 1, 2), has_aux=True))(*parts)
        for function in (banded, masked)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-12), ours, expected)


@pytest.mark.parametrize("block", [block for block in BRANCHES if block in GOLDEN["student"]])
def test_published_students(x64, block):
    found = jax.jit(lambda x: published(block)(x))(wave(range(8)))
    np.testing.assert_allclose(found, GOLDEN["student"][block], atol=3e-8)


def test_published_alignment(x64):
    case = GOLDEN["alignment"]
    student = published("window")
    hidden, out = jax.jit(lambda x: (student.teacher(x), student.out(student.teacher(x))))(wave(range(8)))
    np.testing.assert_allclose(hidden, case["teacher"], atol=3e-8)
    np.testing.assert_allclose(out, GOLDEN["student"]["teacher"], atol=3e-8)
    pair = SimpleNamespace(hidden=lambda _: jnp.array(case["student"]), teacher=lambda _: jnp.array(case["teacher"]))
    np.testing.assert_allclose(7 * alignment_loss(pair, None), case["sum_over_tokens_of_squared_norm"], rtol=1e-7)


def test_linear_attention_weighs_all_tokens_by_their_features(x64):
    """By two loops over tokens."""
    branch = published("window_linear").linear
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 7, 4))
    found, q, k = jax.jit(lambda q, k, v: (branch(None, q, k, v), branch.q(q), branch.k(k)))(q, k, v)
    found, q, k, v = (np.asarray(part) for part in (found, q, k, v))
    for head in range(2):
        for t in range(7):
            weights = np.array([q[head, t] @ k[head, s] for s in range(t + 1)])
            np.testing.assert_allclose(found[head, t], weights @ v[head, : t + 1] / weights.sum(), rtol=1e-6)


@pytest.mark.parametrize("size", [200.0, 46.0], ids=["sums of 0", "sums near 1e-20"])
def test_features_that_do_not_meet_have_finite_values_and_gradients(size):
    branch = Student("window_linear", 8, 2, 3, 1, nnx.Rngs(0)).linear
    q, k = (jnp.broadcast_to(size * jnp.eye(4)[n], (2, 7, 4)) for n in (0, 1))
    v = jax.random.normal(jax.random.key(0), (2, 7, 4))
    grads = jax.grad(lambda q, k, v: jnp.square(branch(None, q, k, v)).sum(), argnums=(0, 1, 2))(q, k, v)
    for found in (branch(None, q, k, v), *grads):
        assert np.isfinite(found).all()


def models(block, window=64):
    """A teacher, and a student that has its parameters."""
    shape = {"dim": 16, "heads": 2, "mlp_width": 8}
    teacher = build_model(SequenceConfig(blocks=["attention", "gated_mlp"] * 2, **shape), 0, SIZES)
    config = SequenceConfig(blocks=[block, "gated_mlp"] * 2, window=window, **shape)
    student = build_model(config, 1, SIZES)
    nnx.update(student, nnx.state(teacher, nnx.Param))
    return teacher, student


def test_a_student_that_sees_all_and_has_no_branch_is_its_teacher():
    tokens = jnp.arange(20) ** 2 % 5
    teacher, student = models("window", window=20)
    _, narrow = models("window", window=4)
    expected, found, differs = jax.jit(lambda: (teacher(tokens), student(tokens), narrow(tokens)))()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(differs[:8], expected[:8], atol=1e-6)  # 4 sinks and a window of 4
    assert (jnp.abs(differs - expected)[9:] > 1e-6).any(1).all()


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("window_gdn", "window_gdn_negative", "window_linear")]


@pytest.mark.parametrize("block", ["window_mlstm", *SLOW])
def test_no_student_sees_later_tokens_and_all_but_its_branch_has_the_teacher_s_names(block):
    teacher, student = models(block, window=4)
    tokens = jnp.arange(30) ** 2 % 5
    logits = jax.jit(lambda tokens: student(tokens))(jnp.stack([tokens, tokens.at[21].set((tokens[21] + 1) % 5)]))
    np.testing.assert_allclose(logits[0, :21], logits[1, :21], atol=1e-6)
    assert (jnp.abs(logits[0, 26:] - logits[1, 26:]).max(-1) > 1e-6).all()  # beyond the window
    new = named_variables(nnx.state(student, nnx.Param)).keys() - named_variables(nnx.state(teacher, nnx.Param)).keys()
    assert new and all(name.split(".")[2] == "linear" for name in new)


def test_a_student_learns_on_its_teacher_s_inputs():
    teacher, student = models("window_mlstm", window=4)
    x = student.embedding[...][jnp.arange(20) ** 2 % 5]

    @jax.jit
    def inputs(x):
        first = teacher.norms[0](x)
        after = x + teacher.layers[0](first)
        after = after + teacher.layers[1](teacher.norms[1](after))
        walks = (student_inputs(student.norms, student.layers, x, as_teacher) for as_teacher in (True, False))
        return [first, teacher.norms[2](after)], *([h for _, h in walk] for walk in walks)

    expected, taught, own = inputs(x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), taught, expected)
    assert (taught[0] == own[0]).all() and (jnp.abs(taught[1] - own[1]) > 1e-4).any()
