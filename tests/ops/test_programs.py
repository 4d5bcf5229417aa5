"""Public operators and a model inside a caller's program: over devices, on empty batches, in forward mode."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from plstm.nn import sequence as layers
from tests.commands import begin, end
from tests.training.test_meshes import simulated

from .programs import CASES, PROGRAMS, batched, lower, with_gradients

PROGRAM = Path(__file__).with_name("programs.py")
FORWARD = [name for name in CASES if name.endswith("recurrent") and not name.startswith("dag")]
FORWARD += ["mlstm-chunkwise", "ssd-chunkwise", "slstm", "mamba2d-diagonals"]
LAYERS = {
    "MLSTM": lambda rngs: layers.MLSTM(8, 2, 1, rngs),
    "SLSTM": lambda rngs: layers.SLSTM(8, 2, 0, 1, rngs),
    "Mamba2": lambda rngs: layers.Mamba2(8, 16, 4, 4, rngs),
    "GatedDeltaNet": lambda rngs: layers.GatedDeltaNet(8, 2, 8, True, rngs),
    "TrackingPLSTM": lambda rngs: layers.TrackingPLSTM(8, 2, rngs),
    "CausalAttention": lambda rngs: layers.CausalAttention(8, 2, rngs),
}


def lowered():
    """Slow are the large ones, and what can fail for `plstm2d` alone, which splits itself over devices."""
    for name, program in itertools.product(CASES, PROGRAMS):
        large = name in ("model", "plstm2d-chunkwise", "plstm2d-hierarchical") and program != "checked"
        alike = program in ("unchecked", "auto") and not name.startswith("plstm2d")
        yield pytest.param(name, program, marks=[pytest.mark.slow] * (large or alike))


@pytest.mark.parametrize(("name", "program"), [*lowered()])
def test_operators_lower_inside_a_program_over_eight_devices(name, program):
    lower(name, program)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_operators_give_their_numbers_inside_a_program_over_eight_devices(name):
    differences = json.loads(end(begin(PROGRAM, name, environment=simulated(8)))[0].splitlines()[-1])[name]
    assert len(differences) == 7
    assert differences == pytest.approx(dict.fromkeys(differences, 0), abs=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_an_empty_batch_gives_an_empty_result_and_gradients(name):
    operator, arguments = CASES[name]
    expected = jax.eval_shape(lambda arguments: operator(**arguments), batched(arguments, 1))
    empty = batched(arguments, 0)
    output, gradients = jax.eval_shape(with_gradients(operator), empty)
    assert output.shape == (0, *expected.shape[1:])
    assert [x.shape for x in jax.tree.leaves(gradients)] == [x.shape for x in jax.tree.leaves(empty)]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_take_an_empty_batch(name):
    layer = LAYERS[name](nnx.Rngs(0))
    assert jax.eval_shape(layer, jnp.zeros((0, 5, 8))).shape == (0, 5, 8)


@pytest.mark.parametrize("name", FORWARD)
def test_forward_over_reverse_where_a_docstring_promises_it(name):
    operator, arguments = CASES[name]
    arguments = batched(arguments, 2)
    jax.eval_shape(lambda x, tangent: jax.jvp(with_gradients(operator), (x,), (tangent,)), arguments, arguments)
