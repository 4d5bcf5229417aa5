"""pLSTM on a graph by parts (Appendices D.1 and D.2): the gates of parts against sums over paths, the whole against the
recurrence."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.dag import DagGates, plstm_dag_by_parts
from plstm.ops.dag.forms import by_doubling
from plstm.ops.dag.parts import cut, part_gates

from .comparing import check, check_bfloat16, draw_dag
from .test_dag import DAGS, draw, oracle
from .test_grid import longest_chain

DAGS = DAGS | {"long": draw_dag(23, 0.12, seed=1)}


@functools.cache
def by_parts(dag, parts, scale=None):
    return functools.partial(plstm_dag_by_parts, dag=dag, parts=parts, scale=scale)


@pytest.mark.parametrize(
    ("name", "parts"), [("dense", 1), ("dense", 3), ("sparse", 5), ("sparse", 12), ("long", 4), ("empty", 2)]
)
def test_values_and_gradients_in_float64(x64, name, parts):
    check(by_parts(DAGS[name], parts), oracle(DAGS[name]), *draw(DAGS[name]), 1e-12)


def test_float32_with_bfloat16_inputs():
    dag = DAGS["dense"]
    check_bfloat16(by_parts(dag, 3, 1.0), oracle(dag, 1.0), *draw(dag, jnp.float32), 3e-2)


def walk_part(dag, gates, inside, edge) -> dict[int, float]:
    """From a signal of 1 on an edge: what each edge receives over paths whose nodes are all inside."""
    received = {edge: 1.0}
    if inside[dag.head[edge]]:
        for line in np.flatnonzero(dag.line_from == edge):
            for end, weight in walk_part(dag, gates, inside, dag.line_to[line]).items():
                received[end] = received.get(end, 0.0) + weight * gates.transition[line]
    return received


def test_gates_of_a_part_are_sums_over_the_paths_inside(x64):
    """Equations 10 to 12."""
    dag = DAGS["long"]
    gates = jax.tree.map(np.asarray, draw(dag, lead=())[0]["gates"])
    parts = cut(dag, 4)
    found = part_gates(DagGates(*(gate[:, None] for gate in gates)), parts)
    part_of = parts.node // parts.nodes
    edge = np.arange(dag.num_edges)
    from_nodes = np.zeros((dag.num_nodes, dag.num_edges))
    from_nodes[dag.tail, edge] = gates.source
    into_nodes = np.zeros((dag.num_edges, dag.num_nodes))
    into_nodes[edge, dag.head] = gates.mark
    for part in range(4):
        inside = part_of == part
        received = np.zeros((dag.num_edges, dag.num_edges))
        for e in edge:
            for end, weight in walk_part(dag, gates, inside, e).items():
                received[e, end] = weight
        entering = received[~inside[dag.tail] & inside[dag.head]]
        leaving = inside[dag.tail] & ~inside[dag.head]
        nodes = np.flatnonzero(inside)[np.argsort(parts.node[inside])]
        source, into = from_nodes[nodes], into_nodes[:, nodes]
        expected = source @ received[:, leaving], entering[:, leaving], entering @ into, source @ received @ into
        for matrix, own in zip(found, expected, strict=True):
            padded = np.zeros_like(matrix[part, 0])
            padded[: own.shape[0], : own.shape[1]] = own
            np.testing.assert_allclose(matrix[part, 0], padded, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("parts", [0, 13])
def test_a_number_of_parts_that_is_none_is_named(parts):
    with pytest.raises(ValueError, match=f"parts must be from 1 to 12, the number of nodes; got {parts}"):
        by_parts(DAGS["sparse"], parts)(**draw(DAGS["sparse"], jnp.float32)[0])


def test_parts_take_less_memory_and_fewer_products_in_sequence_than_doubling():
    """On a grid of 12 x 12 nodes in 9 parts: the largest array, the multiplications and the longest chain of products
    before the recurrence between parts."""
    y, x = np.indices((12, 12)).reshape(2, -1)
    pairs = [(a, b) for a in range(144) for b in range(144) if (y[b] - y[a], x[b] - x[a]) in ((0, 1), (1, 0))]
    dag = draw_dag(2, 1.0).from_edges(144, pairs)
    gates = DagGates(jnp.ones((264, 1)), jnp.ones((len(dag.line_to), 1)), jnp.ones((264, 1)))
    parts = cut(dag, 9)
    programs = [jax.make_jaxpr(lambda gates: part_gates(gates, parts))(gates).jaxpr]
    programs += [jax.make_jaxpr(lambda gates: by_doubling(gates, dag.packed))(gates).jaxpr]
    largest = [max(math.prod(x.aval.shape) for line in program.eqns for x in line.outvars) for program in programs]
    chains = [max(longest_chain(program, [0] * 3)) for program in programs]
    assert (largest, chains) == ([17_424, 69_696], [5, 7])
