"""Schedule, mask, AdamW and LAMB against NumPy transcriptions of their papers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from plstm.config import OptimConfig
from plstm.errors import UserError
from plstm.runs.compose import compose_experiment
from plstm.tasks import TASKS
from plstm.training.optimizers import build_optimizer, decay_mask, epoch_schedule, learning_rate_schedule
from plstm.training.steps import named_leaves
from tests.config.test_experiments import EXPERIMENTS

STEPS, WARMUP = 39_050, 781
PEAK = 3e-4


def test_the_schedule_of_the_paper_s_run():
    schedule = learning_rate_schedule(OptimConfig(peak_lr=PEAK), STEPS, WARMUP)
    paper = np.asarray(jax.jit(schedule)(np.arange(STEPS + 10)))
    warm = np.arange(WARMUP + 1) / WARMUP
    np.testing.assert_allclose(paper[: WARMUP + 1], PEAK * warm, rtol=1e-6)
    cosine = (1 + np.cos(np.pi * np.linspace(0, 1, STEPS - WARMUP))) / 2  # it ends with the last step
    np.testing.assert_allclose(paper[WARMUP:STEPS], PEAK * (1e-3 + (1 - 1e-3) * cosine), rtol=1e-3)
    assert paper[0] == 0 and paper[WARMUP] == np.float32(PEAK) and paper[STEPS - 1] == np.float32(1e-3 * PEAK)
    assert np.all(np.diff(paper[WARMUP:STEPS]) <= 0) and np.all(paper[STEPS:] == paper[STEPS - 1])


def test_a_rate_an_epoch_has_the_same_shape():
    schedule = epoch_schedule(OptimConfig(peak_lr=1.0, end_factor=0.1, epochs=9, warmup_epochs=4), steps_per_epoch=3)
    rates = np.asarray(schedule(np.arange(27))).reshape(9, 3)
    np.testing.assert_array_equal(rates, rates[:, :1].repeat(3, 1))
    # The warm-up's last epoch has the peak, the last one the end; half-way between them the cosine is half-way.
    np.testing.assert_allclose(rates[:4, 0], [0.25, 0.5, 0.75, 1.0], rtol=1e-6)
    cosine = 0.1 + 0.9 * (1 + np.cos(np.pi * np.arange(6) / 5)) / 2
    np.testing.assert_allclose(rates[3:, 0], cosine, rtol=1e-6)


@pytest.mark.parametrize("epochs", [0.5, 1])
def test_a_single_epoch_has_the_peak(epochs):
    schedule = epoch_schedule(OptimConfig(peak_lr=1.0, end_factor=0.1, epochs=epochs, warmup_epochs=0), 3)
    assert [float(schedule(step)) for step in range(3)] == [1.0, 1.0, 1.0]


def test_a_warm_up_may_end_within_an_epoch():
    rates = {}
    for warmup in (0.5, 1.5, 2.5):
        schedule = epoch_schedule(OptimConfig(peak_lr=1.0, end_factor=0.0, epochs=4, warmup_epochs=warmup), 1)
        rates[warmup] = [float(schedule(step)) for step in range(4)]
    falls = lambda *places: [(1 + np.cos(np.pi * place)) / 2 for place in places]  # noqa: E731
    np.testing.assert_allclose(rates[0.5], falls(1 / 7, 3 / 7, 5 / 7, 1), atol=1e-6)
    np.testing.assert_allclose(rates[1.5], [2 / 3, *falls(1 / 5, 3 / 5, 1)], atol=1e-6)
    np.testing.assert_allclose(rates[2.5], [2 / 5, 4 / 5, *falls(1 / 3, 1)], atol=1e-6)


@pytest.mark.parametrize(("steps", "warmup", "expected"), [(3, 0, [1, 0.55, 0.1]), (1, 0, [1]), (2, 1, [0, 1])])
def test_short_schedules(steps, warmup, expected):
    schedule = learning_rate_schedule(OptimConfig(peak_lr=1.0, end_factor=0.1), steps, warmup)
    np.testing.assert_allclose([schedule(step) for step in range(steps)], expected, rtol=1e-6)


LARGE = ("ablation/", "arrow/", "imagenet/", "code/paper", "series/paper")  # others have the same models, smaller
OTHERS = [name for name in EXPERIMENTS if not name.startswith((*LARGE, "folder/"))]  # which has a folder's classes
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS if name.startswith(LARGE)]


@pytest.mark.parametrize("experiment", [*OTHERS, *SLOW])
def test_all_models_decay_the_same_kinds_of_matrices(experiment):
    """A tensor of two or more axes decays unless it is an embedding, a decay of a state, a skip, a bias or a scale."""
    kept = {"embedding", "position", "log_a", "log_left", "log_top", "skip"}
    mask, shapes = mask_of(experiment)
    whole = {name.rpartition(".")[2] for name in mask if not mask[name] and len(shapes[name].shape) > 1}
    assert all(name in kept or name.endswith(("bias", "scale")) for name in whole), whole
    decayed = {name.rpartition(".")[2] for name in mask if mask[name]}
    assert not [name for name in decayed if name in kept or name.endswith(("bias", "scale"))]


def mask_of(experiment):
    config = compose_experiment(experiment)
    params = nnx.state(nnx.eval_shape(lambda: TASKS[config.task](config).build_model(jax.random.key(0))), nnx.Param)
    return named_leaves(decay_mask(params)), named_leaves(params)


def draw(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (3, 4), "bias": (4,), "weight": (2, 5)}
    return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def run(config, params, gradients, lr=0.1):
    optimizer = build_optimizer(config, lambda step: lr * (step + 1))

    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(jax.tree.map(jnp.asarray, params))
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32"), jnp.dtype("int32")}
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params


def transcribed(config, params, gradients, lr=0.1):
    """Step t uses lr x t; `kernel` and `weight` decay, `bias` does not."""
    params = {name: leaf.astype(np.float64) for name, leaf in params.items()}
    mean = {name: np.zeros_like(leaf) for name, leaf in params.items()}
    square = {name: np.zeros_like(leaf) for name, leaf in params.items()}
    for t, gradient in enumerate(gradients, 1):
        norm = np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in gradient.values()))
        for name, w in params.items():
            g = gradient[name] * min(1, config.clip_norm / norm) if norm else gradient[name]
            mean[name] = config.b1 * mean[name] + (1 - config.b1) * g
            square[name] = config.b2 * square[name] + (1 - config.b2) * g**2
            u = mean[name] / (1 - config.b1**t) / (np.sqrt(square[name] / (1 - config.b2**t)) + config.eps)
            if name != "bias":
                u = u + config.weight_decay * w
                if config.name == "lamb" and np.linalg.norm(w) > 0 and np.linalg.norm(u) > 0:
                    u = u * np.linalg.norm(w) / np.linalg.norm(u)
            params[name] = w - lr * t * u
    return params


def assert_same(actual, expected):
    for name, leaf in expected.items():
        np.testing.assert_allclose(actual[name], leaf, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("scale", [0.01, 10.0])  # under and over the norm that is clipped
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_steps_follow_the_transcription(name, scale):
    config = OptimConfig(name=name, weight_decay=0.3, b1=0.8, b2=0.95, eps=1e-3, clip_norm=1.0)
    gradients = [draw(seed, scale) for seed in (1, 2, 3)]
    assert_same(run(config, draw(0), gradients), transcribed(config, draw(0), gradients))


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_decay_clipping_and_state_leave_out_what_is_not_trained(name):
    """The gradient of what is kept would decide how much is clipped."""
    config = OptimConfig(name=name, weight_decay=0.3, b2=0.95, eps=1e-3, only=["weight"])
    params = draw(0)
    gradients = [draw(seed) | {"kernel": np.full((3, 4), 1e9, np.float32)} for seed in (1, 2)]
    expected = transcribed(config, {"weight": params["weight"]}, [{"weight": each["weight"]} for each in gradients])
    assert_same(run(config, params, gradients), {name: params[name] for name in ("kernel", "bias")} | expected)
    state = build_optimizer(config, lambda step: 0.1).init(jax.tree.map(jnp.asarray, params))
    assert {leaf.shape for leaf in jax.tree.leaves(state)} == {(), (2, 5)}


def test_a_part_that_no_parameter_has_is_named():
    optimizer = build_optimizer(OptimConfig(only=["weight", "head"]), lambda step: 0.1)
    words = "^optim.only: no parameter has the part head in its name; there are bias, kernel, weight$"
    with pytest.raises(UserError, match=words):
        optimizer.init(draw(0))


@pytest.mark.parametrize("zero", ["weights", "updates"])
def test_lamb_trusts_by_one_where_a_norm_is_zero(zero):
    config = OptimConfig(name="lamb", weight_decay=0.0)
    params, gradient = draw(0), draw(1)
    cleared = params if zero == "weights" else gradient
    cleared["kernel"] = np.zeros_like(cleared["kernel"])
    found = run(config, params, [gradient])
    assert_same(found, transcribed(config, params, [gradient]))
    if zero == "weights":
        np.testing.assert_allclose(np.abs(found["kernel"]), 0.1, rtol=1e-4)  # Adam's first step
    else:
        np.testing.assert_array_equal(found["kernel"], params["kernel"])


def test_lamb_treats_the_matrices_of_a_stack_one_by_one():
    config = OptimConfig(name="lamb", weight_decay=0.1, clip_norm=1e9)
    params, gradient = (np.stack([draw(seed)["kernel"], 30 * draw(seed + 5)["kernel"]]) for seed in (0, 1))
    stacked = run(config, {"kernel": params}, [{"kernel": gradient}])["kernel"]
    for n in range(2):
        alone = run(config, {"kernel": params[n]}, [{"kernel": gradient[n]}])["kernel"]
        np.testing.assert_allclose(stacked[n], alone, rtol=1e-6)
