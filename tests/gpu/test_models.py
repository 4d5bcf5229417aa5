"""Every family of models on an accelerator against the CPU, in float32: the loss of a training batch and its gradients.

The CPU computes what it computes where there is no accelerator, in its own forms.
"""

import itertools
from unittest import mock

import jax
import numpy as np
import pytest
from flax import nnx

from plstm.ops import grid
from plstm.runs.compose import compose_experiment
from plstm.tasks import TASKS
from plstm.training.meshes import Layout, make_mesh
from plstm.training.steps import named_leaves
from tests.config.test_experiments import EXPERIMENTS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("float32")]
TOLERANCE = 1e-3  # of each gradient, relative to its own largest entry, at least NOISE of the largest of all
NOISE = 1e-3  # gradients that are zero but for rounding
SMALL = ["debug=smoke", "optim.batch_size=8"]
FULL_SIZES = (
    "arrow",
    "imagenet",
    "graphs",
    "languages",
    "tokens",
    "series",
)  # the others have models of the same families
PAPERS = [name for name in EXPERIMENTS if name.split("/")[0] in FULL_SIZES]
METHODS = [*itertools.product(["arrow/plstm", "imagenet/plstm"], grid.METHODS[1:])]


@pytest.mark.parametrize(("experiment", "method"), [*((name, None) for name in PAPERS), *METHODS])
def test_loss_and_gradients_are_those_of_the_cpu(device, tmp_path_factory, experiment, method):
    if method == "fused" and device.platform != "gpu":
        pytest.skip("the kernels need a GPU; tests/ops/test_kernels.py runs them as plain JAX")
    overrides = list(SMALL)
    if experiment.split("/")[0] in ("arrow", "imagenet", "series"):
        overrides.append(f"data.root={tmp_path_factory.getbasetemp()}")
    plain = make_task(experiment, *overrides)
    task = make_task(experiment, *overrides, f"model.method={method}") if method else plain
    layout = Layout(make_mesh(task.config.optim.batch_size, devices=[device]))
    batch = jax.device_get(next(task.batches(layout).from_step(0)))
    graphdef, params, rest = nnx.split(task.build_model(0), nnx.Param, ...)
    found = loss_and_gradients(task, graphdef, params, rest, batch, device)
    with mock.patch.object(jax, "default_backend", lambda: "cpu"):
        graphdef = nnx.graphdef(plain.build_model(0))
        expected = loss_and_gradients(plain, graphdef, params, rest, batch, jax.devices("cpu")[0])
    largest = max(np.abs(leaf).max() for name, leaf in expected.items() if name != "loss")
    for name, leaf in expected.items():
        scale = max(np.abs(leaf).max(), NOISE * largest)
        np.testing.assert_allclose(found[name] / scale, leaf / scale, rtol=0, atol=TOLERANCE, err_msg=name)


def make_task(experiment, *overrides):
    config = compose_experiment(experiment, *overrides)
    return TASKS[config.task](config)


def loss_and_gradients(task, graphdef, params, rest, batch, device) -> dict[str, np.ndarray]:
    """Compiled anew each time, as the forms depend on the backend."""

    def loss(params, rest, batch, key):
        return task.loss(nnx.merge(graphdef, params, rest, copy=True), batch, key)[0]

    arguments = jax.device_put((params, rest, batch, jax.random.key(0)), device)
    value, gradients = jax.device_get(jax.jit(jax.value_and_grad(loss))(*arguments))
    return {"loss": value, **named_leaves(gradients)}
