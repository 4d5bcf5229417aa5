"""How the parameters of the compared models start: by what their papers and released code say."""

import math

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.stats import kstest, loguniform, norm, uniform

from plstm.models import EfficientNetConfig, SequenceConfig, SS2DConfig, ViLConfig, build_model, named_variables
from plstm.models.efficientnet import MBConv
from plstm.models.mamba2d import M2DMixer
from plstm.models.ss2d import SS2D
from plstm.models.vil import ViLLayer
from plstm.nn.sequence import MLSTM, SLSTM, GatedDeltaNet, Mamba2, MLSTMLarge


def within(bound):
    return uniform(-bound, 2 * bound)


def fan(inputs):
    """PyTorch's usual start of a layer of so many inputs."""
    return within(inputs**-0.5)


def he(inputs):
    return norm(0, math.sqrt(2 / inputs))


SMALL = norm(0, math.sqrt(2 / 5 / 32))  # of 32 channels
FORGET = [3, 4, 5, 6]  # of four heads
BIAS_OF_CELLS = np.outer([0, 1, 0, 0], 5 - 12 * np.linspace(0, 1, 8) ** 0.95)  # in the second of three layers
STEPS = loguniform(1e-3, 0.1)  # of a bias's softplus
# The source, a function that builds, and by parameter its constant or the distribution it is drawn from.
STARTS = [
    (
        "xLSTM",
        lambda rngs: MLSTM(32, 4, 3, rngs),
        {"up.kernel": SMALL, "q.weight": SMALL, "v.weight": SMALL, "down.kernel": norm(0, 2 / 3 / math.sqrt(32))}
        | {"input_gate.kernel": 0, "forget_gate.kernel": 0, "forget_gate.bias": FORGET, "conv.weight": fan(4)},
    ),
    ("xLSTM", lambda rngs: MLSTM(64, 128, 3, rngs), {"input_gate.bias": norm(0, 0.1), "norm_scale": 1, "skip": 1}),
    (
        "xLSTM",
        lambda rngs: SLSTM(32, 4, 1, 3, rngs),
        {"gates.0.weight": SMALL, "gates.3.weight": SMALL, "weight": 0, "bias": BIAS_OF_CELLS},
    ),
    (
        "xLSTM for language models",
        lambda rngs: MLSTMLarge(32, 4, rngs),
        {"input_gate.kernel": 0, "input_gate.bias": -10, "forget_gate.kernel": 0, "forget_gate.bias": FORGET},
    ),
    (
        "xLSTM",
        lambda _: build_model(SequenceConfig(blocks=["slstm"], dim=32), 0, {"vocabulary": 50, "classes": 50}),
        {"embedding": SMALL, "head.kernel": SMALL},
    ),
    (
        "Mamba-2",
        lambda rngs: Mamba2(32, 512, 4, 8, rngs),
        {"step_bias": STEPS, "a_log": uniform(1, 15), "project.kernel": fan(32), "out.kernel": fan(512), "skip": 1},
    ),
    (
        "Gated DeltaNet",
        lambda rngs: GatedDeltaNet(32, 128, 128, False, rngs),
        {"step_bias": STEPS, "a_log": uniform(0, 16), "norm_scale": 1},
    ),
    (
        "Vision-LSTM",
        lambda rngs: ViLLayer(32, 4, dtype=None, rngs=rngs),
        {"up.kernel": SMALL, "k.weight": SMALL, "down.kernel": norm(0, 2 / math.sqrt(32)), "kernel": fan(9), "skip": 1}
        | {"input_gate.kernel": 0, "forget_gate.kernel": 0, "forget_gate.bias": FORGET},
    ),
    (
        "Vision-LSTM",
        lambda _: build_model(ViLConfig(image_size=64, patch_size=8, dim=32, depth=2, classes=10), 0),
        {"position": norm(0, 0.02), "head.kernel": norm(0, 2e-5), "embedding.project.kernel": within((6 / 224) ** 0.5)},
    ),
    (
        "NVIDIA's EfficientNet",
        lambda rngs: MBConv(16, 16, 5, 1, 2, dtype=None, rngs=rngs),
        {"expand.kernel": he(16), "kernel": he(25), "project.kernel": he(32)}
        | {"excite.squeeze.kernel": fan(32), "excite.excite.kernel": fan(4)},
    ),
    (
        "NVIDIA's EfficientNet",
        lambda _: build_model(EfficientNetConfig(stem=16, stages=[[3, 1, 1, 1, 16]], features=64, classes=10), 0),
        {"stem.kernel": he(27), "features.kernel": he(16), "head.kernel": fan(64)},
    ),
    (
        "2DMamba",
        lambda rngs: SS2D(32, 3, True, dtype=None, rngs=rngs),
        {"enter.kernel": norm(0, 0.02), "out.kernel": norm(0, 0.02), "kernel": fan(9), "select_kernel": fan(64)}
        | {"step_kernel": fan(2), "step_bias": STEPS, "log_a": np.log([1, 2, 3]), "skip": 1},
    ),
    (
        "2DMamba",
        lambda _: build_model(SS2DConfig(dims=[32], depths=[1], classes=10), 0),
        {"stages.0.0.mlp.up.kernel": norm(0, 0.02), "head.kernel": norm(0, 0.02)}
        | {"down.0.convolutions.0.kernel": fan(48)},
    ),
    (
        "Mamba2D",
        lambda rngs: M2DMixer(32, 3, dtype=None, rngs=rngs),
        {"top.bias": STEPS, "left.bias": STEPS, "left.kernel": fan(2), "log_top": np.log([1, 2, 3]), "skip": 1}
        | {"enter.kernel": fan(32), "select.kernel": fan(64)},
    ),
]


def as_described(start, found):
    """A bias of steps by its softplus, a logarithm of decays by its exponential."""
    if start is STEPS:
        return np.logaddexp(0, found)
    return np.exp(found) if start.support()[0] >= 0 else found


@pytest.mark.parametrize(("source", "build", "starts"), STARTS, ids=[source for source, *_ in STARTS])
def test_parameters_start_as_in_the_papers_and_their_released_code(source, build, starts):
    @jax.jit  # which draws no other parameters
    def draw():
        variables = named_variables(nnx.state(build(nnx.Rngs(0)), nnx.Param))
        return {name: variables[name][...] for name in starts}

    for name, found in draw().items():
        start, found = starts[name], np.asarray(found, np.float64)
        if hasattr(start, "cdf"):
            assert kstest(as_described(start, found).ravel(), start.cdf).pvalue > 1e-3, f"{source}: {name}"
        else:
            np.testing.assert_allclose(
                found, np.broadcast_to(start, found.shape), rtol=1e-6, err_msg=f"{source}: {name}"
            )
