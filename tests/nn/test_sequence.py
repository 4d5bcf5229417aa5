"""The causal convolution and causal attention against their definitions, in values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.nn.sequence import FEWEST_QUERIES, QUERY_BLOCKS, WIDTH, causal_attention, causal_conv
from tests.ops.comparing import check


def plain_conv(x, weight):
    """Token by token."""
    terms = lambda t: (weight[j] * x[..., t - WIDTH + 1 + j, :] for j in range(WIDTH) if t - WIDTH + 1 + j >= 0)  # noqa: E731
    return jnp.stack([sum(terms(t)) for t in range(x.shape[-2])], axis=-2)


@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (2, 2, 7, 3)])
def test_causal_conv_is_its_definition_in_values_and_gradients(x64, shape):
    rng = np.random.default_rng(0)
    x, weight, cotangent = (jnp.asarray(rng.normal(size=size)) for size in (shape, (WIDTH, shape[-1]), shape))
    check(causal_conv, plain_conv, {"x": x, "weight": weight}, cotangent, 1e-12)


def plain_attention(q, k, v):
    """With all pairs at once."""
    scores = jnp.einsum("...thd,...shd->...hts", q, k) / np.sqrt(q.shape[-1])
    seen = np.tril(np.ones(scores.shape[-2:], bool))
    return jnp.einsum("...hts,...shd->...thd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("lead", [(1,), (2, FEWEST_QUERIES + 1), (QUERY_BLOCKS * FEWEST_QUERIES + 7,)])
def test_causal_attention_is_its_definition_in_values_and_gradients(x64, lead, scale):
    """At a scale of 100 a token attends to one other, and exponentials of plain scores would overflow."""
    rng = np.random.default_rng(0)
    q, k, v, cotangent = (jnp.asarray(rng.normal(size=(*lead, 2, 3))) for _ in range(4))
    check(causal_attention, plain_attention, {"q": scale * q, "k": scale * k, "v": v}, cotangent, 1e-10)
