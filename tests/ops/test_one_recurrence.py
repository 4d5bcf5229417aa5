"""Linear attention, mLSTM, Mamba-2, Gated DeltaNet and pLSTM are one recurrence with other gates, in float64:

S_t = decay_t (I - erase_t k_t k_t^T) S_(t-1) + write_t k_t v_t^T,  y_t = S_t^T q_t
"""

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.delta_rule import gated_delta_rule
from plstm.ops.linear_attention import linear_attention
from plstm.ops.mlstm import mlstm
from plstm.ops.sequence import SequenceGates, plstm1d
from plstm.ops.ssd import ssd

T, KEY, VALUE = 23, 4, 3


def recurrence(q, k, v, decay, erase, write):
    """The general form, token by token."""
    state = np.zeros((q.shape[-1], v.shape[-1]))
    found = []
    for t in range(len(q)):
        state = decay[t] * (state - erase[t] * np.outer(k[t], k[t] @ state)) + write[t] * np.outer(k[t], v[t])
        found.append(state.T @ q[t])
    return np.array(found)


@pytest.fixture
def drawn(x64):
    """q, k of norm 1, v, decay in (0, 1), write in (0, 2)."""
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, T, KEY))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return q, k, rng.normal(size=(T, VALUE)), rng.uniform(0.5, 1, T), rng.uniform(0.1, 2, T)


def assert_same(found, expected, tolerance=1e-12):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_linear_attention_is_attention_without_softmax(drawn):
    q, k, v, *_ = drawn
    plain = linear_attention(q, k, v, jnp.zeros(T), jnp.ones(T), chunk=8)
    assert_same(plain, np.tril(q @ k.T) @ v)


def test_nothing_is_erased_in_gated_linear_attention(drawn):
    q, k, v, decay, write = drawn
    assert_same(linear_attention(q, k, v, np.log(decay), write), recurrence(q, k, v, decay, 0 * write, write))


def test_mamba_2_ties_decay_and_write_by_the_step_size(drawn):
    """Each head of Mamba-2: keys b and queries c shared by the heads, decay exp(-dt a), write dt."""
    q, k, _, _, dt = drawn
    dt = np.stack([dt, 0.5 * dt], axis=1)
    a = np.array([0.3, 2.0])
    x = np.random.default_rng(2).normal(size=(T, 2, VALUE))
    found = ssd(x, dt, a, k, q)
    for head in range(2):
        assert_same(found[:, head], linear_attention(q, k, x[:, head], -dt[:, head] * a[head], dt[:, head]))


def test_mamba_2_is_an_mlstm_with_tied_gates_before_its_normaliser(drawn):
    """Input gate log dt, forget gate the logit of exp(-dt a). The mLSTM divides by max(|n . q|, 1), n its state of
    ones, and by a 1e-6 more that its stabiliser m scales."""
    q, k, v, _, dt = drawn
    a = 0.7
    log_f = -dt * a
    hidden = mlstm(q, k, v, np.log(dt), log_f - np.log1p(-np.exp(log_f)))
    ones = linear_attention(q, k, np.ones((T, 1)), log_f, dt)[:, 0] / KEY**0.5
    m = np.zeros(T + 1)
    for t in range(T):
        m[t + 1] = max(log_f[t] + m[t], np.log(dt[t]))
    size = np.maximum(np.abs(ones), 1) + 1e-6 * np.exp(m[1:])
    found = ssd(v[:, None], dt[:, None], np.array([a]), k, q)[:, 0]
    assert_same(hidden * size[:, None] * KEY**0.5, found, 1e-11)


def test_gated_delta_net_erases_what_it_writes_over(drawn):
    """Erase and write are one beta, and y is scaled by 1 / sqrt(d_k)."""
    q, k, v, decay, beta = drawn
    found = KEY**0.5 * gated_delta_rule(q, k, v, np.log(decay), beta)
    assert_same(found, recurrence(q, k, v, decay, beta, beta))


def test_gated_delta_net_without_erasing_is_gated_linear_attention(drawn):
    """With beta = 0 it would not write either. So: as beta goes to 0 while values grow by 1 / beta, and for keys at
    right angles, under which nothing is stored yet."""
    q, k, v, decay, write = drawn
    expected = linear_attention(q, k, v, np.log(decay), write)
    for beta in (1e-4, 1e-8):
        values = v * (write / beta)[:, None]
        found = KEY**0.5 * gated_delta_rule(q, k, values, np.log(decay), np.full(T, beta))
        assert_same(found, expected, 50 * beta)
    keys = np.eye(T)
    queries = np.random.default_rng(3).normal(size=(T, T))
    found = T**0.5 * gated_delta_rule(queries, keys, v, np.log(decay), write)
    assert_same(found, linear_attention(queries, keys, v, np.log(decay), write))


@pytest.mark.parametrize(("beta", "least"), [(1.0, 0.0), (2.0, -1.0)])
def test_the_eigenvalue_along_a_key_is_one_minus_beta(x64, beta, least):
    """Written once, read after the same key is seen with a value of 0: [0, 1] for beta up to 1, [-1, 1] up to 2."""
    key = np.array([[1.0, 0.0]] * 2)
    found = 2**0.5 * gated_delta_rule(key, key, np.array([[1.0], [0.0]]), np.zeros(2), np.array([1.0, beta]))
    assert_same(found[1], [least])


def test_plstm_in_one_dimension_is_linear_attention_with_gates_at_both_ends(drawn):
    """A transition that is also the mark, and a source that is also the direct term; pLSTM may set them apart."""
    q, k, v, decay, write = drawn
    gates = SequenceGates(write, decay, decay)
    assert_same(
        KEY**0.5 * plstm1d(q, k, v, gates, write, method="recurrent"),
        linear_attention(q, k, v, np.log(decay), write),
    )
