"""Prefix states: the scan and the single prefix against the fold that defines them, for compositions that are not
associative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.recursive import fold, prefix_state, prefix_states
from tests.ops.comparing import assert_close

ROWS, DIM, LONG = 3, 2, 70

pytestmark = pytest.mark.usefixtures("x64")


def compose(weights):
    """Of states {"h", "c"}: with a gradient to both sides."""

    def composition(left, right):
        mixed = jnp.concatenate([left["h"], right["h"]], axis=-1) @ weights
        c = jnp.tanh(mixed) + 0.7 * left["c"] - 0.4 * right["c"] * left["h"]
        return {"h": jnp.sin(2 * c), "c": c}

    return composition


def whole(left, right):
    """Of whole numbers, so that equal means equal."""
    return (3 * left - 5 * right + left * right + 7) % 10007


def draw(length: int, rows: tuple[int, ...] = (ROWS,)):
    rng = np.random.default_rng(length)
    leaves = {name: jnp.asarray(rng.normal(size=(length, *rows, DIM))) for name in "hc"}
    return leaves, jnp.asarray(rng.normal(size=(2 * DIM, DIM)))


def same_gradients(*losses, arguments):
    """Values and gradients of all functions of the same arguments agree."""
    assert_close(*(jax.jit(jax.value_and_grad(loss, (0, 1)))(*arguments) for loss in losses), 1e-12)


def test_the_fold_is_that_of_binary_blocks_largest_first():
    leaves = np.array(list("abcdefghijklm"), object)
    found = {n: str(fold(leaves[:n], lambda left, right: f"({left}{right})")) for n in (1, 3, 6, 7, 13)}
    assert found[1] == "a" and found[3] == "((ab)c)" and found[6] == "(((ab)(cd))(ef))"
    assert found[7] == "((((ab)(cd))(ef))g)"
    assert found[13] == "(((((ab)(cd))((ef)(gh)))((ij)(kl)))m)"


def test_every_prefix_has_the_state_of_its_fold():
    leaves = np.random.default_rng(0).integers(10007, size=(LONG, LONG))
    wanted = np.stack([fold(leaves[:n], whole) for n in range(1, LONG + 1)])
    np.testing.assert_array_equal(jax.jit(lambda x: prefix_states(x, whole))(leaves), wanted)
    own = jax.jit(lambda x, counts: prefix_state(x, counts, whole))(leaves, np.arange(1, LONG + 1))  # of row n, n + 1
    np.testing.assert_array_equal(own, np.diagonal(wanted))


@pytest.mark.parametrize("length", [1, 7])
def test_gradients_of_all_prefixes(length):
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(2, length, ROWS, DIM)))

    def each_alone(leaves, compose):
        states = [fold(jax.tree.map(lambda x, n=n: x[:n], leaves), compose) for n in range(1, length + 1)]
        return jax.tree.map(lambda *parts: jnp.stack(parts), *states)

    def loss(states_of):
        def of_form(leaves, weights):
            states = states_of(leaves, compose(weights))
            return jnp.sum(cotangent[0] * states["h"] + cotangent[1] * states["c"])

        return of_form

    same_gradients(loss(prefix_states), loss(each_alone), arguments=draw(length))


@pytest.mark.parametrize("counts", [[1, 1, 1], [7, 1, 6]])
def test_gradients_of_one_prefix_of_each_row(counts):
    leaves, weights = draw(max(counts))

    def single(leaves, weights):
        return jnp.sum(jnp.cos(prefix_state(leaves, jnp.array(counts), compose(weights))["h"]))

    def by_folds(leaves, weights):
        own = [jax.tree.map(lambda x, r=row, n=n: x[:n, r], leaves) for row, n in enumerate(counts)]
        return sum(jnp.sum(jnp.cos(fold(each, compose(weights))["h"])) for each in own)

    same_gradients(single, by_folds, arguments=(leaves, weights))


@pytest.mark.parametrize("known", [2, 4])
def test_leaves_from_a_table_give_the_same_states_and_gradients(known):
    """With 2 leaves several levels compose each pair once, with 4 one level."""
    rng = np.random.default_rng(2)
    index, counts = jnp.asarray(rng.integers(known, size=(13, ROWS))), jnp.array([12, 13, 5])

    def loss(by_table):
        def of_form(table, weights):
            leaves = table if by_table else jax.tree.map(lambda x: x[index], table)
            state = prefix_state(leaves, counts, compose(weights), index if by_table else None)
            return jnp.sum(jnp.cos(state["h"]) + state["c"])

        return of_form

    same_gradients(loss(True), loss(False), arguments=draw(known, ()))


def test_what_follows_a_prefix_changes_no_bit_of_it():
    leaves, weights = draw(13)
    other = jax.tree.map(lambda x: x.at[7:].set(1e3 * x[:6]), leaves)
    states = jax.jit(lambda x: prefix_states(x, compose(weights)))
    single = jax.jit(lambda x: prefix_state(x, jnp.full(ROWS, 7), compose(weights)))
    for name in "hc":
        np.testing.assert_array_equal(states(leaves)[name][:7], states(other)[name][:7])
        assert not np.array_equal(states(leaves)[name][7:], states(other)[name][7:])
        np.testing.assert_array_equal(single(leaves)[name], single(other)[name])
