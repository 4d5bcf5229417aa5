"""Batches of graphs: every node, edge and line edge in its place, in few shapes."""

import numpy as np
import pytest

from data.graphs import tudataset
from plstm.tasks import graphs as graph_batches
from plstm.tasks.graphs import GraphBatches

TOY = tudataset.read_tudataset("TOY", tudataset.TOY)


def graphs_of(batch, graphs):
    """What a batch says of each of its graphs: features, degrees, and edges by the features of their ends."""
    rows = [np.flatnonzero(batch["graph"] == g) for g in range(graphs)]
    found = [[batch["features"][r], batch["degree"][r], set()] for r in rows]
    start = 0
    for dag in batch["dags"]:
        for tail, head in zip(start + dag.tail[dag.edge_mask], start + dag.head[dag.edge_mask], strict=True):
            owner = batch["graph"][tail]
            assert owner == batch["graph"][head]
            found[owner][2].add((int(tail - rows[owner][0]), int(head - rows[owner][0])))
        start += dag.num_nodes
    assert start == len(batch["graph"])
    return found


@pytest.mark.parametrize("small", [128, 6, 1])
def test_a_batch_holds_its_graphs(monkeypatch, small):
    """With all graphs in blocks, the larger ones in a block of their own, and all in one block."""
    monkeypatch.setattr(graph_batches, "SMALL", small)
    source = GraphBatches(TOY, 16)
    indices = np.random.default_rng(0).permutation(40)[:11]
    batch = source.batch(indices)
    assert len(batch["dags"]) == (2 if small == 6 else 1)
    assert batch["mask"].tolist() == [True] * 11 + [False] * 5
    np.testing.assert_array_equal(batch["label"], np.pad(TOY.labels[indices], (0, 5)))
    np.testing.assert_array_equal(batch["nodes"], np.pad(np.diff(TOY.node_start)[indices], (0, 5)))
    found = graphs_of(batch, 16)
    for g, (features, degree, edges) in zip(indices, found, strict=False):
        nodes, expected = TOY.graph(g)
        np.testing.assert_array_equal(features, TOY.features[TOY.node_start[g] :][:nodes])
        np.testing.assert_array_equal(degree, np.bincount(expected.ravel(), minlength=nodes))
        assert edges == {tuple(edge) for edge in expected.tolist()}
    padding = batch["graph"] == 16
    assert not batch["features"][padding].any() and not batch["degree"][padding].any()


def test_an_epoch_holds_every_graph_once_in_few_shapes():
    source, shapes = GraphBatches(TOY, 16), set()
    for seed in range(20):
        order, labels = np.random.default_rng(seed).permutation(40), []
        for batch in (source.batch(order[start : start + 16]) for start in range(0, 40, 16)):
            (dag,) = batch["dags"]
            shapes.add((dag.blocks, dag.num_edges, dag.num_line_edges, dag.schedule.shape, dag.depth))
            assert dag.schedule.shape == dag.reverse_schedule.shape
            labels += batch["label"][batch["mask"]].tolist()
        assert labels == TOY.labels[order].tolist()
    assert len(shapes) <= 3
