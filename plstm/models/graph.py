"""Graph classifiers: pLSTM, and the graph neural networks that the paper's Table 1 compares it with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from plstm.errors import require
from plstm.limits import OneOf, OnlyWith, Size, check_limits
from plstm.nn.graph import TRANSITION_NODES, GraphMixer
from plstm.nn.layers import MLP, NORM_EPSILON, bias_of, dense, norm, sinusoids
from plstm.ops.dag import METHODS, NORMS, PackedDags

PLSTM = OnlyWith("kind", ("plstm",))

GLOROT = nnx.initializers.glorot_uniform()
SLOPE = 0.2  # of GAT's leaky ReLU
MOMENTUM = 0.9  # of GIN's running statistics

Batch = Mapping[str, Any]


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


class GAT(nnx.Module):
    """Graph attention with one head (Velickovic et al., 2018), then ReLU."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(dim, dim, use_bias=False, kernel_init=GLOROT, rngs=rngs)
        self.weight = nnx.Param(GLOROT(rngs.params(), (dim, 2), jnp.float32))  # of a sender, of a receiver
        self.bias = nnx.Param(jnp.zeros((dim,), jnp.float32))

    def __call__(self, h: jax.Array, edges: Neighbours) -> jax.Array:
        """[N, dim] -> [N, dim]."""
        z = self.linear(h)
        sent, received = (z @ self.weight[...]).T
        to_self = jax.nn.leaky_relu(sent + received, SLOPE)
        logits = jax.nn.leaky_relu(sent[edges.sender] + received[edges.receiver], SLOPE)
        largest = jax.lax.stop_gradient(to_self.at[edges.receiver].max(jnp.where(edges.real, logits, -jnp.inf)))
        weights = jnp.exp(logits - largest[edges.receiver])
        to_self = jnp.exp(to_self - largest)
        mixed = to_self[:, None] * z + edges.sum(weights[:, None] * z[edges.sender])
        return jax.nn.relu(mixed / (to_self + edges.sum(weights))[:, None] + self.bias[...])


class GCN(nnx.Module):
    """Graph convolution with self-loops and symmetric normalisation (Kipf and Welling, 2017), then ReLU."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(dim, dim, kernel_init=GLOROT, rngs=rngs, use_bias=False)
        self.bias = nnx.Param(jnp.zeros((dim,), jnp.float32))

    def __call__(self, h: jax.Array, edges: Neighbours) -> jax.Array:
        """[N, dim] -> [N, dim]."""
        scale = jax.lax.rsqrt(edges.degree + 1.0)[:, None]
        z = scale * self.linear(h)
        return jax.nn.relu(scale * (z + edges.sum(z[edges.sender])) + self.bias[...])


class GIN(nnx.Module):
    """Graph isomorphism layer, sum with epsilon 0 (Xu et al., 2019): MLP with batch norm, batch norm, ReLU."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.up = dense(dim, dim, rngs)
        self.down = dense(dim, dim, rngs)
        self.inner_norm, self.norm = (
            nnx.BatchNorm(dim, momentum=MOMENTUM, epsilon=NORM_EPSILON, rngs=rngs) for _ in range(2)
        )

    def __call__(self, h: jax.Array, edges: Neighbours, train: bool) -> jax.Array:
        """[N, dim] -> [N, dim]; batch statistics, in training, are those of the real nodes."""
        mask = edges.nodes[:, None]
        z = self.up(h + edges.sum(h[edges.sender]))
        z = self.down(jax.nn.relu(self.inner_norm(z, mask=mask, use_running_average=not train)))
        return jax.nn.relu(self.norm(z, mask=mask, use_running_average=not train))


class MPNN(nnx.Module):
    """ReLU(W_r h + b + W_n mean of the neighbours' h) (after Gilmer et al., 2017)."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.own = dense(dim, dim, rngs)
        self.neighbour = dense(dim, dim, rngs, use_bias=False)

    def __call__(self, h: jax.Array, edges: Neighbours) -> jax.Array:
        """[N, dim] -> [N, dim]."""
        return jax.nn.relu(self.own(h) + self.neighbour(edges.mean(h)))


class LSTMCell(nnx.Module):
    """An LSTM step whose gates read a node's own state and its neighbours' mean (after Liang et al., 2016)."""

    def __init__(self, dim: int, rngs: nnx.Rngs):
        self.own = dense(dim, 4 * dim, rngs)
        self.neighbour = dense(dim, 4 * dim, rngs, use_bias=False)

    def __call__(self, h: jax.Array | None, c: jax.Array, edges: Neighbours) -> tuple[jax.Array, jax.Array]:
        """h, c [N, dim] -> the next h, c. h None: zero, as before the first step, without the products."""
        gates = bias_of(self.own) if h is None else self.own(h) + self.neighbour(edges.mean(h))
        enter, keep, new, read = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(keep) * c + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return jax.nn.sigmoid(read) * jnp.tanh(c), c


LAYERS = {"gat": GAT, "gcn": GCN, "mpnn": MPNN}
KINDS = ("plstm", "lstm", "gin", *LAYERS)


@dataclass
class GraphConfig:
    """The whole architecture; `configs/experiment/graphs/*.yaml` have the sizes of the paper's Table 1."""

    family: str = "graph"  # of plstm.models.MODELS
    kind: Annotated[str, OneOf(*KINDS)] = "plstm"
    dim: Size = 96  # channels of a node
    depth: Size = 4  # layers
    heads: Annotated[Size, PLSTM] = 4
    mlp_ratio: Annotated[Size, PLSTM] = 4  # units of the MLP over dim
    # l1: Equation 4, over the edges that leave; linf: over those that enter, as released.
    p_norm: Annotated[str, OneOf(*NORMS), PLSTM] = "l1"
    # On the reversed graph the P-mode uses all line edges, or, as released, the pruned ones.
    reverse_p: Annotated[str, OneOf("full", "pruned"), PLSTM] = "full"
    # What a transition reads: the node that two edges share or, as released, the tail.
    transition_node: Annotated[str, OneOf(*TRANSITION_NODES), PLSTM] = "shared"
    method: Annotated[str, OneOf(*METHODS), PLSTM] = "auto"  # of plstm.ops.dag.plstm_dag
    # What the LSTM GNN's readout sums over the nodes: tanh(c), as released, or h.
    lstm_pool: Annotated[str, OneOf("tanh_c", "h"), OnlyWith("kind", ("lstm",))] = "tanh_c"

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check_limits(self, "model.")
        divides = self.kind != "plstm" or self.dim % self.heads == self.dim % 2 == 0
        require(self, ("dim", divides, f"must be even and a multiple of model.heads={self.heads}"), prefix="model.")


class Block(nnx.Module):
    """A pre-norm residual block: pLSTM, then MLP."""

    def __init__(self, config: GraphConfig, mode: str, *, reverse: bool, rngs: nnx.Rngs):
        self.reverse = reverse
        self.mixer_norm = norm("rmsnorm", config.dim, rngs)
        self.mixer = GraphMixer(
            config.dim,
            config.heads,
            mode,
            p_norm=config.p_norm,
            pruned=reverse and config.reverse_p == "pruned",
            transition_node=config.transition_node,
            method=config.method,
            rngs=rngs,
        )
        self.mlp_norm = norm("rmsnorm", config.dim, rngs)
        self.mlp = MLP(config.dim, config.mlp_ratio, dtype=jnp.float32, rngs=rngs, approximate=False)

    def __call__(self, x: jax.Array, edges: list[jax.Array], dags: tuple[PackedDags, ...]) -> jax.Array:
        """Nodes [N, dim] and the edge features of each part -> nodes."""
        h = split_nodes(self.mixer_norm(x), dags)
        mixed = []
        for part, e, dag in zip(h, edges, dags, strict=True):
            mixed.append(self.mixer(part, e, dag.reverse() if self.reverse else dag))
        x = x + jnp.concatenate(mixed)
        return x + self.mlp(self.mlp_norm(x))


class ReadoutModel(nnx.Module):
    """A classifier of graphs that ends in `readout`."""

    readout: "Readout"

    def units(self, batch: Batch, *, key: jax.Array | None = None) -> jax.Array:
        """The ReLUs of the readout's hidden layer: float32 [graphs, units]."""
        raise NotImplementedError

    def __call__(self, batch: Batch, *, key: jax.Array | None = None) -> jax.Array:
        """A batch of `plstm.tasks.graphs` -> logits [graphs, classes]; `key` makes it a training pass."""
        return self.readout.out(self.units(batch, key=key))


class GraphPLSTM(ReadoutModel):
    """P- and D-mode layers in turn, two on the graph's DAG, then two on its reverse; mean over the nodes; MLP."""

    def __init__(self, config: GraphConfig, features: int, classes: int, rngs: nnx.Rngs):
        self.encoder = dense(features, config.dim, rngs)
        reverse = [n // 2 % 2 == 1 for n in range(config.depth)]
        self.blocks = nnx.List([Block(config, "PD"[n % 2], reverse=r, rngs=rngs) for n, r in enumerate(reverse)])
        self.readout = Readout(config.dim, classes, rngs)

    def units(self, batch: Batch, *, key: jax.Array | None = None) -> jax.Array:
        """Float32 [graphs, dim]."""
        x = self.encoder(batch["features"])
        dags = batch["dags"]
        x = x + sinusoids(batch["degree"], x.shape[-1])
        parts = zip(split_nodes(x, dags), dags, strict=True)
        edges = [(part[dag.tail] + part[dag.head]) / 2 for part, dag in parts]
        for block in self.blocks:
            x = block(x, edges, dags)
        return self.readout(pool(x, batch) / jnp.maximum(batch["nodes"], 1)[:, None])


class GNN(ReadoutModel):
    """GAT, GCN, MPNN or LSTM GNN: layers, sum over the nodes, MLP."""

    def __init__(self, config: GraphConfig, features: int, classes: int, rngs: nnx.Rngs):
        self.encoder = dense(features, config.dim, rngs)
        self.depth = config.depth
        self.lstm_pool = config.lstm_pool
        self.cell = LSTMCell(config.dim, rngs) if config.kind == "lstm" else None
        make = LAYERS.get(config.kind)
        self.layers = nnx.List([make(config.dim, rngs) for _ in range(config.depth)] if make else [])
        self.readout = Readout(config.dim, classes, rngs)

    def units(self, batch: Batch, *, key: jax.Array | None = None) -> jax.Array:
        """Float32 [graphs, dim]."""
        h = self.encoder(batch["features"])
        edges = neighbourhood(batch)
        for layer in self.layers:
            h = layer(h, edges)
        if self.cell is not None:
            state, c = self.cell(None, h, edges)
            for _ in range(self.depth - 1):
                state, c = self.cell(state, c, edges)
            h = jnp.tanh(c) if self.lstm_pool == "tanh_c" else state
        return self.readout(pool(h, batch))


class GINModel(nnx.Module):
    """GIN, whose readout adds up a linear map of the sum over the nodes at every depth, input included."""

    def __init__(self, config: GraphConfig, features: int, classes: int, rngs: nnx.Rngs):
        self.encoder = dense(features, config.dim, rngs)
        self.layers = nnx.List([GIN(config.dim, rngs) for _ in range(config.depth)])
        self.readouts = nnx.List([dense(config.dim, classes, rngs) for _ in range(config.depth + 1)])

    def __call__(self, batch: Batch, *, key: jax.Array | None = None) -> jax.Array:
        """As `ReadoutModel.__call__`; a training pass normalises by the batch and updates the running statistics."""
        h = self.encoder(batch["features"])
        edges = neighbourhood(batch)
        logits = self.readouts[0](pool(h, batch))
        for layer, readout in zip(self.layers, self.readouts[1:], strict=True):
            h = layer(h, edges, train=key is not None)
            logits = logits + readout(pool(h, batch))
        return logits


class Readout(nnx.Module):
    """Linear, ReLU: the hidden units [graphs, dim]; then `out`, linear."""

    def __init__(self, dim: int, classes: int, rngs: nnx.Rngs):
        self.hidden = dense(dim, dim, rngs)
        self.out = dense(dim, classes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.hidden(x))


def pool(x: jax.Array, batch: Batch) -> jax.Array:
    """Sums the nodes of each graph: [N, dim] -> [graphs, dim]. Padding belongs to graph number `graphs`."""
    graphs = len(batch["label"])
    return jnp.zeros((graphs + 1, x.shape[-1]), x.dtype).at[batch["graph"]].add(x)[:graphs]


def split_nodes(x: jax.Array, dags: tuple[PackedDags, ...]) -> list[jax.Array]:
    return jnp.split(x, np.cumsum([dag.num_nodes for dag in dags])[:-1])


def neighbourhood(batch: Batch) -> Neighbours:
    """The undirected graphs of a batch, for layers that pass messages."""
    numbers = split_nodes(jnp.arange(len(batch["graph"]), dtype=jnp.int32), batch["dags"])
    ends = [(n[dag.tail], n[dag.head], dag.edge_mask) for n, dag in zip(numbers, batch["dags"], strict=True)]
    tail, head, real = (jnp.concatenate(parts) for parts in zip(*ends, strict=True))
    both = jnp.concatenate([tail, head]), jnp.concatenate([head, tail]), jnp.concatenate([real, real])
    return Neighbours(*both, batch["degree"], batch["graph"] < len(batch["label"]))


def graph_model(config: GraphConfig, sizes: Mapping[str, int], rngs: nnx.Rngs) -> nnx.Module:
    """The model of `config.kind`; sizes: features (numbers of a node) and classes."""
    make = {"plstm": GraphPLSTM, "gin": GINModel}.get(config.kind, GNN)
    return make(config, sizes["features"], sizes["classes"], rngs)
