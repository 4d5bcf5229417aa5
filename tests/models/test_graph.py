"""Graph models: layers against dense formulas, and what must not change a graph's logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import expit

from plstm.models import GraphConfig, build_model
from plstm.models.graph import GAT, GCN, GIN, KINDS, MPNN, LSTMCell, neighbourhood
from plstm.nn.layers import sinusoids
from plstm.tasks.graphs import GraphBatches
from tests.tasks.test_graph_batches import TOY

FEATURES = TOY.features.shape[1]
SOURCE = GraphBatches(TOY, 8)


def small(kind: str, **options) -> nnx.Module:
    """A small model, every parameter and running statistic drawn at random."""
    sizes = {"depth": 4, "heads": 2, "mlp_ratio": 2} if kind == "plstm" else {"depth": 2}
    config = GraphConfig(kind=kind, dim=8, **(sizes | options))
    graphdef, state = nnx.split(nnx.eval_shape(lambda: build_model(config, 0, {"features": FEATURES, "classes": 2})))
    rng = np.random.default_rng(0)
    drawn = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(-0.6, 0.6, leaf.shape), leaf.dtype), state)
    model = nnx.merge(graphdef, drawn)
    for norm in (module for _, module in nnx.iter_graph(model) if isinstance(module, nnx.BatchNorm)):
        norm.var[...] = jnp.abs(norm.var[...]) + 0.5
    return model


def run(module: nnx.Module, *arguments, **options):
    """Its result, in one compiled program that leaves its state alone."""
    graphdef, state = nnx.split(module)
    return jax.jit(lambda state, arguments: nnx.merge(graphdef, state, copy=True)(*arguments, **options))(
        state, arguments
    )


def logits(model: nnx.Module, batch) -> np.ndarray:
    """Of the real graphs of a batch."""
    return np.asarray(run(model, batch))[batch["mask"]]


@pytest.mark.parametrize("kind", KINDS)
def test_company_and_padding_change_no_logits(kind):
    model = small(kind)
    indices = np.arange(5, 13)
    together = logits(model, SOURCE.batch(indices))
    assert np.abs(together - together.mean(0)).max() > 1e-3
    for place in (0, 6):
        alone = logits(model, SOURCE.batch(indices[place : place + 1]))
        np.testing.assert_allclose(alone[0], together[place], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(logits(model, SOURCE.batch(indices[::-1])), together[::-1], rtol=2e-4, atol=2e-5)


def test_plstm_goes_along_the_graph_and_back():
    model, g = small("plstm"), int(np.diff(TOY.edge_start).argmax())
    dag, rows = SOURCE.dags[g], slice(TOY.node_start[g], TOY.node_start[g + 1])
    degree = jnp.asarray(SOURCE.degree[rows])

    @jax.jit
    def written_out(features):
        x = features @ model.encoder.kernel[...] + model.encoder.bias[...]
        x = x + sinusoids(degree, x.shape[1])
        e = (x[dag.tail] + x[dag.head]) / 2
        for n, block in enumerate(model.blocks):
            x = x + block.mixer(block.mixer_norm(x), e, (dag.reverse() if n in (2, 3) else dag).packed)
            x = x + block.mlp(block.mlp_norm(x))
        return model.readout.out(model.readout(x.mean(0)[None]))

    np.testing.assert_allclose(logits(model, SOURCE.batch([g])), written_out(TOY.features[rows]), rtol=2e-4, atol=2e-5)


def dense_graph(batch):
    """The adjacency matrix of a batch's rows, and which rows are nodes."""
    (dag,) = batch["dags"]
    adjacency = np.zeros((dag.num_nodes, dag.num_nodes), np.float32)
    for tail, head in zip(dag.tail[dag.edge_mask], dag.head[dag.edge_mask], strict=True):
        adjacency[tail, head] = adjacency[head, tail] = 1
    return adjacency, batch["graph"] < len(batch["label"])


def weight(linear) -> np.ndarray:
    return np.asarray(linear.kernel[...])


def by_formula(layer, h, adjacency, real):
    """A layer's output as its paper writes it, with the whole adjacency matrix."""
    if isinstance(layer, GCN):
        own = adjacency + np.eye(len(h))
        scale = 1 / np.sqrt(own.sum(1))
        return np.maximum((scale[:, None] * own * scale) @ h @ weight(layer.linear) + layer.bias[...], 0)
    if isinstance(layer, GAT):
        z = h @ weight(layer.linear)
        sender, receiver = (z @ np.asarray(layer.weight[...])).T
        scores = receiver[:, None] + sender[None]
        scores = np.where(scores > 0, scores, 0.2 * scores)
        scores = np.where((adjacency + np.eye(len(h))) > 0, scores, -np.inf)
        return np.maximum(nnx.softmax(scores) @ z + layer.bias[...], 0)
    if isinstance(layer, MPNN):
        mean = adjacency @ h / np.maximum(adjacency.sum(1), 1)[:, None]
        return np.maximum(h @ weight(layer.own) + layer.own.bias[...] + mean @ weight(layer.neighbour), 0)
    normal = lambda x, norm: (x - x[real].mean(0)) / np.sqrt(x[real].var(0) + 1e-5) * norm.scale[...] + norm.bias[...]  # noqa: E731
    z = (h + adjacency @ h) @ weight(layer.up) + layer.up.bias[...]
    z = np.maximum(normal(z, layer.inner_norm), 0) @ weight(layer.down) + layer.down.bias[...]
    return np.maximum(normal(z, layer.norm), 0)


@pytest.mark.parametrize("make", [GAT, GCN, GIN, MPNN, LSTMCell])
def test_layers_are_their_formulas(make):
    batch = SOURCE.batch(np.arange(6))
    adjacency, real = dense_graph(batch)
    layer = make(5, nnx.Rngs(0))
    h, c = np.random.default_rng(0).normal(size=(2, len(real), 5)).astype(np.float32)
    if make is LSTMCell:
        actual = run(layer, h, c, neighbourhood(batch))
        np.testing.assert_allclose(actual, lstm_by_formula(layer, h, c, adjacency), atol=1e-5)
    else:
        training = {"train": True} if make is GIN else {}
        actual = run(layer, h, neighbourhood(batch), **training)
        np.testing.assert_allclose(np.asarray(actual)[real], by_formula(layer, h, adjacency, real)[real], atol=2e-5)


def lstm_by_formula(cell, h, c, adjacency):
    mean = adjacency @ h / np.maximum(adjacency.sum(1), 1)[:, None]
    gates = h @ weight(cell.own) + cell.own.bias[...] + mean @ weight(cell.neighbour)
    enter, keep, new, read = np.split(np.asarray(gates), 4, axis=1)
    memory = expit(keep) * c + expit(enter) * np.tanh(new)
    return expit(read) * np.tanh(memory), memory


def sums_of(nodes, batch) -> np.ndarray:
    """Over the nodes of each real graph: [N, dim] -> [graphs, dim]."""
    return np.stack([nodes[batch["graph"] == n].sum(0) for n in range(batch["mask"].sum())])


@pytest.mark.parametrize("pooled", ["tanh_c", "h"])
def test_the_lstm_gnn_sums_tanh_of_its_memory_or_its_state(pooled):
    model, batch = small("lstm", lstm_pool=pooled), SOURCE.batch(np.arange(6))
    adjacency, _ = dense_graph(batch)
    c = np.asarray(batch["features"] @ model.encoder.kernel[...] + model.encoder.bias[...])
    h = np.zeros_like(c)
    for _ in range(2):
        h, c = lstm_by_formula(model.cell, h, c, adjacency)
    sums = sums_of(np.tanh(c) if pooled == "tanh_c" else h, batch)
    expected = model.readout.out(model.readout(jnp.asarray(sums)))
    np.testing.assert_allclose(logits(model, batch), expected, rtol=2e-4, atol=2e-5)


def test_a_training_pass_of_gin_adds_up_readouts_of_all_depths_and_moves_its_statistics():
    model, batch = small("gin"), SOURCE.batch(np.arange(6))
    graphdef, state = nnx.split(model)

    @jax.jit
    def train(state, batch):
        model = nnx.merge(graphdef, state, copy=True)
        logits = model(batch, key=jax.random.key(0))
        return logits, model.layers[0].inner_norm.mean[...], model.layers[0].inner_norm.var[...]

    found, mean, variance = train(state, batch)
    adjacency, real = dense_graph(batch)
    h = np.asarray(batch["features"] @ model.encoder.kernel[...] + model.encoder.bias[...])
    first = model.layers[0]
    z = ((h + adjacency @ h) @ weight(first.up) + first.up.bias[...])[real]
    np.testing.assert_allclose(mean, 0.9 * first.inner_norm.mean[...] + 0.1 * z.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, 0.9 * first.inner_norm.var[...] + 0.1 * z.var(0), rtol=1e-4, atol=1e-5)
    expected = model.readouts[0](sums_of(h, batch))
    for layer, readout in zip(model.layers, model.readouts[1:], strict=True):
        h = by_formula(layer, h, adjacency, real)
        expected = expected + readout(sums_of(h, batch))
    np.testing.assert_allclose(found[batch["mask"]], expected, rtol=2e-4, atol=2e-4)


def test_layers_alternate_modes_and_directions():
    blocks = small("plstm", depth=6).blocks
    assert "".join(block.mixer.mode for block in blocks) == "PDPDPD"
    assert [block.reverse for block in blocks] == [False, False, True, True, False, False]
    pruned = small("plstm", depth=4, reverse_p="pruned").blocks
    assert [block.mixer.pruned for block in pruned] == [False, True, True, True]
    assert [block.mixer.pruned for block in blocks[:4]] == [False, True, False, True]
