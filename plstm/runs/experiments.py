"""Experiments by name, without running them: their configs, and what one run of each computes."""

import functools
from typing import NamedTuple

import jax
from flax import nnx
from hydra import compose, initialize_config_dir

from plstm.config import Config
from plstm.errors import UserError
from plstm.runs.cli import CONFIG_ERRORS, CONFIGS, explain, register
from plstm.runs.compose import to_config
from plstm.tasks import TASKS


class Cost(NamedTuple):
    pixels: int  # a side of the training images
    epochs: float
    steps: int
    parameters: int
    flops: int  # of one image's forward pass


def compose_experiment(experiment: str, *overrides: str) -> Config:
    """The checked config of `python train.py experiment=...`; a run to fine-tune need not exist. Raises
    UserError where it cannot be composed."""
    register()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            node = compose("train", overrides=[f"experiment={experiment}", "init_from=null", *overrides])
    except CONFIG_ERRORS as error:
        raise UserError(explain(error, Config)) from error
    return to_config(node)


@functools.lru_cache
def experiment_cost(experiment: str) -> Cost:
    """The cost of one run of an experiment. Raises UserError where its model's operations are not counted."""
    config = compose_experiment(experiment)
    task = TASKS[config.task](config)
    flops = task.flops()
    if flops is None:
        raise UserError(f"experiment={experiment}: no count of operations for family {config.model.family}")
    params = nnx.state(nnx.eval_shape(lambda: task.build_model(0)), nnx.Param)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    return Cost(config.data.size, config.optim.epochs, task.plan().steps, parameters, flops)
