"""Evaluates a run: python eval.py run=<folder or id> [data.split=test_ext] [checkpoint=best] [figures=true].

It takes the run's own config and the same code as the end of training, and so prints the same digits.
Weights in a file: python eval.py weights=model.safetensors; a folder of class folders: data.folder=/path.
"""

import sys
from pathlib import Path

import hydra
import jax
from flax import nnx
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from plstm.config import Config, EvalConfig
from plstm.errors import UserError
from plstm.runs.cli import one_line_errors, run_entry
from plstm.runs.compose import check, to_eval_config
from plstm.runs.folders import find_run, load_overrides, lock_folder, open_checkpoint
from plstm.runs.identity import run_name
from plstm.runs.overrides import override_key
from plstm.runs.pictures import draw_run
from plstm.runs.session import open_tracker
from plstm.runs.weights import config_of, from_checkpoint, is_weights_file
from plstm.tasks import TASKS, Task
from plstm.training.environment import check_devices, memory_errors
from plstm.training.state import Found, RunState
from plstm.training.steps import Split, describe, evaluate, make_predict, make_ready

ROOT = Path(__file__).resolve().parent
WEIGHTS_FIGURES = ROOT / "outputs" / "eval"  # pictures of weights in a file, which have no run's folder
OF_FOLDERS = ("workers", "max_corrupt")
RUN_KEYS = ("root", "path", "generate", "download", *OF_FOLDERS)  # of `data`: the run's unless given


@hydra.main(config_path=str(ROOT / "configs"), config_name="eval", version_base="1.3")
def main(node: DictConfig) -> None:
    """Prints the metrics of each split."""
    with one_line_errors():
        print_metrics(to_eval_config(node))


def print_metrics(options: EvalConfig) -> None:
    """A line of metrics a split; with figures=true also the pictures' paths. Raises UserError naming the wrong key."""
    check_devices()
    source = choose_source(options)
    config = config_of(source, options.paths.runs)
    typed = {override_key(override) for override in HydraConfig.get().overrides.task}
    check_typed(typed, config, options)
    task = choose_task(config, options)
    if options.data.split not in (None, *task.splits):
        raise UserError(f"data.split={options.data.split}: choose one of {', '.join(task.splits)}")
    model = from_checkpoint(source, runs=options.paths.runs, checkpoint=options.checkpoint)

    shown = f", {options.checkpoint} checkpoint" if options.weights is None else ""
    print(f"{run_name(config)} ({source}){shown}, step {model.info.step:,}")
    devices = jax.device_count()
    splits = choose_splits(task, options)
    rows = min(config.optim.batch_size, len(splits["folder"])) if options.data.folder else config.optim.batch_size
    batch_size = -(-rows // devices) * devices  # the run's, where the devices divide it and no folder has fewer images
    measure, weights, place = make_ready(model, task.metrics, batch_size)
    found = {}
    for name, split in splits.items():
        with memory_errors(batch_size, "take more devices, or one with more memory"):
            found[name] = evaluate(measure, weights, split, batch_size, place)
        print(f"{describe(name, found[name], digits=6)}  ({found[name]['count']:,} {task.unit})", flush=True)
    if options.weights is None and "disabled" not in (config.logger.mode, options.logger.mode):
        folder = find_run(source, Path(options.paths.runs))
        try:
            with lock_folder(folder):  # a training logs into the same W&B run
                log_numbers(folder, task, model, options, found)
        except UserError as error:
            print(f"W&B: nothing is logged ({error})", file=sys.stderr, flush=True)
    if options.figures:
        predict = make_predict(nnx.graphdef(model), task.logits)
        best = ["best"] if options.checkpoint == "best" else []
        asked = [options.data.split] if options.data.split else []
        asked += [Path(options.data.folder).name] if options.data.folder else []
        name = "-".join([run_name(config), model.info.weights_id, *best, *asked])
        folder = WEIGHTS_FIGURES if options.weights else find_run(source, Path(options.paths.runs)) / "figures"
        paths = draw_run(task, model, predict, splits, folder, name)
        print("\n".join(map(str, paths)) or f"figures=true: task {config.task} has no pictures")


def log_numbers(folder: Path, task: Task, model: nnx.Module, options: EvalConfig, found: Found) -> None:
    """Adds the metrics to the summary of the run's own W&B run, as eval/<split>/<metric>, with the step."""
    checkpoints, last = open_checkpoint(folder, task.config, "last")
    run = RunState.from_json(checkpoints.info(last), folder)  # whose summary stays
    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    tracker = open_tracker(options.logger.mode, task, folder, load_overrides(folder), run.environment, parameters)
    values = {f"eval/{split}": metrics | {"step": model.info.step} for split, metrics in found.items()}
    own = {f"{split}/{name}": value for split, metrics in values.items() for name, value in metrics.items()}
    tracker.summary(run.summary(task.primary_metric) | own)  # all of it, as uploads of offline runs replace the summary
    tracker.finish()


def choose_source(options: EvalConfig) -> str:
    """The run's folder or id, or the weights' file. Raises UserError for keys that do not go together."""
    if (options.run is None) == (options.weights is None):
        raise UserError("run: give a value, run=<folder or id>, or weights=<.safetensors file>, and not both")
    if options.weights is None:
        if is_weights_file(options.run):
            raise UserError(f"run={options.run}: a file of weights; write weights={options.run}")
        return options.run
    if not Path(options.weights).is_file():
        raise UserError(f"weights={options.weights}: no such file; a run is named by run=...")
    if options.checkpoint != "last":
        raise UserError(f"checkpoint={options.checkpoint}: weights=... have one step only; leave it out")
    return options.weights


def check_typed(typed: set[str], config: Config, options: EvalConfig) -> None:
    """Raises UserError for typed keys without effect; this machine's own settings may have keys of other data."""
    problems = dict.fromkeys(("logger.project", "logger.entity"), "an evaluation logs into the run's own")
    if options.weights is not None:
        problems["logger.mode"] = "weights in a file have no run to log into"
    for key in RUN_KEYS:
        is_of_run = hasattr(config.data, key) and key not in TASKS[config.task].unused_keys
        if options.data.folder and key not in OF_FOLDERS:
            problems[f"data.{key}"] = "data.folder has all images"
        elif not (options.data.folder or is_of_run):
            problems[f"data.{key}"] = "the data of this run have no such key"
    for key, problem in problems.items():
        if key in typed:
            raise UserError(f"{key}: {problem}; leave it out")


def choose_task(config: Config, options: EvalConfig) -> Task:
    """The run's, with this evaluation's data."""
    data = options.data
    if data.split and data.folder:
        raise UserError("data.folder: takes the place of data.split; give one of them")
    for key in RUN_KEYS:
        if hasattr(config.data, key) and getattr(data, key) is not None:
            setattr(config.data, key, getattr(data, key))
    check(config)
    return TASKS[config.task](config)


def choose_splits(task: Task, options: EvalConfig) -> dict[str, Split]:
    """The splits to evaluate, by name: the folder's pictures, the split asked for, or those at a run's end."""
    data = options.data
    if data.folder:
        return {"folder": task.folder(data.folder, data.max_corrupt)}
    names = [data.split] if data.split else task.config.loop.final_splits
    splits = {name: task.split(name) for name in names}
    for name, split in splits.items():
        if not len(split):
            raise UserError(f"data.split={name}: this run's data have no such examples; choose another split")
    return splits


if __name__ == "__main__":
    run_entry(main, EvalConfig)
