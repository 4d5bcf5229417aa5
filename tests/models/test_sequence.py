"""Token layers and models: published values, parameter counts, causality, rotations."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import expit

from plstm.models import build_model, named_variables
from plstm.models.sequence import SequenceConfig
from plstm.nn.sequence import (
    MLSTM,
    SLSTM,
    CausalAttention,
    GatedDeltaNet,
    GatedMLP,
    Mamba2,
    MLSTMLarge,
    TrackingPLSTM,
    rotation,
)
from tests.drawing import normal, sines, wave

# The parameters of each layer in the order in which the golden values number them; those with a plus are 1 + p.
PARAMETERS = {
    "mlstm": "up.kernel conv.weight conv.bias q.weight k.weight v.weight input_gate.kernel input_gate.bias "
    "forget_gate.kernel forget_gate.bias norm_scale+ skip+ down.kernel",
    "slstm": "conv.weight conv.bias gates.0.weight gates.1.weight gates.2.weight gates.3.weight weight bias "
    "norm_scale+",
    "mamba2": "project.kernel conv.weight conv.bias step_bias a_log skip+ norm_scale+ out.kernel",
    "gdn": "q.kernel k.kernel v.kernel decay.kernel beta.kernel a_log step_bias convs.0.weight convs.1.weight "
    "convs.2.weight gate.kernel norm_scale+ out.kernel",
    "plstm": "conv.weight conv.bias q.kernel k.kernel v.kernel before.kernel before.bias after.kernel after.bias "
    "eigenvalues.kernel eigenvalues.bias source.kernel source.bias mark.kernel mark.bias direct norm_scale+ "
    "gate.kernel out.kernel",
}
PARAMETERS["gdn_negative"] = PARAMETERS["gdn"]


def fill(module: nnx.Module, names: list[str]) -> nnx.Module:
    """`sines` in order, and one more in the names with a plus."""
    variables = named_variables(nnx.state(module, nnx.Param))
    assert {name.rstrip("+") for name in names} == set(variables)
    filled = [variables[name.rstrip("+")] for name in names]
    for name, variable, values in zip(names, filled, sines(*(leaf.shape for leaf in filled)), strict=True):
        variable.set_value(values + name.endswith("+"))
    nnx.update(module, nnx.from_flat_state({tuple(map(_key, name.split("."))): v for name, v in variables.items()}))
    return module


def _key(part):
    return int(part) if part.isdigit() else part


def test_starts_of_xlstm_do_not_count_mlps():
    """An MLP belongs to the layer before it: the last of two layers has the power 0.3 + 1.3."""
    blocks = ["mlstm", "gated_mlp", "slstm", "gated_mlp"]
    model = build_model(SequenceConfig(blocks=blocks, dim=32, heads=2), 0, {"vocabulary": 5, "classes": 5})
    alone = build_model(SequenceConfig(blocks=blocks[::2], dim=32, heads=2), 0, {"vocabulary": 5, "classes": 5})
    np.testing.assert_array_equal(model.layers[2].bias[...], alone.layers[1].bias[...])
    assert np.std(model.layers[0].down.kernel[...]) == pytest.approx(2 / 2 / math.sqrt(32), rel=0.05)


SLOW = pytest.mark.slow  # of the goldens, those of which others test the most
LAYER_GOLDENS = {
    "mlstm": (
        lambda rngs: MLSTM(8, 2, 2, rngs),
        "-0.35337058 -0.47159665 0.47489585 0.34922122 -0.56488631 -0.20365624 0.61736628 0.04456775",
        "0.11981038 -0.12122206 -0.08857279 0.14404629 0.05145365 -0.15730533 -0.01091780 0.16011872",
    ),
    "slstm": (
        lambda rngs: SLSTM(8, 2, 0, 2, rngs),
        "0.31972430 -1.60400416 -0.87828702 0.72393125 -0.97190936 -0.08936675 1.49061093 -0.28965506",
        "-0.35275642 -1.77156106 0.27643983 0.75831287 -1.02970845 -0.01203187 1.46641218 -0.27121109",
    ),
    "mamba2": (
        lambda rngs: Mamba2(8, 16, 8, 4, rngs),
        "1.85735957 -1.96133384 -1.35194543 2.30971529 0.75675724 -2.50472330 -0.11131762 2.53340862",
        "-1.27980755 0.34075062 1.19199987 -0.64791586 -1.02503908 0.91205714 0.79001200 -1.11563453",
    ),
    "gdn": (
        lambda rngs: GatedDeltaNet(8, 2, 8, False, rngs),
        "-0.99546992 1.01709638 0.73337538 -1.20607914 -0.42258206 1.31497389 0.08372777 -1.33654961",
        "1.77154283 1.01643104 -2.03346591 -0.49242926 2.16035951 -0.06427160 -2.14379743 0.61670459",
    ),
    "gdn_negative": (
        lambda rngs: GatedDeltaNet(8, 2, 8, True, rngs),
        "-1.17240640 1.10242488 0.88832365 -1.33133610 -0.54525300 1.47184179 0.16597558 -1.51461187",
        "1.75243911 1.02741442 -2.01719250 -0.50760612 2.14799701 -0.04590905 -2.13616675 0.59637570",
    ),
}


@pytest.mark.parametrize("name", ["gdn", *(pytest.param(name, marks=SLOW) for name in LAYER_GOLDENS if name != "gdn")])
def test_published_layers(x64, name):
    """The released layers' outputs at the seventh token, and at the third."""
    build, *expected = LAYER_GOLDENS[name]
    layer = fill(build(nnx.Rngs(0)), PARAMETERS[name].split())
    out = jax.jit(lambda x: layer(x))(wave(range(8)))
    for t, values in zip((6, 2), expected, strict=True):
        np.testing.assert_allclose(out[t], np.array(values.split(), float), atol=2e-8)


XLSTM = {"norm": "layernorm"}
MODEL_GOLDENS = [  # the config, how many parameters, the logits of the last token and of the first
    pytest.param(["mlstm", "mlstm"], XLSTM, 1636, (-0.98627220, 0.36629509), (0.04331218, -0.79932573), marks=SLOW),
    (["mlstm", "slstm"], XLSTM, 1442, (-1.71226201, -1.61577779), (-0.19660144, 0.00994259)),
    pytest.param(["slstm", "slstm"], XLSTM, 1248, (-2.50184359, -0.14181172), (-1.89162828, 0.72831392), marks=SLOW),
    (["mamba2", "mamba2"], {"state_dim": 4}, 1276, (0.86528609, 0.52842357), (-0.64389150, -0.49409547)),
    pytest.param(["gdn", "gdn"], {}, 1412, (0.33042298, 1.31136508), (-0.19215489, 0.38549327), marks=SLOW),
    (["gdn_negative", "gdn_negative"], {}, 1412, (0.31412429, 1.30202268), (-0.19461091, 0.37862369)),
    pytest.param(
        ["plstm", "plstm"], {"track": 1}, 892, (1.34594781, -0.03019279), (1.10943171, 0.09820398), marks=SLOW
    ),
    (["plstm", "plstm"], {"track": 2}, 1132, (1.27679714, 0.15449707), (0.51621344, 0.36174559)),
]


@pytest.mark.parametrize(("blocks", "keys", "size", "last", "first"), MODEL_GOLDENS)
def test_published_models(x64, blocks, keys, size, last, first):
    config = SequenceConfig(blocks=blocks, dim=8, **keys)
    model = nnx.eval_shape(lambda: build_model(config, 0, {"vocabulary": 3, "classes": 2}))
    names = ["embedding"]
    for n, block in enumerate(blocks):
        names += [f"norms.{n}.scale+", *(f"layers.{n}.{name}" for name in PARAMETERS[block].split())]
    fill(model, [*names, "norm.scale+", "head.kernel"])
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) == size
    logits = jax.jit(lambda tokens: model(tokens))(jnp.array([1, 0, 1, 1, 0, 1, 2]))
    np.testing.assert_allclose(logits[-1], last, atol=2e-8)
    np.testing.assert_allclose(logits[0], first, atol=2e-8)


@pytest.mark.parametrize("block", ["attention", "attention_nope", "mlstm_large"])
def test_later_tokens_are_not_seen(block):
    """Of the other layers the published values at early tokens show it."""
    model = build_model(SequenceConfig(blocks=[block, "mlp"], dim=8), 0, {"vocabulary": 3, "classes": 2})
    if block == "mlstm_large":
        model.layers[0].input_gate.bias[...] = jnp.zeros(1)  # at its start an input changes nothing by much
    tokens = jnp.arange(40) ** 2 % 3
    logits = jax.jit(lambda tokens: model(tokens))(jnp.stack([tokens, tokens.at[21].set((tokens[21] + 1) % 3)]))
    np.testing.assert_allclose(logits[0, :21], logits[1, :21], atol=1e-6)
    assert jnp.all(jnp.abs(logits[0, 21:] - logits[1, 21:]) > 1e-6)


def test_attention_without_positions_reads_a_set():
    layer = CausalAttention(8, 2, nnx.Rngs(0), rotary=False)
    x = jax.random.normal(jax.random.key(0), (9, 8))
    np.testing.assert_allclose(layer(x)[-1], layer(x[jnp.array([3, 1, 0, 2, 7, 6, 5, 4, 8])])[-1], atol=1e-6)


def test_the_layer_of_language_models_by_its_recurrence():
    """Against the equations of the large xLSTM, two heads, with gates from the input itself."""
    layer = MLSTMLarge(8, 2, nnx.Rngs(0))
    layer.input_gate.kernel[...] = jnp.full((8, 2), 20.0)  # beyond the limit of the gates
    layer.input_gate.bias[...] = jnp.zeros(2)
    x = np.asarray(jax.random.normal(jax.random.key(0), (5, 8)), np.float64)
    q, k, v, o = (x @ np.asarray(part.kernel[...], np.float64) for part in (layer.q, layer.k, layer.v, layer.gate))
    i = 15 * np.tanh(20 * x.sum(1) / 15)
    out = np.zeros((5, 8))
    for head, forget in enumerate((3, 6)):
        keys, values = slice(2 * head, 2 * head + 2), slice(4 * head, 4 * head + 4)
        state = np.zeros((2, 5))
        for t in range(5):
            state = expit(15 * np.tanh(forget / 15)) * state
            state += np.exp(i[t]) / np.sqrt(2) * np.outer(k[t, keys], [*v[t, values], 1])
            *hidden, size = q[t, keys] @ state
            hidden = np.array(hidden) / max(abs(size), 1)
            out[t, values] = (hidden - hidden.mean()) / np.sqrt(hidden.var() + 1e-5)
    expected = out * expit(o) @ np.asarray(layer.out.kernel[...], np.float64)
    np.testing.assert_allclose(jax.jit(layer)(jnp.asarray(x, jnp.float32)), expected, atol=1e-4)


def test_the_gated_mlp_is_swiglu():
    layer, x = GatedMLP(4, 6, nnx.Rngs(0)), normal(5, 4)
    gate, up = np.split(x @ np.asarray(layer.up.kernel[...]), 2, axis=-1)
    np.testing.assert_allclose(
        jax.jit(layer)(x), gate * expit(gate) * up @ np.asarray(layer.down.kernel[...]), atol=1e-5
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_rotations_are_the_matrix_exponential_and_orthogonal(size):
    def total(b):
        turned = rotation(b, size)
        return turned.sum(), turned

    turn = jax.jit(jax.grad(total, has_aux=True))
    a = jax.random.normal(jax.random.key(0), (5, size, size))
    b = jnp.moveaxis(a.reshape(5, -1), -1, 0)
    np.testing.assert_allclose(
        jnp.moveaxis(turn(b)[1], -1, 0), jax.scipy.linalg.expm(a - a.swapaxes(-1, -2)), atol=1e-5
    )
    for scale in (0, 2, 1e6):  # training with a high rate makes them large
        slope, large = turn(scale * b)
        identity = jnp.einsum("ij...,kj...->...ik", large, large)
        np.testing.assert_allclose(identity, jnp.tile(jnp.eye(size), (5, 1, 1)), atol=3e-6)
        assert np.isfinite(slope).all()


@pytest.mark.parametrize("track", [1, 2, 4])
def test_some_transitions_start_as_reflections_and_all_but_one_direction_is_kept(track):
    layer = TrackingPLSTM(32, track, nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (50, 32, 32))
    transition = jax.jit(lambda x: layer.transition(layer.conv(x)))(x)
    assert 0.05 < (np.linalg.det(transition) < 0).mean() < 0.95
    sizes = np.median(np.linalg.svd(transition, compute_uv=False), axis=(0, 1))
    assert (sizes[: track - 1] > 0.95).all() and sizes[-1] > 0.3


@pytest.mark.parametrize("track", [1, 2, 4])
def test_source_and_mark_start_near_the_identity(track):
    layer = TrackingPLSTM(8, track, nnx.Rngs(0))
    for gate in (layer.source, layer.mark):
        start = jax.nn.sigmoid(gate.bias[...]).reshape(track, track)
        np.testing.assert_allclose(start, 0.05 + 0.9 * np.eye(track), atol=0.003)
