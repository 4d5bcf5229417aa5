"""pLSTM on DAGs: its forms against the recurrence of Equations 1 and 2, which is checked against sums over paths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.dag import Dag, DagGates, dispatch, normalise_transitions, pack, plstm_dag, plstm_dag_oracle
from plstm.ops.sequence import SequenceGates, plstm1d

from .comparing import assert_close, check, check_bfloat16, draw_dag, draw_transition, outputs_and_gradients

METHODS = ["levels", "doubling", "recurrent"]
DAGS = {"dense": draw_dag(10, 0.5, double=True), "sparse": draw_dag(12, 0.15), "empty": draw_dag(3, 0.0)}


def draw(dag, dtype=jnp.float64, lead=(2,)):
    """Arguments and the output's cotangent."""
    rng = np.random.default_rng(0)
    transition = draw_transition(rng, (*lead, len(dag.line_to)))
    source, mark = rng.uniform(-1, 1, (2, *lead, dag.num_edges))
    sizes = {"q": 3, "k": 3, "v": 2}
    arguments = {name: rng.normal(size=(*lead, dag.num_nodes, size)) for name, size in sizes.items()}
    arguments |= {"gates": DagGates(source, transition, mark), "direct": rng.uniform(-1, 1, (*lead, dag.num_nodes))}
    cotangent = rng.normal(size=(*lead, dag.num_nodes, 2))
    return jax.tree.map(lambda array: jnp.asarray(array, dtype), (arguments, cotangent))


@functools.cache
def oracle(dag, scale=None):
    return functools.partial(plstm_dag_oracle, dag=dag, scale=scale)


@functools.cache
def fast(dag, method, scale=None):
    return functools.partial(plstm_dag, dag=dag, method=method, scale=scale)


def sum_over_paths(dag, gates) -> np.ndarray:
    """G [N, N] of Equation 3, source node, then target, by walking every path."""
    source, transition, mark = (np.asarray(gate) for gate in gates)
    onward = {e: np.flatnonzero(dag.line_from == e) for e in range(dag.num_edges)}
    gating = np.zeros((dag.num_nodes, dag.num_nodes))

    def walk(start, edge, weight):
        gating[start, dag.head[edge]] += weight * mark[edge]
        for line in onward[edge]:
            walk(start, int(dag.line_to[line]), weight * transition[line])

    for edge in range(dag.num_edges):
        walk(dag.tail[edge], edge, source[edge])
    return gating


@pytest.mark.parametrize("name", DAGS)
def test_oracle_is_the_sum_over_paths(x64, name):
    dag = DAGS[name]
    arguments, _ = draw(dag, lead=())
    weights = sum_over_paths(dag, arguments["gates"]) + np.diag(arguments["direct"])
    similarity = np.asarray(arguments["k"] @ arguments["q"].T) / 3**0.5
    expected = (weights * similarity).T @ np.asarray(arguments["v"])
    np.testing.assert_allclose(jax.jit(oracle(dag))(**arguments), expected, rtol=1e-12, atol=1e-12)


def test_the_oracle_takes_arrays_of_numpy_and_of_several_precisions():
    arguments, _ = draw(DAGS["dense"], jnp.bfloat16)
    gates = arguments["gates"]._replace(transition=np.asarray(arguments["gates"].transition, np.float32))
    found = oracle(DAGS["dense"])(**jax.tree.map(np.asarray, arguments | {"gates": gates}))
    assert found.dtype == jnp.float32


@pytest.mark.parametrize(("name", "scale"), [("dense", None), ("sparse", 1.0), ("empty", None)])
@pytest.mark.parametrize("method", METHODS)
def test_values_and_gradients_in_float64(x64, method, name, scale):
    check(fast(DAGS[name], method, scale), oracle(DAGS[name], scale), *draw(DAGS[name]), 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_float32_with_bfloat16_inputs(method):
    dag = DAGS["dense"]
    check_bfloat16(fast(dag, method), oracle(dag), *draw(dag, jnp.float32), 3e-2)


@pytest.mark.parametrize("method", METHODS)
def test_a_chain_gives_what_the_sequence_operator_gives(x64, method):
    length = 37
    dag = Dag.from_edges(length, [(n, n + 1) for n in range(length - 1)])
    rng = np.random.default_rng(0)
    gates = SequenceGates(*jnp.asarray(rng.uniform(-1.1, 1.1, (3, length))))
    q, k, v = jnp.asarray(rng.normal(size=(3, length, 3)))
    direct = jnp.asarray(rng.uniform(-1, 1, length))
    expected = jax.jit(plstm1d)(q, k, v, gates, direct)
    on_edges = DagGates(gates.source[dag.tail], gates.transition[dag.tail[dag.line_to]], gates.mark[dag.head])
    actual = jax.jit(fast(dag, method))(q, k, v, on_edges, direct)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("width", "reverse"), [(None, False), (1, False), (4, True)])
@pytest.mark.parametrize("method", METHODS)
def test_packing_and_padding_change_nothing(x64, method, width, reverse):
    dags = [DAGS[name] for name in ("sparse", "dense", "empty")]
    packed, placement = pack(dags, 16, 34, width=width)
    padded = packed.pad(packed.blocks + 1, packed.num_line_edges + 3, 70, packed.depth + 16)
    assert padded.num_nodes == (packed.blocks + 1) * 16 and padded.num_line_edges == packed.num_line_edges + 3
    packed, dags = (padded.reverse(), [dag.reverse() for dag in dags]) if reverse else (padded, dags)
    arguments, cotangent = draw(packed)  # padding, too, has numbers
    found = outputs_and_gradients(fast(packed, method), arguments, cotangent)
    line = 0
    for dag, node, edge in zip(dags, *placement, strict=True):
        n, e = slice(node, node + dag.num_nodes), slice(edge, edge + dag.num_edges)
        m = slice(line, line := line + len(dag.line_to))

        def own(tree, n=n, e=e, m=m):
            gates = DagGates(*(gate[..., part] for gate, part in zip(tree["gates"], (e, m, e), strict=True)))
            return {name: tree[name][..., n, :] for name in "qkv"} | {"direct": tree["direct"][..., n], "gates": gates}

        expected = outputs_and_gradients(oracle(dag), own(arguments), cotangent[..., n, :])
        assert_close({"output": found["output"][..., n, :], "gradients": own(found["gradients"])}, expected, 1e-12)
    assert not found["gradients"]["gates"].source[..., ~packed.edge_mask].any()
    assert not found["gradients"]["gates"].transition[..., ~packed.line_mask].any()


def test_one_program_serves_many_graphs():
    compiled = {method: jax.jit(functools.partial(plstm_dag, method=method)) for method in ("levels", "recurrent")}
    for seed in range(2):
        packed = pack([draw_dag(8, 0.3, seed)], 8, 28, width=4)[0].pad(1, 40, 20, 8)
        arguments, _ = draw(packed, jnp.float32)
        found = [operator(**arguments, dag=packed) for operator in compiled.values()]
        np.testing.assert_allclose(*found, atol=1e-5)
    assert [operator._cache_size() for operator in compiled.values()] == [1, 1]


@pytest.mark.parametrize(("norm", "shared"), [("l1", "line_from"), ("linf", "line_to")])
def test_normalised_transitions_sum_to_less_than_one(norm, shared):
    dag = DAGS["dense"]
    t = np.random.default_rng(0).normal(scale=10, size=(2, len(dag.line_to)))
    normalised = np.asarray(normalise_transitions(jnp.asarray(t), dag, norm))
    edge = getattr(dag, shared)
    for e in range(dag.num_edges):
        sums = np.abs(t[:, edge == e]).sum(-1, keepdims=True)
        np.testing.assert_allclose(normalised[:, edge == e], t[:, edge == e] / (0.5 + sums), rtol=1e-5)
        assert (np.abs(normalised[:, edge == e]).sum(-1) < 1).all()
    padded = dag.packed.pad(2, len(dag.line_to) + 4, 99, 20)
    t = np.pad(t, ((0, 0), (0, 4)), constant_values=100.0)
    np.testing.assert_array_equal(normalise_transitions(jnp.asarray(t), padded, norm)[:, :-4], normalised)
    with pytest.raises(ValueError, match="norm must be one of l1, linf"):
        normalise_transitions(jnp.asarray(t), padded, "l2")


def test_transitions_are_normalised_in_float32():
    """300 that leave one edge: in bfloat16 they would sum to more than 1."""
    dag = Dag.from_edges(302, [(0, 1), *((1, n) for n in range(2, 302))])
    normalised = normalise_transitions(jnp.ones(len(dag.line_to), jnp.bfloat16), dag)
    assert len(dag.line_to) == 300 and normalised.dtype == jnp.float32 and 0.99 < normalised.sum() < 1


def test_auto_chooses_by_backend_and_size(monkeypatch):
    small, wide = DAGS["sparse"].packed, pack([DAGS["sparse"]], 600, 300)[0]
    many = pack([DAGS["sparse"]], 20, 300)[0]

    def choose():
        return [dispatch.choose_method(dag, 24 * 24) for dag in (small, wide, many)]

    assert choose() == ["levels", "recurrent", "levels"]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert choose() == ["doubling", "recurrent", "recurrent"]
