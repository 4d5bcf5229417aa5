"""The graph layer: its gates against loops over edges, the whole against the recurrence, and its starts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import expit

from plstm.nn.graph import GraphMixer
from plstm.ops.dag import Dag, DagGates, plstm_dag_oracle
from tests.drawing import fill, normal

HEADS, DIM = 2, 8
DAG = Dag.from_edges(6, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (1, 4), (2, 5), (4, 5)])


OPTIONS = dict(p_norm="l1", pruned=False, transition_node="shared", method="levels")


def build(mode, seed=0, **options):
    return GraphMixer(DIM, HEADS, mode, **(OPTIONS | options), rngs=nnx.Rngs(seed))


def gates_by_loops(mixer, h, e, dag):
    """Each gate from the features that it reads side by side, one edge at a time."""
    node, edge = (np.asarray(w[...]).reshape(DIM, 4, HEADS) for w in (mixer.node_weight, mixer.edge_weight))
    bias, transition_bias = np.asarray(mixer.bias[...]), np.asarray(mixer.transition_bias[...])
    source, mark = np.zeros((2, HEADS, dag.num_edges))
    t = np.zeros((HEADS, len(dag.line_to)))
    for i, (tail, head) in enumerate(zip(dag.tail, dag.head, strict=True)):
        source[:, i] = expit(np.r_[h[tail], e[i]] @ np.r_[node[:, 0], edge[:, 0]] + bias[0])
        mark[:, i] = expit(np.r_[h[head], e[i]] @ np.r_[node[:, 1], edge[:, 1]] + bias[1])
    for n, (first, second) in enumerate(zip(dag.line_from, dag.line_to, strict=True)):
        seen = dag.head[first] if mixer.transition_node == "shared" else dag.tail[first]
        weight = np.concatenate([edge[:, 2], edge[:, 3], node[:, 2]])
        t[:, n] = np.concatenate([e[first], e[second], h[seen]]) @ weight + transition_bias
    if mixer.pruned:
        t[:, ~dag.multitree] = 0 if mixer.mode == "P" else -np.inf
    if mixer.mode == "D":
        return source, np.where(np.isinf(t), 0, np.tanh(t)), mark
    shared = dag.line_from if mixer.p_norm == "l1" else dag.line_to
    sums = np.array([np.abs(t[:, shared == shared[n]]).sum(1) for n in range(t.shape[1])]).T
    return source, t / (0.5 + sums), mark


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("mode", "options"),
    [("D", {}), ("D", {"transition_node": "tail"}), ("P", {}), ("P", {"p_norm": "linf"})]
    + [("P", {"pruned": True, "transition_node": "tail"})],
)
def test_gates(mode, options, reverse):
    mixer = fill(functools.partial(build, mode, **options))
    dag = DAG.reverse() if reverse else DAG
    assert not dag.multitree.all()
    h, e = normal(6, DIM), normal(dag.num_edges, DIM, seed=1)
    packed = DAG.packed.reverse() if reverse else DAG.packed
    gates, direct = mixer.gates(jnp.asarray(h), jnp.asarray(e), packed)
    for actual, expected in zip(gates, gates_by_loops(mixer, h, e, dag), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    weight = np.asarray(mixer.node_weight[...]).reshape(DIM, 4, HEADS)[:, 3]
    np.testing.assert_allclose(direct.T, expit(h @ weight + np.asarray(mixer.bias[2])), atol=1e-5)


def test_the_layer_is_the_recurrence_with_a_head_norm_and_a_projection():
    mixer = fill(functools.partial(build, "P"))
    h, e = normal(6, DIM), normal(DAG.num_edges, DIM, seed=1)
    qkv = h @ np.asarray(mixer.qkv.kernel[...]) + np.asarray(mixer.qkv.bias[...])
    q, k, v = (jnp.asarray(part.reshape(6, HEADS, -1).swapaxes(0, 1)) for part in np.split(qkv, 3, axis=1))
    gates, direct = mixer.gates(jnp.asarray(h), jnp.asarray(e), DAG.packed)
    hidden = np.asarray(plstm_dag_oracle(q, k, v, DagGates(*gates), direct, DAG, scale=1.0)).swapaxes(0, 1)
    hidden = hidden / np.sqrt(np.mean(hidden**2, axis=-1, keepdims=True) + 1e-5)
    hidden = hidden.reshape(6, DIM) * np.asarray(mixer.norm_scale[...])
    expected = hidden @ np.asarray(mixer.out.kernel[...]) + np.asarray(mixer.out.bias[...])
    actual = jax.jit(lambda h, e, dag: mixer(h, e, dag))(jnp.asarray(h), jnp.asarray(e), DAG.packed)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("d", {}, "mode='d' must be P or D"),
        ("P", {"transition_node": "head"}, "transition_node must be one of shared"),
        ("D", {"p_norm": "l2"}, "p_norm must be one of l1, linf"),
    ],
)
def test_what_does_not_fit_is_named(mode, options, words):
    with pytest.raises(ValueError, match=words):
        build(mode, **options)


def test_rows_that_are_not_the_graphs_are_refused():
    """One row of edge features would stand for all."""
    mixer = build("P")
    nodes, edges = jnp.zeros((DAG.num_nodes, DIM)), jnp.zeros((DAG.num_edges, DIM))
    for h, e in ((nodes, edges[:1]), (nodes[:1], edges), (nodes[:, :1], edges)):
        with pytest.raises(ValueError, match=rf"^h must be \[{DAG.num_nodes}, {DIM}\] and e \[{DAG.num_edges}, "):
            mixer(h, e, DAG.packed)


def test_starts():
    mixer = build("P")
    assert not mixer.node_weight[...].any() and not mixer.edge_weight[...].any()
    assert (mixer.bias[...] == -5).all()
    starts = [build("P", seed).transition_bias[...] for seed in range(20)]
    assert np.std(starts) == pytest.approx(10, rel=0.35)
    for layer in (mixer.qkv, mixer.out):
        assert np.std(layer.bias[...]) == pytest.approx((1 / (3 * DIM)) ** 0.5, rel=0.3)
        assert np.abs(layer.bias[...]).max() <= DIM**-0.5
    assert np.std(mixer.qkv.kernel[...]) == pytest.approx((2 / (5 * DIM)) ** 0.5, rel=0.2)
    assert np.std(mixer.out.kernel[...]) == pytest.approx((2 / (5 * DIM)) ** 0.5, rel=0.3)
