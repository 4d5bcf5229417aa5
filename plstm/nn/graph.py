"""pLSTM as a layer on graphs (arXiv 2506.11997, Section 4.2): gates from node and edge features, then the operator."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.nn.layers import check_heads, head_norm, linear, uniform_within
from plstm.ops.common import HIGHEST, check_choice
from plstm.ops.dag import NORMS, DagGates, PackedDags, normalise_transitions, plstm_dag

GATE_BIAS = -5.0  # of source, mark and direct
TRANSITION_DEVIATION = 10.0
TRANSITION_NODES = ("shared", "tail")


class GraphMixer(nnx.Module):
    """pLSTM on packed DAGs in P- or D-mode, a multi-head RMSNorm and the output projection.

    dim: channels, a multiple of heads. p_norm: "l1" (Equation 4) or "linf", of the P-mode. pruned: the P-mode, like the
    D-mode, uses only the multitree. transition_node: a transition reads the node where its two edges meet ("shared") or
    where the first one begins ("tail"). method: of `plstm.ops.dag.plstm_dag`. Raises ValueError for other values.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mode: str = "P",
        *,
        p_norm: str = "l1",
        pruned: bool = False,
        transition_node: str = "shared",
        method: str = "auto",
        rngs: nnx.Rngs,
    ):
        if mode not in ("P", "D"):
            raise ValueError(f"mode={mode!r} must be P or D")
        check_heads(dim, heads)
        check_choice("p_norm", p_norm, NORMS)
        check_choice("transition_node", transition_node, TRANSITION_NODES)
        self.heads = heads
        self.mode = mode
        self.p_norm = p_norm
        self.pruned = pruned or mode == "D"
        self.transition_node = transition_node
        self.method = method
        start = uniform_within(1 / math.sqrt(dim))
        project = functools.partial(linear, dim, dtype=jnp.float32, bias_init=start, rngs=rngs)
        self.qkv = project(3 * dim)
        # Nodes: of source, mark, transition, direct. Edges: of source, mark, transition as its first and second edge.
        self.node_weight = nnx.Param(jnp.zeros((dim, 4 * heads), jnp.float32))
        self.edge_weight = nnx.Param(jnp.zeros((dim, 4 * heads), jnp.float32))
        self.bias = nnx.Param(jnp.full((3, heads), GATE_BIAS, jnp.float32))  # of source, mark, direct
        self.transition_bias = nnx.Param(TRANSITION_DEVIATION * jax.random.normal(rngs.params(), (heads,), jnp.float32))
        self.norm_scale = nnx.Param(jnp.ones((dim,), jnp.float32))
        self.out = project(dim)

    def __call__(self, h: jax.Array, e: jax.Array, dag: PackedDags) -> jax.Array:
        """Nodes h [N, dim] and edge features e [E, dim] of packed DAGs -> [N, dim]."""
        dim = self.norm_scale.size
        if h.shape != (dag.num_nodes, dim) or e.shape != (dag.num_edges, dim):
            sizes = f"h must be [{dag.num_nodes}, {dim}] and e [{dag.num_edges}, {dim}]"
            raise ValueError(f"{sizes}; got {h.shape} and {e.shape}")
        q, k, v = jnp.moveaxis(self.qkv(h).reshape(len(h), 3, self.heads, -1), 0, 2)
        gates, direct = self.gates(h, e, dag)
        hidden = plstm_dag(q, k, v, gates, direct, dag, scale=1.0, method=self.method)
        return self.out(head_norm(jnp.moveaxis(hidden, 0, -2)) * self.norm_scale[...])

    def gates(self, h: jax.Array, e: jax.Array, dag: PackedDags) -> tuple[DagGates, jax.Array]:
        """Source and mark [heads, E], transition [heads, L]; direct [heads, N]: linear maps of the features they read.
        P-mode: t with its sign, over a sum of |t| (Equation 4); D-mode: tanh(t), on the multitree."""

        def project(x, weight):
            return jnp.split(jnp.matmul(x, weight[...], precision=HIGHEST).T, 4)

        of_source, of_mark, of_transition, of_direct = project(h, self.node_weight)
        to_source, to_mark, to_first, to_second = project(e, self.edge_weight)
        source_bias, mark_bias, direct_bias = self.bias[..., None]
        tail = jnp.asarray(dag.tail)
        source = jax.nn.sigmoid(of_source[:, tail] + to_source + source_bias)
        mark = jax.nn.sigmoid(of_mark[:, dag.head] + to_mark + mark_bias)
        node = tail[dag.line_to if self.transition_node == "shared" else dag.line_from]
        t = to_first[:, dag.line_from] + to_second[:, dag.line_to] + of_transition[:, node]
        t = t + self.transition_bias[..., None]
        t = jnp.where(dag.multitree, t, 0) if self.pruned else t
        t = normalise_transitions(t, dag, self.p_norm) if self.mode == "P" else jnp.tanh(t)
        return DagGates(source, t, mark), jax.nn.sigmoid(of_direct + direct_bias)
