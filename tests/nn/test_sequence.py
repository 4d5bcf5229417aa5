"""The causal convolution against its definition, in values and gradients."""

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.nn.sequence import WIDTH, causal_conv
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
