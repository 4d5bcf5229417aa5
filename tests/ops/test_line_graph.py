"""Graphs as operators need them: line graph, levels, multitree, packing; against brute force."""

import numpy as np
import pytest

from plstm.ops.dag import Dag, pack

from .comparing import draw_dag


def line_adjacency(dag: Dag, keep=slice(None)) -> np.ndarray:
    """Whole numbers [E, E], from row to column."""
    matrix = np.zeros((dag.num_edges, dag.num_edges), int)
    matrix[dag.line_from[keep], dag.line_to[keep]] = 1
    return matrix


def count_paths(step: np.ndarray) -> np.ndarray:
    """Paths of at least one step between every two nodes of a nilpotent adjacency matrix."""
    total, power = step.copy(), step
    while power.any():
        power = power @ step
        total += power
    return total


@pytest.mark.parametrize(("nodes", "share"), [(1, 0.0), (9, 0.3), (12, 0.6)])
def test_line_graph_and_levels(nodes, share):
    dag = draw_dag(nodes, share)
    edges = list(zip(dag.tail.tolist(), dag.head.tolist(), strict=True))
    expected = [(e, f) for f in range(len(edges)) for e in range(len(edges)) if edges[e][1] == edges[f][0]]
    assert list(zip(dag.line_from.tolist(), dag.line_to.tolist(), strict=True)) == expected
    assert all(dag.rank[tail] < dag.rank[head] for tail, head in edges)

    powers = [np.eye(len(edges), dtype=int)]
    while powers[-1].any():
        powers.append(powers[-1] @ line_adjacency(dag))
    assert dag.depth == len(powers) - 1  # T^depth = 0, and no smaller power is
    for ends, axis in ((dag.level, 0), (dag.height, 1)):
        longest = [sum(power.any(axis=axis)[e] for power in powers) for e in range(len(edges))]
        assert ends.tolist() == longest


@pytest.mark.parametrize("seed", range(6))
def test_pruning_leaves_one_path_and_no_line_edge_too_few(seed):
    dag = draw_dag(11, 0.45, seed)
    for graph in (dag, dag.reverse()):
        kept = line_adjacency(graph, graph.multitree)
        assert count_paths(kept).max() == 1
        assert 0 < kept.sum() < len(graph.line_to)
        for line in np.flatnonzero(~graph.multitree):
            more = kept.copy()
            more[graph.line_from[line], graph.line_to[line]] = 1
            assert count_paths(more).max() > 1


def test_pruning_visits_predecessors_earliest_first():
    # Two ways from 0 -> 1 to 3 -> 4; where they meet, the one that is pruned comes from the later node.
    dag = Dag.from_edges(5, [(0, 1), (1, 2), (1, 3), (2, 3), (3, 4)])
    pruned = np.flatnonzero(~dag.multitree)
    assert [(int(dag.line_from[n]), int(dag.line_to[n])) for n in pruned] == [(3, 4)]
    turned = dag.reverse()
    pruned = np.flatnonzero(~turned.multitree)
    assert [(int(turned.line_from[n]), int(turned.line_to[n])) for n in pruned] == [(1, 0)]


def test_reverse():
    dag = draw_dag(11, 0.45)
    twice = dag.reverse().reverse()
    for name, value in vars(dag).items():
        np.testing.assert_array_equal(getattr(twice, name), value, err_msg=name)

    # Built anew from the turned edges, nodes numbered by their place in the reversed order.
    place = dag.num_nodes - 1 - dag.rank
    built, turned = Dag.from_edges(dag.num_nodes, np.stack([place[dag.head], place[dag.tail]], 1)), dag.reverse()
    np.testing.assert_array_equal(built.level, turned.level)
    np.testing.assert_array_equal(built.height, turned.height)
    lines = [
        sorted(zip(graph.line_from.tolist(), graph.line_to.tolist(), graph.multitree.tolist(), strict=True))
        for graph in (built, turned)
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (5, [(0, 1), (1, 2), (2, 4), (4, 1), (0, 3)], r"cycle: (1 -> 2 -> 4 -> 1|2 -> 4 -> 1 -> 2|4 -> 1 -> 2 -> 4)"),
        (3, [(0, 1), (2, 2)], r"cycle: 2 -> 2"),
        (3, [(0, 1), (1, 3)], r"edge 1, 1 -> 3: nodes are numbered from 0 to 2"),
        (3, [(0, 1, 2)], r"edges must be integers \[E, 2\]"),
        (3, [(0.0, 1.0)], r"edges must be integers \[E, 2\]"),
        (0, [], r"num_nodes must be at least 1"),
    ],
)
def test_wrong_graphs_are_named(nodes, edges, message):
    with pytest.raises(ValueError, match=message):
        Dag.from_edges(nodes, edges)


def test_packing_refuses_what_does_not_fit():
    dag = draw_dag(7, 0.4)
    with pytest.raises(ValueError, match="7 nodes"):
        pack([dag], 6, 40)
    with pytest.raises(ValueError, match="width=0: must be at least 1"):
        pack([dag], 7, 40, width=0)
    packed, _ = pack([dag], 7, 40)
    with pytest.raises(ValueError, match="cannot pad"):
        packed.pad(1, packed.num_line_edges - 1, 70, packed.depth)
