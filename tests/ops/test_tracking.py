"""State tracking on graphs and grids (Appendices D.6 and D.7): scalars are the operator without it, and the rows of a
grid are the recurrence on its graph."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.dag import Dag, DagGates, plstm_dag_oracle, plstm_dag_tracking
from plstm.ops.grid import GridGates, plstm2d_tracking
from plstm.ops.grid.gates import mirror
from plstm.ops.sequence import plstm1d_tracking

from .comparing import check, draw_dag
from .test_recurrences import draw_tracking

SIZES = dict(o=2, q=3, k=2, v=4, t=3)


def draw(nodes: tuple[int, ...], gates: dict, lead=(), sizes=None):
    """Arguments of a tracking operator, gates by their name and count: s, t, m; and the output's cotangent."""
    rng = np.random.default_rng(0)
    j = sizes or SIZES
    kinds = {"s": (j["t"], j["k"], j["v"]), "t": (j["t"], j["t"]), "m": (j["o"], j["q"], j["t"])}
    arguments = {name: rng.normal(size=(*lead, *nodes, 3, j[name])) for name in "qk"}
    arguments |= {"v": rng.normal(size=(*lead, *nodes, 2, j["v"]))}
    arguments |= {"direct": rng.normal(size=(*lead, *nodes, j["o"], j["q"], j["k"], j["v"]))}
    drawn = {name: rng.normal(size=(*lead, *shape, *kinds[name[0]])) / 2 for name, shape in gates.items()}
    return jax.tree.map(jnp.asarray, (arguments, drawn, rng.normal(size=(*lead, *nodes, 2, j["o"]))))


def draw_on(dag: Dag, lead=(), sizes=None):
    shapes = {"source": (dag.num_edges,), "transition": (len(dag.line_to),), "mark": (dag.num_edges,)}
    arguments, gates, cotangent = draw((dag.num_nodes,), shapes, lead, sizes)
    return arguments | {"gates": DagGates(**gates)}, cotangent


def draw_on_grid(height: int, width: int, lead=()):
    arguments, gates, cotangent = draw((height, width), dict.fromkeys(GridGates._fields, (4, height, width)), lead)
    return arguments | {"gates": GridGates(**gates)}, cotangent


def test_scalars_on_a_graph_are_the_operator_without_tracking(x64):
    dag = draw_dag(9, 0.4, double=True)
    arguments, _ = draw_on(dag, (2,), dict.fromkeys(SIZES, 1))
    q, k, v = (arguments[name][..., 0] for name in "qkv")
    source, transition, mark = arguments["gates"]
    gates = DagGates(source[..., 0, 0, 0], transition[..., 0, 0], mark[..., 0, 0, 0])
    expected = plstm_dag_oracle(q, k, v, gates, arguments["direct"][..., 0, 0, 0, 0], dag)
    found = jax.jit(functools.partial(plstm_dag_tracking, dag=dag))(**arguments)
    np.testing.assert_allclose(found[..., 0], expected, rtol=1e-12, atol=1e-12)


def test_a_chain_is_the_sequence_operator(x64):
    arguments, _ = draw_tracking(6, jnp.float64)
    dag = Dag.from_edges(6, [(n, n + 1) for n in range(5)])
    gates = DagGates(arguments["source"][:, :-1], arguments["transition"][:, 1:-1], arguments["mark"][:, 1:])
    on_nodes = {name: arguments[name] for name in ("q", "k", "v", "direct")}
    expected = plstm1d_tracking(**arguments, method="recurrent")
    found = jax.jit(functools.partial(plstm_dag_tracking, dag=dag))(**on_nodes, gates=gates)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def grid_dag(height: int, width: int) -> Dag:
    """The right-down direction: edges to the right, then those down."""
    node = np.arange(height * width).reshape(height, width)
    pairs = [node[:, :-1], node[:, 1:]], [node[:-1], node[1:]]
    return Dag.from_edges(node.size, np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in pairs]))


def on_graph(q, k, v, gates, direct):
    """`plstm2d_tracking` by the recurrence on the grid's graph, a direction at a time."""
    height, width = q.shape[-4:-2]
    dag = grid_dag(height, width)
    axis = q.ndim - 4
    is_down = np.arange(dag.num_edges) >= height * (width - 1)
    from_down, to_down, middle = is_down[dag.line_from], is_down[dag.line_to], dag.tail[dag.line_to]
    turned = [mirror([x] * 4, rows=(axis,), columns=(axis + 1,)) for x in (q, k, v, jnp.zeros_like(direct))]
    total = [mirror(jnp.moveaxis(gate, axis, 0), rows=(axis,), columns=(axis + 1,)) for gate in gates]
    outputs = []
    for direction in range(4):
        nodes = [jax.lax.collapse(x[direction], axis, axis + 2) for x in turned]
        g = GridGates(*(jnp.moveaxis(jax.lax.collapse(gate[direction], axis, axis + 2), axis, 0) for gate in total))

        def pick(choice, down, right):
            return jnp.where(choice.reshape(-1, *(1,) * (down.ndim - 1)), down, right)

        source = pick(is_down, g.s_d[dag.tail], g.s_r[dag.tail])
        mark = pick(is_down, g.m_u[dag.head], g.m_l[dag.head])
        to_right = pick(from_down, g.t_ru[middle], g.t_rl[middle])
        transition = pick(to_down, pick(from_down, g.t_du[middle], g.t_dl[middle]), to_right)
        edges = DagGates(*(jnp.moveaxis(gate, 0, axis) for gate in (source, transition, mark)))
        hidden = plstm_dag_tracking(*nodes[:3], edges, nodes[3], dag)
        outputs.append(hidden.reshape(*hidden.shape[:axis], height, width, *hidden.shape[-2:]))
    own = jnp.einsum("...aj,...ojkl,...ak,...vl->...vo", q * q.shape[-2] ** -0.5, direct, k, v)
    return sum(mirror(outputs, rows=(axis,), columns=(axis + 1,))) + own


@pytest.mark.parametrize(
    "shape", [(2, 2, 3), (1, 1), *(pytest.param(line, marks=pytest.mark.slow) for line in [(1, 3), (3, 1)])]
)
def test_rows_of_a_grid_are_the_recurrence_on_its_graph(x64, shape):
    *lead, height, width = shape
    check(plstm2d_tracking, on_graph, *draw_on_grid(height, width, tuple(lead)), 1e-11)
