"""One training step of every experiment on tiny data: what its recipe, model and optimizer compose does train."""

import json

import jax
import numpy as np
import pytest

from plstm.config import plain_config, shared_config, to_config
from plstm.runs.programs import compile_programs
from plstm.tasks import TASKS
from plstm.training.meshes import Layout, make_mesh
from plstm.training.steps import init_state, named_leaves
from tests.config.test_experiments import EXPERIMENTS, start_of

# Without weight decay, which moves parameters that have no gradient.
SMALL = ["debug=smoke", "model.dim=16", "optim.batch_size=8", "optim.weight_decay=0"]
# LAMB, binary cross entropy, mixing, stochastic depth, LayerScale; batch norm; other tests train pLSTM.
QUICK = ["imagenet/vit_s", "graphs/gin"]
# What makes no other program.
ALIKE = ("experiment", "seed", "init_from", "init_checkpoint", "loop", "logger", "paths", "data")
SETTINGS = ("peak_lr", "end_factor", "warmup_epochs", "epochs", "weight_decay", "batch_size")


def program_of(config) -> str:
    plain = {key: value for key, value in plain_config(config).items() if key not in ALIKE}
    plain["optim"] = {key: value for key, value in plain["optim"].items() if key not in SETTINGS}
    return json.dumps(plain, sort_keys=True)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    """Folder of the data, and program -> what its step did, so that experiments with one program share it."""
    return tmp_path_factory.mktemp("data"), {}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS]
)
def test_one_step_changes_every_parameter_that_it_should(composed, stepped, name):
    folder, done = stepped
    own = [] if name.startswith("graphs/") else ["model.heads=2", f"data.root={folder}"]
    config = to_config(composed(f"experiment={name}", *SMALL, *start_of(name), *own))
    program = program_of(config)
    if program not in done:
        done[program] = take_step(config)
    loss, unmoved, grown = done[program]
    classes = 2 if config.task == "graphs" or config.optim.loss == "binary_cross_entropy" else config.data.classes
    # Relative for many classes; in nats for two, as an untrained model so narrow has logits that differ by about one.
    assert loss == pytest.approx(np.log(classes), rel=0.25, abs=1.0 if config.task == "graphs" else 0.6)
    assert not unmoved and not grown


def take_step(config) -> tuple[float, list[str], list[str]]:
    """The loss of a batch, the parameters that have no gradient, and those that are not finite after the step."""
    task, layout = TASKS[config.task](config), Layout(make_mesh(config.optim.batch_size))
    programs = compile_programs(shared_config(config), 20, 20, 0)
    _, state = init_state(task.build_model(config.seed), programs.optimizer)
    before = jax.tree.map(np.array, state.params)
    batch = next(task.batches(layout).from_step(0))
    state, metrics = programs.step(state, batch, jax.random.key(0))
    total, count = metrics.averaged["loss"]
    after = named_leaves(state.params)
    unmoved = [name for name, old in named_leaves(before).items() if (old == after[name]).all()]
    return float(total / count), unmoved, [name for name, new in after.items() if not np.isfinite(new).all()]
