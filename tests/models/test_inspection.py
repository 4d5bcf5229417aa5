"""Gate statistics and gating patterns against a walk through the blocks by hand."""

import jax
import numpy as np
import pytest

from plstm.models.vision import gate_statistics
from plstm.ops.grid import gating_matrix_oracle
from plstm.runs.pictures import capture_flow
from tests.models.vision_models import MODELS, draw_images, filled, tiny

IMAGES = draw_images(batch=2)


@pytest.fixture(scope="module")
def model():
    return filled(tiny(depth=4))


@pytest.fixture(scope="module")
def layer_gates(model):
    """Each layer's gates, by running the layers before it."""

    @jax.jit
    def run(images):
        x, found = model.embed(images), []
        for block in model.blocks():
            found.append(block.mixer.gates(block.mixer_norm(x)))
            x = block(x)
        return found

    return run(IMAGES)


def test_statistics_are_the_means_of_each_layer(model, layer_gates):
    statistics = jax.jit(lambda images: gate_statistics(model, images))(IMAGES)
    expected = {}
    for n, (mode, gates) in enumerate(zip("PDPD", layer_gates, strict=True)):
        for name, gate in gates._asdict().items():
            expected[f"gates/layer{n:02d}_{mode}/{name}"] = np.mean(gate)
            if name.startswith("t_"):
                expected[f"gates/layer{n:02d}_{mode}/{name}_magnitude"] = np.mean(np.abs(gate))
    assert statistics.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(statistics[name], value, atol=1e-5, err_msg=name)
    assert statistics["gates/layer01_D/t_ru"] == 0


def test_patterns_are_what_a_node_passes_on(model, layer_gates):
    row, column = 1, 3
    found = capture_flow(model, IMAGES[0], (row, column), 4)
    assert [mode for mode, _ in found] == list("PDPD")
    gates = jax.tree.map(lambda *layers: np.stack([layer[0] for layer in layers]), *layer_gates)
    expected = np.asarray(jax.jit(gating_matrix_oracle)(gates))[:, :, row, column]
    for (_, pattern), oracle in zip(found, expected, strict=True):
        assert pattern.shape == (2, 4, 4) and pattern[0, row, column] == 0
        np.testing.assert_allclose(pattern, oracle, rtol=1e-4, atol=1e-5 * np.abs(oracle).max())


def test_a_node_passes_on_what_the_others_attend_to():
    model, (row, column) = filled(tiny(**MODELS["ViT"])), (1, 3)
    found = capture_flow(model, IMAGES[0], (row, column), 1)
    block, x = next(model.blocks()), model.embed(IMAGES[:1])
    query, key, value = block.mixer.qkv(block.mixer_norm(x))
    weights = np.zeros((1, 16, 2, 17))  # of the 16 nodes, after the class token
    for target, head in np.ndindex(16, 2):
        scores = np.exp(np.asarray(key[0, :, head] @ query[0, target + 1, head]) / np.sqrt(query.shape[-1]))
        weights[0, target, head] = scores / scores.sum()
    source = weights[0, :, :, 1 + 4 * row + column]
    assert [mode for mode, _ in found] == ["attention"]
    np.testing.assert_allclose(found[0][1], source.T.reshape(2, 4, 4), rtol=1e-5)
    by_weights = np.einsum("bnts,bsnd->btnd", block.mixer.weights(block.mixer_norm(x)), value).reshape(x.shape)
    np.testing.assert_allclose(block.mixer.out(by_weights), block.mixer(block.mixer_norm(x)), atol=1e-5)


def test_attention_has_no_gates():
    model = filled(tiny(**MODELS["ViT"]))
    assert jax.eval_shape(lambda images: gate_statistics(model, images), IMAGES) == {}
