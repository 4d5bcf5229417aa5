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
from plstm.experiments.config import EvalConfig, run_name, to_eval_config
from plstm.experiments.runs import find_run, load_config
from plstm.tasks import TASKS, Task
from plstm.training.checkpoints import Checkpoints
from plstm.training.evaluation import describe, evaluate
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import TrainState, init_state, make_predict

ROOT = Path(__file__).resolve().parent


@hydra.main(config_path=str(ROOT / "configs"), config_name="eval", version_base="1.3")
@task(EvalConfig)
def main(node: DictConfig) -> None:
    """Prints loss, accuracy and count of each split."""
    logging.set_verbosity(logging.ERROR)
    options = to_eval_config(node)
    if options.checkpoint not in ("last", "best"):
        raise UserError(f"checkpoint={options.checkpoint}: choose one of last, best")
    folder = find_run(options.run, Path(options.paths.runs))
    config = load_config(folder)
    config.data.root = options.data.root or config.data.root
    config.data.generate = options.data.generate
    if options.checkpoint == "best" and config.loop.best_metric is None:
        raise UserError("checkpoint=best: this run chose none (loop.best_metric is null); take checkpoint=last")
    task = TASKS[config.task](config)
    if options.data.split not in (None, *task.splits):
        raise UserError(f"data.split={options.data.split}: choose one of {', '.join(task.splits)}")

    graphdef, state = build(task)
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    step = checkpoints.last_step() if options.checkpoint == "last" else checkpoints.best_step()
    if step is None:
        raise UserError(f"{folder}: no checkpoint yet; train the run until its first evaluation")
    state, _ = checkpoints.restore(step, state)

    print(f"{run_name(config)} ({folder}), {options.checkpoint} checkpoint, step {step:,}")
    names = [options.data.split] if options.data.split else config.loop.final_splits
    splits = {name: task.split(name) for name in names}
    predict = make_predict(graphdef, task.logits)
    for name, split in splits.items():
        print(describe(name, evaluate(predict, state.params, split, config.optim.batch_size)), flush=True)
    if options.figures:
        model = nnx.merge(graphdef, state.params)
        for path in task.draw(model, predict, splits, Path(options.paths.results, "figures"), run_name(config)):
            print(path)


def build(task: Task) -> tuple[nnx.GraphDef, TrainState]:
    """The model's static definition, and a state of the run's shapes to restore onto."""
    optimizer = build_optimizer(task.config.optim, lambda step: 0.0)
    return init_state(task.build_model(0), optimizer)


if __name__ == "__main__":
    run_entry(main, EvalConfig)
