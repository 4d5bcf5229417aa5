"""The training step against direct computations, and its guard against numbers that are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.config import OptimConfig
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import in_microbatches, init_state, make_predict, make_train_step
from tests.models.vision_models import MODELS, filled, tiny
from tests.ops.comparing import assert_close
from tests.training import classifying

LR = 1e-2
CLIP = 0.1  # under the norms of the gradients of both trained models
LAYOUT = Layout(make_mesh(8))


def make_step(model, microbatches=1, only=()):
    """A fresh state and the step, a function of (state, batch) and of a seed."""
    schedule = lambda step: LR * (1 + step / 1000)  # noqa: E731
    optimizer = build_optimizer(OptimConfig(only=list(only), clip_norm=CLIP), schedule)
    options = {"layout": LAYOUT, "microbatches": microbatches, "only": only}
    step = make_train_step(nnx.graphdef(model), optimizer, schedule, classifying.loss, **options)
    state = jax.device_get(init_state(model, optimizer))
    return state, lambda state, batch, seed=0: step(state, batch, jax.random.key(seed))


def loss_of(metrics):
    total, count = metrics.averaged["loss"]
    return float(total / count)


def put(state):
    """A copy on the device, as steps take the memory of their state over."""
    return LAYOUT.place_state(state)


@pytest.fixture(scope="module")
def batch():
    split = classifying.draw_split(8)
    return put({"image": split.bits, "label": split.labels.astype(np.int32)})


@pytest.fixture(scope="module", params=["pLSTM", "ViT"])
def trained(request, batch):
    """One compiled step, its states 0 and 1, the metrics of the first step, and logits and gradient before it."""
    model = filled(tiny(classes=2, **MODELS[request.param]))
    state, step = make_step(model)
    after, metrics = jax.device_get(step(put(state), batch))
    graphdef = nnx.graphdef(model)
    logits = make_predict(graphdef, classifying.logits)(state.params, batch)

    @jax.jit
    @jax.grad
    def gradient(params):
        loss, _ = classifying.loss(nnx.merge(graphdef, params), batch, jax.random.key(0))
        return loss

    found = {"logits": np.asarray(logits, np.float64), "gradient": jax.device_get(gradient(state.params))}
    return found | {"step": step, "start": state, "after": after, "metrics": metrics}


def test_metrics_equal_a_computation_from_the_logits(trained, batch):
    metrics, expected = trained["metrics"], classifying.expected_metrics(trained["logits"], np.asarray(batch["label"]))
    assert loss_of(metrics) == pytest.approx(expected["loss"], rel=1e-5)
    assert metrics.averaged["accuracy"] == (8 * expected["accuracy"], 8)
    assert metrics.latest["learning_rate"] == pytest.approx(LR)

    def flat(tree):
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)

    before, after = flat(trained["start"].params), flat(trained["after"].params)
    assert metrics.latest["parameter_norm"] == pytest.approx(np.linalg.norm(after), rel=1e-5)
    assert metrics.latest["update_norm"] == pytest.approx(np.linalg.norm(after - before), rel=1e-3)
    assert set(metrics.latest) == {"learning_rate", "gradient_norm", "parameter_norm", "update_norm"}
    assert {leaf.dtype for leaf in jax.tree.leaves(metrics)} == {np.dtype("float32")}


def test_gradients_are_clipped_and_their_norm_is_taken_before(trained):
    gradient = trained["gradient"]
    norm = np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in jax.tree.leaves(gradient)))
    assert trained["metrics"].latest["gradient_norm"] == pytest.approx(norm, rel=1e-4) and norm > 1.1 * CLIP
    mean = trained["after"].opt_state[1].mu  # of Adam; after one step a tenth of the clipped gradient
    assert_close(mean, jax.tree.map(lambda leaf: 0.1 * CLIP / norm * leaf, gradient), 1e-4)


def test_a_batch_in_microbatches_takes_the_same_step(batch):
    """Up to rounding: of sums in another order, which Adam's first step magnifies where a gradient is nearly zero."""
    found = []
    for count in (1, 4):
        state, step = make_step(Slope((4.0, 1.0)), count)
        after, metrics = jax.device_get(step(put(state), batch))
        found.append(
            {"mean gradient": after.opt_state[1].mu, "metrics": metrics._replace(latest={}), "step": after.step}
        )
        found[-1]["norm"] = metrics.latest["gradient_norm"]
    assert_close(found[1], found[0], 2e-5)


def test_microbatches_have_keys_of_their_own():
    def gradient(params, statistics, batch, key):
        return (jax.random.uniform(key), ({}, None)), params

    (mean, _), grads = jax.jit(in_microbatches(gradient, 2))(
        jnp.float32(3), None, {"x": jnp.zeros(4)}, jax.random.key(0)
    )
    draws = [jax.random.uniform(jax.random.fold_in(jax.random.key(0), n)) for n in range(2)]
    assert float(mean) == pytest.approx(float(sum(draws)) / 2) and float(grads) == 3


class Slope(nnx.Module):
    """Logits (sqrt(w0) s, w1 s) of the image's scaled sum s: gradient, loss, or neither is finite, as w says."""

    def __init__(self, weights=(1.0, 1.0)):
        self.kernel = nnx.Param(jnp.array([weights]))

    def __call__(self, images, *, key=None):
        total = images.sum((1, 2, 3))[:, None] / 100
        root, linear = self.kernel[...][0]
        return jnp.concatenate([jnp.sqrt(root) * total, linear * total], axis=1)


class Twice(nnx.Module):
    def __init__(self):
        self.first = Slope((0.0, 1.0))
        self.second = Slope((4.0, 1.0))

    def __call__(self, images, *, key=None):
        return self.first(images) + self.second(images)


def test_what_is_not_trained_stays_and_has_no_gradient(batch):
    """Not finite: the gradient of the root at 0, which is none where another part is trained."""
    state, step = make_step(Twice(), only=["second"])
    after, metrics = jax.device_get(step(put(state), batch))
    before, kept = (part.params["first"]["kernel"][...] for part in (state, after))
    np.testing.assert_array_equal(kept, before)
    assert (after.params["second"]["kernel"][...] != state.params["second"]["kernel"][...]).any()
    assert after.bad_step == -1 and 0 < metrics.latest["gradient_norm"] < np.inf


@pytest.fixture(scope="module")
def slope():
    return make_step(Slope())


@pytest.mark.parametrize(("weights", "loss_is_finite"), [((0, 1), True), ((1, np.nan), False), ((1, np.inf), False)])
def test_the_first_bad_step_is_remembered(slope, batch, weights, loss_is_finite):
    start, step = slope
    state = put(start)
    for _ in range(2):
        state, metrics = step(state, batch)
        assert int(state.bad_step) == -1
    bad = jax.tree.map(lambda leaf: np.array([weights], np.float32), state.params)
    state, metrics = step(put(state._replace(params=bad)), batch)
    assert bool(np.isfinite(loss_of(metrics))) == loss_is_finite and not np.isfinite(metrics.latest["gradient_norm"])
    assert (int(state.step), int(state.bad_step)) == (3, 3)
    recovered = put(start._replace(step=np.int32(3), bad_step=np.int32(3)))
    for later in (state, recovered):
        after, _ = step(later, batch)
        assert (int(after.step), int(after.bad_step)) == (4, 3)


class Noise(nnx.Module):
    """Logits drawn from the key of a training pass."""

    def __init__(self):
        self.kernel = nnx.Param(jnp.ones((1, 2)))

    def __call__(self, images, *, key=None):
        return self.kernel[...] * jax.random.normal(key, (len(images), 2))


def test_every_step_has_a_key_of_its_own(batch):
    state, step = make_step(Noise())

    def loss(number, seed):
        return loss_of(step(put(state._replace(step=np.int32(number))), batch, seed)[1])

    losses = [loss(0, seed=0), loss(1, seed=0), loss(0, seed=1)]
    assert len(set(losses)) == 3 and loss(0, seed=0) == losses[0]


class Counting(nnx.Module):
    """Logits that a batch statistic, the number of training passes, shifts."""

    def __init__(self):
        self.kernel, self.passes = nnx.Param(jnp.ones((1, 2))), nnx.BatchStat(jnp.float32(0))

    def __call__(self, images, *, key=None):
        if key is not None:
            self.passes[...] += 1
        return images.mean((1, 2, 3))[:, None] * self.kernel[...] + jnp.stack([self.passes[...], jnp.float32(0)])


def test_running_statistics_are_part_of_the_state(batch):
    start, step = make_step(Counting())
    state, _ = step(put(start), batch)
    state, _ = step(state, batch)
    assert jax.tree.leaves(jax.device_get(state.statistics)) == [2.0]
    predict = make_predict(nnx.split(Counting())[0], classifying.logits)
    kernel = np.asarray(jax.tree.leaves(state.params)[0])
    shift = np.asarray(predict(state.weights, batch)) - np.asarray(predict(start.weights, batch))
    assert kernel.shape == (1, 2) and np.median(shift[:, 0] - shift[:, 1]) == pytest.approx(2, abs=0.1)
