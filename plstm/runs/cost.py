"""What an experiment costs, told from its config alone: nothing is trained, and no data are needed."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jax
from flax import nnx
from hydra import compose, initialize_config_dir

from plstm.config import Config, to_config
from plstm.runs.cli import register
from plstm.tasks import TASKS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


class Cost(NamedTuple):
    """pixels: a side of the training images. flops: of one image's forward pass, as `plstm.models.flops` counts."""

    pixels: int
    epochs: float
    steps: int
    batch_size: int
    parameters: int
    flops: int | None

    @property
    def total_flops(self) -> float:
        """Of the whole training; a backward pass costs two forward passes."""
        return 3.0 * (self.flops or 0) * self.steps * self.batch_size


def compose_experiment(experiment: str, *overrides: str) -> Config:
    """The checked config of `python train.py experiment=...`; a run to fine-tune need not exist. Errors: Hydra's."""
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        node = compose("train", overrides=[f"experiment={experiment}", "init_from=null", *overrides])
    return to_config(node)


@lru_cache
def experiment_cost(experiment: str) -> Cost:
    """The cost of one run of an experiment."""
    config = compose_experiment(experiment)
    task, optim = TASKS[config.task](config), config.optim
    model = nnx.eval_shape(lambda: task.build_model(0))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    steps = max(round(optim.epochs * task.steps_per_epoch), 1)
    return Cost(config.data.size, optim.epochs, steps, optim.batch_size, parameters, task.flops())
