"""Token mixers: pLSTM on grids, and softmax attention. They are the difference between pLSTM-Vis and ViT."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.nn.gates import DIRECT_BIAS, DModeGates, PModeGates
from plstm.nn.layers import head_norm, linear
from plstm.ops.grid import plstm2d


class QueryKeyValue(nnx.Module):
    """Three linear maps to heads."""

    def __init__(self, dim: int, heads: int, *, dtype, rngs: nnx.Rngs):
        self.heads = heads
        self.query, self.key, self.value = (linear(dim, dim, dtype=dtype, rngs=rngs) for _ in range(3))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[..., dim] -> q, k, v, each [..., heads, dim / heads]."""
        return tuple(layer(x).reshape(*x.shape[:-1], self.heads, -1) for layer in (self.query, self.key, self.value))


class PLSTMMixer(nnx.Module):
    """pLSTM on a grid in P- or D-mode, then a multi-head RMSNorm and the output projection (Appendix E.1)."""

    def __init__(
        self, dim: int, heads: int, mode: str, *, released: bool, bias_only: bool, gate_init, method: str, dtype, rngs
    ):
        self.method = method
        self.qkv = QueryKeyValue(dim, heads, dtype=dtype, rngs=rngs)
        make = partial(PModeGates, released=released) if mode == "P" else DModeGates
        self.gates = make(dim, heads, bias_only=bias_only, weight_init=gate_init, rngs=rngs)
        self.direct_bias = nnx.Param(jnp.full((heads,), DIRECT_BIAS, jnp.float32))
        self.norm_scale = nnx.Param(jnp.ones((dim,), jnp.float32))
        self.out = linear(dim, dim, dtype=dtype, rngs=rngs, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, Y, X, dim] -> [batch, Y, X, dim]."""
        q, k, v = (jnp.moveaxis(tensor, -2, 1) for tensor in self.qkv(x))
        direct = jnp.broadcast_to(jax.nn.sigmoid(self.direct_bias[...])[:, None, None], q.shape[:-1])
        hidden = plstm2d(q, k, v, self.gates(x), direct, method=self.method, structure=self.gates.structure)
        return self.out(head_norm(jnp.moveaxis(hidden, 1, -2)) * self.norm_scale[...])


class AttentionMixer(nnx.Module):
    """Multi-head softmax attention."""

    def __init__(self, dim: int, heads: int, *, dtype, rngs: nnx.Rngs):
        self.qkv = QueryKeyValue(dim, heads, dtype=dtype, rngs=rngs)
        self.out = linear(dim, dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, dim] -> [batch, tokens, dim]."""
        hidden = jax.nn.dot_product_attention(*self.qkv(x))
        return self.out(hidden.reshape(x.shape))
