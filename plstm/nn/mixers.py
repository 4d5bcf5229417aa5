"""Layers that mix the nodes of a grid or the tokens of a sequence: pLSTM, and the attention it is compared with."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.nn.gates import DIRECT_BIAS, DModeGates, PModeGates
from plstm.nn.layers import check_grid, check_heads, divide_heads, head_norm, linear, softmax_attention
from plstm.ops.common import HIGHEST
from plstm.ops.grid import plstm2d


class QueryKeyValue(nnx.Module):
    """Three linear maps to heads."""

    def __init__(self, dim: int, heads: int, *, dtype, rngs: nnx.Rngs):
        check_heads(dim, heads)
        self.heads = heads
        self.query, self.key, self.value = (linear(dim, dim, dtype=dtype, rngs=rngs) for _ in range(3))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[..., dim] -> q, k, v, each [..., heads, dim / heads]."""
        q, k, v = (divide_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        return q, k, v


class PLSTMMixer(nnx.Module):
    """pLSTM on a grid in P- or D-mode, then a multi-head RMSNorm and the output projection (Appendix E.1).

    dim: channels, a multiple of 4 x heads. released: the P-mode's gates as in the released code, else as printed.
    bias_only: source, transition and mark do not read the input. direct_weight: the direct gate does, all channels of
    it. gate_init: of the gates' weights. transition_dtype: see `plstm.nn.gates.squash_transition`. dtype: of the matrix
    products; parameters, gates and norm are float32. method: of `plstm.ops.grid.plstm2d`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mode: str = "P",
        *,
        released: bool = True,
        bias_only: bool = False,
        direct_weight: bool = False,
        gate_init: nnx.Initializer = nnx.initializers.zeros,
        transition_dtype=jnp.float32,
        dtype=jnp.float32,
        method: str = "auto",
        rngs: nnx.Rngs,
    ):
        if mode not in ("P", "D") or heads < 1 or dim % (4 * heads):
            raise ValueError(f"mode={mode!r} must be P or D, and dim={dim} a multiple of 4 x heads, {4 * heads}")
        self.mode = mode
        self.method = method
        self.qkv = QueryKeyValue(dim, heads, dtype=dtype, rngs=rngs)
        make = partial(PModeGates, released=released) if mode == "P" else DModeGates
        self.gates = make(
            dim, heads, bias_only=bias_only, weight_init=gate_init, transition_dtype=transition_dtype, rngs=rngs
        )
        self.direct_bias = nnx.Param(jnp.full((heads,), DIRECT_BIAS, jnp.float32))
        self.direct_weight = nnx.Param(gate_init(rngs.params(), (heads, dim), jnp.float32)) if direct_weight else None
        self.norm_scale = nnx.Param(jnp.ones((dim,), jnp.float32))
        self.out = linear(dim, dim, dtype=dtype, rngs=rngs, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, Y, X, dim] -> [batch, Y, X, dim]."""
        check_grid(x, self.norm_scale.size)
        q, k, v = (jnp.moveaxis(tensor, -2, 1) for tensor in self.qkv(x))
        direct = jnp.broadcast_to(self.direct(x), q.shape[:-1])
        hidden = plstm2d(q, k, v, self.gates(x), direct, method=self.method, structure=self.gates.structure)
        return self.out(head_norm(jnp.moveaxis(hidden, 1, -2)) * self.norm_scale[...])

    def direct(self, x: jax.Array) -> jax.Array:
        """D of Equation 2: x [batch, Y, X, dim] -> float32 [batch, heads, Y, X], without a weight [heads, 1, 1]."""
        pre = self.direct_bias[...][:, None, None]
        if self.direct_weight is not None:
            weight = self.direct_weight[...]
            pre = pre + jnp.einsum("byxd,hd->bhyx", x.astype(jnp.float32), weight, precision=HIGHEST)
        return jax.nn.sigmoid(pre)


class AttentionMixer(nnx.Module):
    """Multi-head softmax attention; dtype: of the matrix products."""

    mode = "attention"

    def __init__(self, dim: int, heads: int, *, dtype, rngs: nnx.Rngs):
        self.qkv = QueryKeyValue(dim, heads, dtype=dtype, rngs=rngs)
        self.out = linear(dim, dim, dtype=dtype, rngs=rngs)

    def weights(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, dim] -> float32 [batch, heads, tokens that attend, tokens]; the pass does not store them."""
        query, key, _ = self.qkv(x)
        scores = jnp.einsum("btnd,bsnd->bnts", query, key, preferred_element_type=jnp.float32)
        return jax.nn.softmax(scores / math.sqrt(query.shape[-1]), axis=-1)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, dim] -> [batch, tokens, dim]."""
        q, k, v = (tensor.swapaxes(-2, -3) for tensor in self.qkv(x))
        return self.out(softmax_attention(q, k, v).swapaxes(-2, -3).reshape(x.shape))
