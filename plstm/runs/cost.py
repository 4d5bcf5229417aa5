"""The compute cost of an experiment, from its config alone: nothing is trained, and no data are needed."""

from functools import lru_cache
from typing import NamedTuple

import jax
from flax import nnx
from hydra import compose, initialize_config_dir

from plstm.config import Config, to_config
from plstm.errors import UserError
from plstm.runs.cli import CONFIGS, register
from plstm.runs.programs import Plan
from plstm.tasks import TASKS


class Cost(NamedTuple):
    """pixels: a side of the training images. flops: of one image's forward pass, as `plstm.models.flops` counts."""

    pixels: int
    epochs: float
    steps: int
    parameters: int
    flops: int


def compose_experiment(experiment: str, *overrides: str) -> Config:
    """The checked config of `python train.py experiment=...`; a run to fine-tune need not exist. Errors: Hydra's."""
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        node = compose("train", overrides=[f"experiment={experiment}", "init_from=null", *overrides])
    return to_config(node)


@lru_cache
def experiment_cost(experiment: str) -> Cost:
    """The cost of one run of an experiment. Raises UserError where nobody counts its model's operations."""
    config = compose_experiment(experiment)
    task = TASKS[config.task](config)
    if (flops := task.flops()) is None:
        raise UserError(f"experiment={experiment}: no count of operations for family {config.model.family}")
    params = nnx.state(nnx.eval_shape(lambda: task.build_model(0)), nnx.Param)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    steps = Plan.of(config, task).steps
    return Cost(config.data.size, config.optim.epochs, steps, parameters, flops)
