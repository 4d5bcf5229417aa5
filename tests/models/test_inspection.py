"""Gate statistics and gating patterns against a walk through the blocks by hand."""

import jax
import numpy as np
import pytest
from flax import nnx

from plstm.models import build_model
from plstm.models.vision import gate_statistics, gating_patterns
from plstm.ops.grid.oracle import gating_matrix_oracle
from tests.models.vision_models import MODELS, draw_images, filled, tiny

IMAGES = draw_images(batch=2)


@pytest.fixture(scope="module")
def model():
    return filled(tiny(depth=4))


@pytest.fixture(scope="module")
def layer_gates(model):
    """Each layer's gates, by running the layers before it."""
    x, found = model.embed(IMAGES), []
    for block in model.blocks():
        found.append(block.mixer.gates(block.mixer_norm(x)))
        x = block(x)
    return found


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
    found = jax.jit(lambda image: gating_patterns(model, image, (row, column)))(IMAGES[0])
    assert {mode: int(n) for mode, (n, _) in found.items()} == {"P": 0, "D": 1}
    gates = jax.tree.map(lambda *layers: np.stack([layer[0] for layer in layers]), *layer_gates[:2])
    expected = np.asarray(jax.jit(gating_matrix_oracle)(gates))[:, :, row, column]
    for mode, oracle in zip("PD", expected, strict=True):
        pattern = found[mode][1]
        assert pattern.shape == (2, 4, 4) and pattern[0, row, column] == 0
        np.testing.assert_allclose(pattern, oracle, rtol=1e-4, atol=1e-5 * np.abs(oracle).max())


def test_attention_has_no_gates():
    model = filled(tiny(**MODELS["ViT"]))
    assert jax.eval_shape(lambda images: gate_statistics(model, images), IMAGES) == {}
    assert jax.eval_shape(lambda image: gating_patterns(model, image, (0, 0)), IMAGES[0]) == {}


def test_the_program_of_the_statistics_does_not_grow_with_the_depth():
    """The blocks are scanned over, and not written one after another."""

    def lines(depth: int) -> int:
        graphdef, params = nnx.split(nnx.eval_shape(lambda: build_model(tiny(depth=depth), 0)))
        program = jax.jit(lambda params, images: gate_statistics(nnx.merge(graphdef, params), images))
        return program.lower(params, IMAGES).as_text().count("\n")

    shallow, deep = lines(6), lines(18)  # a stack of at most two groups of blocks is unrolled
    assert deep < 1.3 * shallow
