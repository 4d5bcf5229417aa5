"""Five graph neural networks to compare with: GAT, GCN, GIN, MPNN, and the LSTM GNN."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.nn.layers import NORM_EPSILON

GLOROT = nnx.initializers.glorot_uniform()
SLOPE = 0.2  # of GAT's leaky ReLU
MOMENTUM = 0.9  # of GIN's running statistics


class Neighbours(NamedTuple):
    """The undirected edges of packed graphs, each both ways, and which rows are nodes."""

    sender: jax.Array  # int32 [M]
    receiver: jax.Array
    real: jax.Array  # bool [M]
    degree: jax.Array  # [N]
    nodes: jax.Array  # bool [N]

    def sum(self, messages: jax.Array) -> jax.Array:
        """Messages along the edges [M, ...], summed where they arrive: [N, ...]."""
        real = self.real.reshape(-1, *(1,) * (messages.ndim - 1))
        zero = jnp.zeros((*self.degree.shape, *messages.shape[1:]), messages.dtype)
        return zero.at[self.receiver].add(jnp.where(real, messages, 0))

    def mean(self, h: jax.Array) -> jax.Array:
        """The mean over a node's neighbours, zero where it has none: [N, dim] -> [N, dim]."""
        return self.sum(h[self.sender]) / jnp.maximum(self.degree, 1)[:, None]


def dense(dim_in: int, dim_out: int, rngs: nnx.Rngs, use_bias: bool = True) -> nnx.Linear:
    """A linear layer whose kernel and bias start uniform within 1 / sqrt(dim_in)."""
    bound = 1 / math.sqrt(dim_in)
    start = lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)  # noqa: E731
    return nnx.Linear(dim_in, dim_out, use_bias=use_bias, kernel_init=start, bias_init=start, rngs=rngs)


class GAT(nnx.Module):
    """Graph attention with one head (Velickovic et al., 2018), then ReLU."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(dim, dim, use_bias=False, kernel_init=GLOROT, rngs=rngs)
        self.weight = nnx.Param(GLOROT(rngs.params(), (dim, 2), jnp.float32))  # of a sender, of a receiver
        self.bias = nnx.Param(jnp.zeros((dim,), jnp.float32))

    def __call__(self, h: jax.Array, edges: Neighbours, train: bool) -> jax.Array:
        """[N, dim] -> [N, dim]."""
        z = self.linear(h)
        sent, received = (z @ self.weight[...]).T
        own = jax.nn.leaky_relu(sent + received, SLOPE)
        logits = jax.nn.leaky_relu(sent[edges.sender] + received[edges.receiver], SLOPE)
        largest = jax.lax.stop_gradient(own.at[edges.receiver].max(jnp.where(edges.real, logits, -jnp.inf)))
        weights, own = jnp.exp(logits - largest[edges.receiver]), jnp.exp(own - largest)
        mixed = own[:, None] * z + edges.sum(weights[:, None] * z[edges.sender])
        return jax.nn.relu(mixed / (own + edges.sum(weights))[:, None] + self.bias[...])


class GCN(nnx.Module):
    """Graph convolution with self-loops and symmetric normalisation (Kipf and Welling, 2017), then ReLU."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(dim, dim, kernel_init=GLOROT, rngs=rngs, use_bias=False)
        self.bias = nnx.Param(jnp.zeros((dim,), jnp.float32))

    def __call__(self, h: jax.Array, edges: Neighbours, train: bool) -> jax.Array:
        """[N, dim] -> [N, dim]."""
        scale = jax.lax.rsqrt(edges.degree + 1.0)[:, None]
        z = scale * self.linear(h)
        return jax.nn.relu(scale * (z + edges.sum(z[edges.sender])) + self.bias[...])


class GIN(nnx.Module):
    """Graph isomorphism layer, sum with epsilon 0 (Xu et al., 2019): MLP with batch norm, batch norm, ReLU."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.up, self.down = dense(dim, dim, rngs), dense(dim, dim, rngs)
        norm = dict(momentum=MOMENTUM, epsilon=NORM_EPSILON, rngs=rngs)
        self.inner_norm, self.norm = nnx.BatchNorm(dim, **norm), nnx.BatchNorm(dim, **norm)

    def __call__(self, h: jax.Array, edges: Neighbours, train: bool) -> jax.Array:
        """[N, dim] -> [N, dim]; batch statistics, in training, are those of the real nodes."""
        norm = dict(mask=edges.nodes[:, None], use_running_average=not train)
        z = self.up(h + edges.sum(h[edges.sender]))
        z = self.down(jax.nn.relu(self.inner_norm(z, **norm)))
        return jax.nn.relu(self.norm(z, **norm))


class MPNN(nnx.Module):
    """ReLU(W_r h + b + W_n mean of the neighbours' h) (after Gilmer et al., 2017)."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.own = dense(dim, dim, rngs)
        self.neighbour = dense(dim, dim, rngs, use_bias=False)

    def __call__(self, h: jax.Array, edges: Neighbours, train: bool) -> jax.Array:
        """[N, dim] -> [N, dim]."""
        return jax.nn.relu(self.own(h) + self.neighbour(edges.mean(h)))


class LSTMCell(nnx.Module):
    """An LSTM step whose gates read a node's own state and its neighbours' mean (after Liang et al., 2016)."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.own = dense(dim, 4 * dim, rngs)
        self.neighbour = dense(dim, 4 * dim, rngs, use_bias=False)

    def __call__(self, h: jax.Array, c: jax.Array, edges: Neighbours) -> tuple[jax.Array, jax.Array]:
        """h, c [N, dim] -> the next h, c."""
        enter, keep, new, read = jnp.split(self.own(h) + self.neighbour(edges.mean(h)), 4, axis=-1)
        c = jax.nn.sigmoid(keep) * c + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return jax.nn.sigmoid(read) * jnp.tanh(c), c


LAYERS = {"gat": GAT, "gcn": GCN, "gin": GIN, "mpnn": MPNN}
