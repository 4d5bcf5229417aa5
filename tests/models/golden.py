"""Golden values of Figure 2's other models: parameters and inputs by formula, results in arrow_baselines.json.

The values come from the released PyTorch modules in float64, their CUDA scans replaced by plain recurrences.
"""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

GOLDEN = json.loads((Path(__file__).parent / "arrow_baselines.json").read_text())
# By kind: kernels, biases, scales, biases of Delta, biases of forget gates, positions, logarithms of A.
KINDS = {
    "K": lambda s: 0.3 * s,
    "b": lambda s: 0.1 * s,
    "g": lambda s: 1 + 0.1 * s,
    "d": lambda s: -2 + 0.5 * s,
    "F": lambda s: 3 + s,
    "p": lambda s: 0.5 * s,
    "a": lambda s: 0.1 * s + np.log(np.arange(1, s.shape[-1] + 1)),
}


def fill(tensors: Iterable[tuple[nnx.Variable, str]]) -> None:
    """Numbers all entries of the tensors in order and fills them by kind, in float64."""
    first = 1
    for variable, kind in tensors:
        shape = variable.shape
        entries = first + np.arange(math.prod(shape))
        variable.set_value(jnp.asarray(KINDS[kind](np.sin(entries).reshape(shape)), jnp.float64))
        first += len(entries)


def dense(layer: nnx.Module) -> list[tuple[nnx.Variable, str]]:
    return [(layer.kernel, "K")] + ([(layer.bias, "b")] if layer.bias is not None else [])


def norm(layer: nnx.Module) -> list[tuple[nnx.Variable, str]]:
    return [(layer.scale, "g"), (layer.bias, "b")]


def waves(shape: tuple[int, ...], rate: float = 0.37, shift: float = 0.0) -> jax.Array:
    """cos(rate j + shift), j row by row."""
    return jnp.cos(rate * jnp.arange(math.prod(shape), dtype=jnp.float64) + shift).reshape(shape)


def maps(layer: Callable, x: jax.Array) -> jax.Array:
    """A layer of feature maps [height, width, images, channels] applied to images [images, height, width, channels]."""
    return layer(x.transpose(1, 2, 0, 3)).transpose(2, 0, 1, 3)


def check(case: str, function: Callable, **inputs: jax.Array) -> Any:
    """Values of y, rest = function(**inputs), and y's gradients by every input, against a golden case; returns rest."""

    def weighted(inputs):
        y, rest = function(**inputs)
        return (jnp.cos(jnp.arange(y.size)) * y.ravel()).sum(), (y, rest)

    (_, (y, rest)), gradients = jax.jit(jax.value_and_grad(weighted, has_aux=True))(inputs)
    found = {"first": y.ravel()[:3], "last": y.ravel()[-1], "sum": y.sum(), "abs": jnp.abs(y).sum()}
    found |= {f"grad_{name}_abs": jnp.abs(gradient).sum() for name, gradient in gradients.items()}
    golden = GOLDEN[case]
    assert list(y.shape) == golden["shape"] and y.dtype == jnp.float64
    assert found.keys() == golden.keys() - {"shape", "running_mean_sum", "running_var_sum"}
    for name, value in found.items():
        np.testing.assert_allclose(value, golden[name], rtol=1e-6, atol=1e-9, err_msg=f"{case}, {name}")
    return rest
