"""Evaluates a run: python eval.py run=<folder or id> [data.split=test_ext] [checkpoint=best] [figures=true].

It takes the run's own configuration and the same code as the end of training, and so prints the same digits.
"""

from __future__ import annotations

from pathlib import Path

import hydra
from absl import logging
from flax import nnx
from omegaconf import DictConfig

from plstm.errors import UserError
from plstm.experiments.cli import run_entry, task
from plstm.experiments.config import SPLITS, Config, EvalConfig, run_name, typed
from plstm.experiments.runs import find_run, load_config
from plstm.models import build_model
from plstm.training.checkpoints import Checkpoints
from plstm.training.evaluation import describe, evaluate
from plstm.training.input import load_split
from plstm.training.optimizers import build_optimizer
from plstm.training.pictures import draw_pictures
from plstm.training.steps import TrainState, init_state, make_predict

ROOT = Path(__file__).resolve().parent


@hydra.main(config_path=str(ROOT / "configs"), config_name="eval", version_base="1.3")
@task(EvalConfig)
def main(node: DictConfig) -> None:
    """Prints loss, accuracy and count of each split."""
    logging.set_verbosity(logging.ERROR)
    options: EvalConfig = typed(node, EvalConfig)
    for key, value, choices in (
        ("checkpoint", options.checkpoint, ("last", "best")),
        ("data.split", options.data.split, (None, *SPLITS)),
    ):
        if value not in choices:
            raise UserError(f"{key}={value}: choose one of {', '.join(choice for choice in choices if choice)}")
    folder = find_run(options.run, Path(options.paths.runs))
    config = load_config(folder)
    config.data.root = options.data.root or config.data.root
    config.data.generate = options.data.generate

    state, graphdef = build(config)
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    step = checkpoints.last_step() if options.checkpoint == "last" else checkpoints.best_step()
    if step is None:
        raise UserError(f"{folder}: no checkpoint yet; train the run until its first evaluation")
    state, _ = checkpoints.restore(step, state)

    print(f"{run_name(config)} ({folder}), {options.checkpoint} checkpoint, step {step:,}")
    names = [options.data.split] if options.data.split else config.loop.final_splits
    splits = {name: load_split(config, name) for name in names}
    predict = make_predict(graphdef)
    for name, split in splits.items():
        print(describe(name, evaluate(predict, state.params, split, config.optim.batch_size)), flush=True)
    if options.figures:
        model = nnx.merge(graphdef, state.params)
        folder, batch_size = Path(options.paths.results, "figures"), config.optim.batch_size
        for path in draw_pictures(model, predict, splits, batch_size, folder, run_name(config)):
            print(path)


def build(config: Config) -> tuple[TrainState, nnx.GraphDef]:
    """A state of the run's shapes to restore onto, and the model's static definition."""
    optimizer = build_optimizer(config.optim, lambda step: 0.0)
    graphdef, state = init_state(build_model(config.model, 0), optimizer)
    return state, graphdef


if __name__ == "__main__":
    run_entry(main, EvalConfig)
