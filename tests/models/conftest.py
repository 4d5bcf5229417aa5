import jax.numpy as jnp
import pytest

from plstm.nn.layers import DTYPES


@pytest.fixture
def float64(x64, monkeypatch):
    """Models of dtype "float32" compute in float64."""
    monkeypatch.setitem(DTYPES, "float32", jnp.float64)
