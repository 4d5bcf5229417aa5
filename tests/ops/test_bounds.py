"""Bounds of Appendices D.5 and D.7 on random graphs: of states in the L1 norm, of gradients in the L-infinity norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.dag import DagGates, normalise_transitions, plstm_dag_tracking
from plstm.ops.dag.forms import _propagate

from .comparing import draw_dag

DAGS = {"dense": draw_dag(14, 0.5, double=True), "sparse": draw_dag(40, 0.08, seed=2)}


@pytest.mark.parametrize("name", DAGS)
def test_states_and_gradients_of_normalised_transitions_are_bounded(x64, name):
    """Equations 4 and 30: T's powers vanish from the longest path on, and T's L1 norm is at most 1, so that of all
    states is at most the number of edges on that path times that of all sources, and a gradient's largest entry at most
    as many times that of the cotangent."""
    dag = DAGS[name]
    rng = np.random.default_rng(0)
    drawn = jnp.asarray(rng.normal(scale=100, size=(len(dag.line_to), 30)))  # the 0.5 in the divisor hardly counts
    transition = normalise_transitions(drawn.T, dag).T
    source = jnp.asarray(rng.normal(size=(dag.num_edges, 30)))

    def states(transition, source):
        return _propagate(transition, source, dag.packed)

    def sizes(array):  # of each of the 30
        return np.abs(array).sum(0)

    found = sizes(states(transition, source)) / sizes(source)
    assert found.max() <= dag.depth and found.max() > 0.2 * dag.depth**0.5
    cotangent = jnp.asarray(rng.choice([-1.0, 1.0], source.shape))
    gradient = jax.grad(lambda source: (states(transition, source) * cotangent).sum())(source)
    assert 1 < np.abs(gradient).max() <= dag.depth
    assert sizes(states(jnp.abs(transition), jnp.abs(source))).max() <= dag.depth * sizes(source).max()
    assert (sizes(states(5 * jnp.abs(transition), jnp.abs(source))) / sizes(source)).max() > dag.depth  # the premise


def test_spectral_norms_bound_states_and_gradients_of_matrices(x64):
    """D.7: as above with the largest singular values of the transitions, and Euclidean norms of states."""
    dag = draw_dag(8, 0.5)
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(len(dag.line_to), 3, 3))
    sums = np.zeros(dag.num_edges)
    np.add.at(sums, dag.line_from, np.linalg.norm(matrix, ord=2, axis=(1, 2)))
    matrix = matrix / sums[dag.line_from][:, None, None]
    source = rng.normal(size=(dag.num_edges, 3, 1, 1))
    mark = np.broadcast_to(np.eye(3)[:, None], (dag.num_edges, 3, 1, 3))
    ones = jnp.ones((dag.num_nodes, 1, 1))
    direct = jnp.zeros((dag.num_nodes, 3, 1, 1, 1))

    @jax.jit
    def read(source, matrix):  # [N, 3]: the sum of the states that enter a node
        gates = DagGates(source, matrix, jnp.asarray(mark))
        return plstm_dag_tracking(ones, ones, ones, gates, direct, dag)[:, 0]

    def total(array):
        return np.linalg.norm(np.asarray(array).reshape(len(array), 3), axis=1).sum()

    assert total(read(source, matrix)) <= dag.depth * total(source)
    cotangent = rng.normal(size=(dag.num_nodes, 3))
    cotangent /= np.linalg.norm(cotangent, axis=1, keepdims=True)
    gradient = jax.grad(lambda source: (read(source, matrix) * cotangent).sum())(jnp.asarray(source))
    assert 1 < np.linalg.norm(gradient[:, :, 0, 0], axis=1).max() <= dag.depth
    assert total(read(source, 20 * matrix)) > dag.depth * total(source)  # the bound needs its premise
