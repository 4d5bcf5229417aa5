"""pLSTM on DAGs: its forms against the recurrence of Equations 1 and 2, which is checked against sums over paths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops import dag as dag_module
from plstm.ops.dag import Dag, DagGates, normalise_transitions, pack, plstm_dag
from plstm.ops.dag.oracle import plstm_dag_oracle
from plstm.ops.grid import GridGates, plstm2d
from plstm.ops.sequence import SequenceGates, plstm1d

METHODS = ["levels", "doubling", "recurrent"]


@functools.cache
def random_dag(name: str) -> Dag:
    """`dense`: 10 nodes and two edges of one pair; `sparse`: 12 nodes, some alone; `empty`: 3 nodes, no edge."""
    rng = np.random.default_rng(0)
    nodes, share = {"dense": (10, 0.5), "sparse": (12, 0.15), "empty": (3, 0.0)}[name]
    names = rng.permutation(nodes)
    edges = [(names[i], names[j]) for i in range(nodes) for j in range(i + 1, nodes) if rng.random() < share]
    if name == "dense":
        edges.append(edges[0])
    return Dag.from_edges(nodes, rng.permutation(edges) if edges else [])


def draw(dag, dtype=jnp.float64, lead=(2,), seed=0):
    """Arguments and the output's cotangent; some transitions are zero, one, negative, or above one."""
    rng = np.random.default_rng(seed)
    special = rng.choice([0.0, 1.0, -1.0, 1.3], size=(*lead, len(dag.line_to)))
    transition = np.where(rng.random(special.shape) < 0.4, special, rng.uniform(-1, 1, special.shape))
    arguments = {
        "q": rng.normal(size=(*lead, dag.num_nodes, 3)),
        "k": rng.normal(size=(*lead, dag.num_nodes, 3)),
        "v": rng.normal(size=(*lead, dag.num_nodes, 2)),
        "gates": DagGates(
            rng.uniform(-1, 1, (*lead, dag.num_edges)), transition, rng.uniform(-1, 1, (*lead, dag.num_edges))
        ),
        "direct": rng.uniform(-1, 1, (*lead, dag.num_nodes)),
    }
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


@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_oracle_is_the_sum_over_paths(x64, name):
    dag = random_dag(name)
    arguments, _ = draw(dag, lead=())
    weights = sum_over_paths(dag, arguments["gates"]) + np.diag(arguments["direct"])
    similarity = np.asarray(arguments["k"] @ arguments["q"].T) / 3**0.5
    expected = (weights * similarity).T @ np.asarray(arguments["v"])
    np.testing.assert_allclose(jax.jit(oracle(dag))(**arguments), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["dense", "sparse"])
@pytest.mark.parametrize("method", METHODS)
def test_values_and_gradients_in_float64(x64, outputs_and_gradients, assert_close, method, name):
    dag, scale = random_dag(name), {"dense": None, "sparse": 1.0}[name]
    arguments, cotangent = draw(dag)
    expected = outputs_and_gradients(oracle(dag, scale), arguments, cotangent)
    assert_close(outputs_and_gradients(fast(dag, method, scale), arguments, cotangent), expected, 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_graph_without_edges(x64, method):
    arguments, _ = draw(random_dag("empty"))
    own = arguments["direct"] * (arguments["q"] * arguments["k"]).sum(-1) / 3**0.5
    actual = jax.jit(fast(random_dag("empty"), method))(**arguments)
    np.testing.assert_allclose(actual, own[..., None] * arguments["v"], rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_float32_with_bfloat16_inputs(outputs_and_gradients, assert_close, method):
    dag = random_dag("dense")
    arguments, cotangent = draw(dag, jnp.float32)
    half = arguments | {name: arguments[name].astype(jnp.bfloat16) for name in "qkv"}
    actual = outputs_and_gradients(fast(dag, method), half, cotangent)
    assert actual["output"].dtype == jnp.bfloat16
    assert actual["gradients"]["gates"].transition.dtype == jnp.float32
    rounded = arguments | {name: half[name].astype(jnp.float32) for name in "qkv"}
    assert_close(actual, outputs_and_gradients(oracle(dag), rounded, cotangent), 3e-2)


def grid_graph(height, width):
    """The grid of one direction, and whether each edge leads right ("r") or down ("d")."""
    node = np.arange(height * width).reshape(height, width)
    right = [(a, b, "r") for a, b in zip(node[:, :-1].flat, node[:, 1:].flat, strict=True)]
    down = [(a, b, "d") for a, b in zip(node[:-1].flat, node[1:].flat, strict=True)]
    tails, heads, letters = zip(*right, *down, strict=True)
    return Dag.from_edges(height * width, np.stack([tails, heads], axis=1)), letters


@pytest.mark.parametrize("method", METHODS)
def test_a_grid_gives_what_the_grid_operator_gives(x64, method):
    height, width = 4, 5
    dag, leaves = grid_graph(height, width)
    rng = np.random.default_rng(0)
    node = lambda *shape: rng.uniform(-1, 1, (height, width, *shape))  # noqa: E731
    one = {name: node() for name in GridGates._fields}
    nowhere = np.zeros((3, height, width))
    grid_gates = GridGates(**{name: np.concatenate([gate[None], nowhere]) for name, gate in one.items()})
    q, k, v, direct = node(3), node(3), node(2), node()
    operator = jax.jit(functools.partial(plstm2d, method="recurrent"))
    expected = operator(*(jnp.asarray(x) for x in (q, k, v)), grid_gates, jnp.asarray(direct))

    flat = {name: gate.reshape(-1) for name, gate in one.items()}
    enters = ["l" if letter == "r" else "u" for letter in leaves]  # a node's left edge is its neighbour's right edge
    source = [flat[f"s_{leaves[e]}"][tail] for e, tail in enumerate(dag.tail)]
    mark = [flat[f"m_{enters[e]}"][head] for e, head in enumerate(dag.head)]
    lines = zip(dag.line_from, dag.line_to, strict=True)
    transition = [flat[f"t_{leaves[to]}{enters[start]}"][dag.tail[to]] for start, to in lines]
    gates = DagGates(*(jnp.asarray(gate) for gate in (source, transition, mark)))
    q, k, v = (jnp.asarray(x.reshape(height * width, -1)) for x in (q, k, v))
    actual = jax.jit(fast(dag, method))(q, k, v, gates, jnp.asarray(direct.reshape(-1)))
    np.testing.assert_allclose(actual, expected.reshape(height * width, -1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_chain_gives_what_the_sequence_operator_gives(x64, method):
    length = 37
    dag = Dag.from_edges(length, [(n, n + 1) for n in range(length - 1)])
    rng = np.random.default_rng(0)
    gates = SequenceGates(*(jnp.asarray(rng.uniform(-1.1, 1.1, length)) for _ in range(3)))
    q, k, v = (jnp.asarray(rng.normal(size=(length, 3))) for _ in range(3))
    direct = jnp.asarray(rng.uniform(-1, 1, length))
    expected = jax.jit(plstm1d)(q, k, v, gates, direct)
    on_edges = DagGates(gates.source[dag.tail], gates.transition[dag.tail[dag.line_to]], gates.mark[dag.head])
    actual = jax.jit(fast(dag, method))(q, k, v, on_edges, direct)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_packing_and_padding_change_nothing(x64, outputs_and_gradients, assert_close, method):
    dags = [random_dag(name) for name in ("sparse", "dense", "empty")]
    packed, placement = pack(dags, 16, 34)
    packed = packed.pad(packed.blocks + 1, packed.num_line_edges + 3, 70, 16)
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


def test_numbering_of_nodes_and_order_of_edges_change_nothing(x64):
    dag = random_dag("dense")
    arguments, _ = draw(dag, lead=())
    rng = np.random.default_rng(1)
    name, order = rng.permutation(dag.num_nodes), rng.permutation(dag.num_edges)
    edges = np.stack([name[dag.tail], name[dag.head]], 1)[order]
    other = Dag.from_edges(dag.num_nodes, edges)
    moved = np.argsort(name)
    changed = {key: arguments[key][moved] for key in ("q", "k", "v", "direct")}
    number = {pair: n for n, pair in enumerate(zip(dag.line_from.tolist(), dag.line_to.tolist(), strict=True))}
    lines = [number[pair] for pair in zip(order[other.line_from].tolist(), order[other.line_to].tolist(), strict=True)]
    gates = arguments["gates"]
    changed["gates"] = DagGates(gates.source[order], gates.transition[np.array(lines)], gates.mark[order])
    expected = jax.jit(fast(dag, "auto"))(**arguments)
    np.testing.assert_allclose(jax.jit(fast(other, "auto"))(**changed)[name], expected, rtol=1e-12, atol=1e-12)


def test_one_program_serves_many_graphs():
    compiled = {method: jax.jit(functools.partial(plstm_dag, method=method)) for method in ("levels", "recurrent")}
    for seed in range(2):
        rng = np.random.default_rng(seed)
        edges = [(i, j) for i in range(8) for j in range(i + 1, 8) if rng.random() < 0.3]
        dag = Dag.from_edges(8, edges)
        packed = pack([dag], 8, 28, width=4)[0].pad(1, 40, 20, 8)
        arguments, _ = draw(packed, jnp.float32)
        found = [operator(**arguments, dag=packed) for operator in compiled.values()]
        np.testing.assert_allclose(*found, atol=1e-5)
    assert [operator._cache_size() for operator in compiled.values()] == [1, 1]


@pytest.mark.parametrize(("norm", "shared"), [("l1", "line_from"), ("linf", "line_to")])
def test_normalised_transitions_sum_to_less_than_one(norm, shared):
    dag = random_dag("dense")
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


def test_bounded_transitions_do_not_explode():
    """Equation 4 keeps the sum of a signal over the edges of a front at one or below, whatever the graph."""
    height = 7
    dag, _ = grid_graph(height, height)
    gates = DagGates(
        jnp.where(dag.tail == 0, 0.5, 0.0),
        normalise_transitions(jnp.full(len(dag.line_to), 50.0), dag),
        jnp.ones(dag.num_edges),
    )
    ones = jnp.ones((dag.num_nodes, 1))
    signal = ones * (jnp.arange(dag.num_nodes) == 0)[:, None]
    received = jax.jit(fast(dag, "auto"))(ones, ones, signal, gates, jnp.zeros(dag.num_nodes))[:, 0]
    row, column = np.divmod(np.arange(dag.num_nodes), height)
    fronts = [float(received[row + column == d].sum()) for d in range(1, 2 * height - 1)]
    assert all(0.85 < front <= 1 for front in fronts)


def test_auto_chooses_by_backend_and_size(monkeypatch):
    small, wide = random_dag("sparse").packed, pack([random_dag("sparse")], 600, 300)[0]
    many = pack([random_dag("sparse")], 20, 300)[0]
    choose = lambda: [dag_module._choose(dag, 24 * 24) for dag in (small, wide, many)]  # noqa: E731
    assert choose() == ["levels", "recurrent", "levels"]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert choose() == ["doubling", "recurrent", "recurrent"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": jnp.zeros((2, 12, 4))}, r"q and k .*\(2, 12, 3\).*\(2, 12, 4\)"),
        (
            {name: jnp.zeros((2, 11, 3)) for name in "qkv"} | {"direct": jnp.zeros((2, 11))},
            r"q and k .*N.*\(2, 12, 3\).*\(2, 11, 3\)",
        ),
        ({"v": jnp.zeros((12, 2))}, r"v must .*\(2, 12, 2\).*\(12, 2\)"),
        ({"direct": jnp.zeros((2, 1))}, r"direct must be .*\(2, 12\).*\(2, 1\)"),
        ({"method": "fast"}, r"method .*levels.*'fast'"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    dag = random_dag("sparse")
    arguments, _ = draw(dag, jnp.float32)
    with pytest.raises(ValueError, match=message):
        plstm_dag(**(arguments | change), dag=dag)


@pytest.mark.parametrize("gate", DagGates._fields)
def test_wrong_gates_are_named(gate):
    dag = random_dag("sparse")
    arguments, _ = draw(dag, jnp.float32)
    arguments["gates"] = arguments["gates"]._replace(**{gate: jnp.zeros((2, 99))})
    with pytest.raises(ValueError, match=rf"{gate} must be .*\(2, 99\)"):
        plstm_dag(**arguments, dag=dag)
