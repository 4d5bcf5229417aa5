"""Series models: patches, horizons, gaps, scales, parameters level between backbones, and what they refuse."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import plstm
from plstm.errors import UserError
from plstm.models import SeriesConfig, build_model
from plstm.models.series import standardised_end
from plstm.runs.compose import compose_experiment
from plstm.studies.definitions import load_table
from plstm.tasks import TASKS
from tests.commands import ROOT

GOLDEN = json.loads((ROOT / "tests/data/series/golden.json").read_text())["patching"]
SMALL = {"dim": 8, "patch": 4, "context": 16, "mlp_width": 8}
NAN = np.nan


@pytest.fixture(scope="module")
def model():
    return build_model(SeriesConfig(blocks=["gdn", "gated_mlp"], **SMALL), 0)


@pytest.fixture(scope="module")
def series():
    return np.random.default_rng(0).normal(size=40).cumsum()


def test_values_and_mask_of_patches():
    series = np.array(GOLDEN["x"], float)
    values, known, loc, scale = standardised_end(series, GOLDEN["context"])
    assert (loc, scale) == pytest.approx((GOLDEN["loc"], GOLDEN["scale"]))
    inputs = np.concatenate([values.reshape(-1, 4), known.reshape(-1, 4)], axis=1)
    np.testing.assert_allclose(inputs, GOLDEN["inputs"], atol=1e-6)


def test_a_horizon_adds_hidden_patches(model):
    """The model's input for a horizon of 9, patches of 4, and which outputs are the forecast."""
    values, known, *_ = standardised_end(np.array(GOLDEN["x"], float), 16)
    padded = jnp.pad(values, (0, 8)), jnp.pad(known, (0, 8))
    every = model(*padded)  # [6, 9, 4]
    found = model.ahead(values, known, 9)
    expected = np.sort(np.concatenate(list(np.asarray(every[-3:])), axis=-1)[:, :9], axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    inputs = np.concatenate([part.reshape(-1, 4) for part in padded], axis=1)
    np.testing.assert_allclose(inputs, GOLDEN["inputs_for_horizon_9"], atol=1e-6)


SLOW = pytest.mark.slow
BLOCKS = [pytest.param(name, marks=SLOW) for name in ("mlstm", "gdn_negative", "plstm")]


@pytest.mark.parametrize("block", [*BLOCKS, "slstm", "mamba2", "gdn", "attention"])
def test_no_forecast_depends_on_values_that_are_hidden_or_on_how_far_it_goes(block, series):
    model = build_model(SeriesConfig(blocks=[block, "gated_mlp"], **SMALL), 0)
    values, known, *_ = standardised_end(series, 16)
    known[5:9] = False
    ahead = jax.jit(model.ahead, static_argnums=2)  # one at a time: a batch's rows may be rounded otherwise
    found, other = (ahead(each, known, 12) for each in (values, np.where(known, values, 7).astype(np.float32)))
    np.testing.assert_array_equal(found, other)
    assert found.shape == (9, 12) and (np.diff(found, axis=0) >= 0).all()
    np.testing.assert_allclose(model.ahead(values, known, 4), found[:, :4], atol=1e-5)


def test_a_forecast_has_the_unit_of_the_series(model, series):
    found = model.forecast(series, 12)
    assert found.shape == (9, 12) and found.dtype == np.float64
    np.testing.assert_allclose(model.forecast(1e6 + 3e4 * series, 12), 1e6 + 3e4 * found, atol=1)


def test_series_that_are_hard(model, series):
    np.testing.assert_array_equal(model.forecast(series, 7), model.forecast(series[-16:], 7))  # longer than the context
    for short in ([3.5], [3.5, 3.5, 3.5], [NAN, 3.5, NAN], [0.0, 0.0], [1e6, 1e6 + 1, 1e6 + 2]):
        found = model.forecast(short, 3)
        assert np.isfinite(found).all() and np.abs(found - short[-1 if short[-1] == short[-1] else 1]).max() < 1e2
    nothing = model.ahead(jnp.zeros(16), jnp.zeros(16, bool), 3)
    assert np.isfinite(nothing).all()


@pytest.mark.parametrize(
    ("context", "horizon", "words"),
    [
        ([1.0], 0, "horizon=0: must be from 1 to 16, the model's context"),
        ([1.0], 17, "horizon=17: must be from 1 to 16"),
        ([1.0, np.inf], 1, r"context: has a value beyond 1e\+150; give"),
        ([1.0, -1e200], 1, r"context: has a value beyond 1e\+150; give"),
        ([[1.0]], 1, r"context: has shape \(1, 1\); give one series"),
        ([], 1, "context: none of the last 16 values is known"),
        ([NAN, NAN], 1, "context: none of the last 16 values is known"),
    ],
)
def test_what_has_no_forecast_is_named(model, context, horizon, words):
    with pytest.raises(UserError, match=words):
        model.forecast(context, horizon)


def test_weights_forecast_alike(model, series, tmp_path):
    plstm.save(model, tmp_path / "model.safetensors")
    loaded = plstm.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.forecast(series, 6), model.forecast(series, 6))


def test_a_context_is_whole_patches():
    with pytest.raises(UserError, match=r"^model.context=500: must be a multiple of model.patch=16"):
        SeriesConfig(context=500).check()


@pytest.mark.parametrize(
    ("study", "rows"), [("series-small", 12), pytest.param("code-small", 8, marks=pytest.mark.slow)]
)
def test_backbones_have_as_many_parameters(study, rows):
    """Within 3%, in the rows of the study."""
    sizes = {}
    for row in load_table(ROOT / f"configs/study/{study}.yaml").rows:
        config = compose_experiment(row.experiment, *row.overrides[1:])
        model = nnx.eval_shape(lambda config=config: TASKS[config.task](config).build_model(0))
        sizes[row.name] = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert len(sizes) == rows and max(sizes.values()) < 1.03 * min(sizes.values()), sizes
