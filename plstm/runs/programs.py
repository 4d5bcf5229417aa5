"""What a run computes, and how much of it: steps, jitted functions, parameters, operations; whether it is sound."""

import functools
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import optax
from flax import nnx
from hydra import compose, initialize_config_dir
from jax.sharding import Mesh

from plstm.config import Config, LoopConfig
from plstm.errors import UserError
from plstm.runs.cli import CONFIG_ERRORS, CONFIGS, explain, register
from plstm.runs.compose import from_plain, to_config
from plstm.tasks import TASKS, Task
from plstm.training.checkpoints import Checkpoints
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer, epoch_schedule, learning_rate_schedule
from plstm.training.progress import MetricAverager
from plstm.training.steps import GUARDED, TrainState, make_predict, make_train_step

MAX_STEPS = 2**31 - 1  # counted in 32 bits


class Plan(NamedTuple):
    """Steps of the run, of an epoch and of the warm-up; steps between log lines, evaluations and checkpoints."""

    steps: int
    steps_per_epoch: int
    warmup_steps: int
    log_every: int
    eval_every: int
    save_every: int
    examples_per_step: float  # under the batch size where the last batch of an epoch is not full

    @classmethod
    def of(cls, config: Config, task: Task) -> Self:
        """Raises UserError where the batch is larger than the data, or the steps are too many to count."""
        optim, loop, per_epoch = config.optim, config.loop, task.steps_per_epoch
        unit = per_epoch if loop.unit == "epochs" else 1
        if not per_epoch:
            have = f"{task.train_examples:,} training {task.unit}"
            raise UserError(f"optim.batch_size={optim.batch_size}: more than the {have}")
        if optim.epochs * per_epoch > MAX_STEPS:
            raise UserError(f"optim.epochs={optim.epochs:g}: more than {MAX_STEPS:,} steps of {per_epoch:,} an epoch")
        return cls(
            max(round(optim.epochs * per_epoch), 1),
            per_epoch,
            round(optim.warmup_epochs * per_epoch),
            loop.log_every * unit,
            loop.eval_every * unit,
            (loop.save_every or loop.eval_every) * unit,
            min(optim.batch_size, task.train_examples / per_epoch),
        )


class Programs(NamedTuple):
    graphdef: nnx.GraphDef
    optimizer: optax.GradientTransformation
    step: Callable  # (state, batch, key) -> (state, StepMetrics)
    measure: Callable  # (weights, batch) -> {name: (sum, count)}
    predict: Callable  # (weights, batch) -> logits
    inspect: Callable  # (weights, batch) -> {name: scalar}


@functools.lru_cache(maxsize=1)
def compile_programs(config_json: str, steps: int, steps_per_epoch: int, warmup_steps: int) -> Programs:
    """What a run compiles, from its `shared_config` and some of its plan; runs in turn, such as folds, share it."""
    config = from_plain(json.loads(config_json))
    task = TASKS[config.task](config)
    schedule = learning_rate_schedule(config.optim, steps, warmup_steps)
    if config.optim.schedule_per == "epoch":
        schedule = epoch_schedule(config.optim, steps_per_epoch)
    optimizer = build_optimizer(config.optim, schedule)
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: task.build_model(0)))
    layout = Layout(make_mesh(config.optim.batch_size, config.mesh.fsdp))
    parts = task.batch_parts() if jax.default_backend() == "cpu" and layout.mesh.size == 1 else 1
    step = make_train_step(graphdef, optimizer, schedule, task.loss, layout=layout, parts=parts)
    predict, inspect = (make_predict(graphdef, function) for function in (task.logits, task.statistics))
    return Programs(graphdef, optimizer, step, make_predict(graphdef, task.metrics, layout), predict, inspect)


class Cost(NamedTuple):
    pixels: int  # a side of the training images
    epochs: float
    steps: int
    parameters: int
    flops: int  # of one image's forward pass, as `plstm.models.flops` counts


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
    """The cost of one run of an experiment. Raises UserError where nobody counts its model's operations."""
    config = compose_experiment(experiment)
    task = TASKS[config.task](config)
    if (flops := task.flops()) is None:
        raise UserError(f"experiment={experiment}: no count of operations for family {config.model.family}")
    params = nnx.state(nnx.eval_shape(lambda: task.build_model(0)), nnx.Param)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    steps = Plan.of(config, task).steps
    return Cost(config.data.size, config.optim.epochs, steps, parameters, flops)


# ---------------------------------------------------------------------- a run under way
def first_info(task: Task, plan: Plan, environment: dict[str, Any]) -> dict[str, Any]:
    """What a run's checkpoints hold beside the state, before the first step."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_seconds": 0.0,
        "evaluated": 0,  # the last step that was
        "best": None,
        "final": None,
        "averager": None,
        "metrics": [],
        "environment": environment,
        "earlier": [],  # environments of sessions before this one
        "sizes": dict(task.sizes),
        "class_names": list(task.class_names),
        "steps": plan.steps,
    }


def is_best(found: dict[str, dict[str, float]], best: dict[str, Any] | None, loop: LoopConfig, metric: str) -> bool:
    """Whether an evaluation is the best so far; ties are broken by loop.best_tie."""
    if loop.best_split is None or best is None:
        return loop.best_split is not None
    new, old = found[loop.best_split][metric], best[loop.best_split][metric]
    return new > old or (new == old and loop.best_tie == "latest")


def last_step(found: dict[str, dict[str, float]], step: int, planned: int, loop: LoopConfig, metric: str) -> int:
    """The last step of the run: this one where its evaluation reaches loop.stop_at, else the planned one."""
    value = found.get(loop.eval_splits[0], {}).get(metric, -math.inf)
    return step if loop.stop_at is not None and value >= loop.stop_at else planned


def check_finite(state: TrainState, averager: MetricAverager, checkpoints: Checkpoints) -> None:
    """Raises UserError if the loss, gradient or parameters of any step so far were not finite."""
    if (bad_step := int(state.bad_step)) >= 0:
        metric = averager.first_not_finite(GUARDED) or "loss"
        checkpoints.wait()
        last, where = checkpoints.last_step(), f"({checkpoints.folder})"
        kept = f"the checkpoint of step {last:,} is good {where}" if last else f"no checkpoint was kept before {where}"
        remedy = "Lower optim.peak_lr, or set model.dtype=float32 where the model has it, and start anew"
        raise UserError(f"step {bad_step:,}: {metric} is not finite; {kept}. {remedy}")


def describe_run(
    task: Task, plan: Plan, mesh: Mesh, state: TrainState, folder: Path, origin: str | None
) -> list[tuple[str, str]]:
    """The rows of the banner; origin: what fine-tuning starts from, None otherwise."""
    config, step, flops = task.config, int(state.step), task.flops()
    batch, devices = config.optim.batch_size, mesh.size
    where = jax.default_backend() + (f", {jax.process_count()} processes" if jax.process_count() > 1 else "")
    shared = f", parameters split over {config.mesh.fsdp}" if config.mesh.fsdp > 1 else ""
    rows = [
        ("run", f"{folder.name} in {folder}" + (f", resumed at step {step:,}" if step else "")),
        ("devices", f"{devices} x {jax.devices()[0].device_kind} ({where}){shared}"),
        ("data", task.describe_data()),
        ("batch", f"{batch} = {devices} devices x {batch // devices}"),
        ("schedule", f"{plan.steps:,} steps = {config.optim.epochs:g} epochs x {plan.steps_per_epoch:,}"),
        ("optimizer", f"{config.optim.name}, peak {config.optim.peak_lr:g} after {plan.warmup_steps:,} steps"),
        ("parameters", f"{sum(leaf.size for leaf in jax.tree.leaves(state.params)):,}"),
    ]
    if flops:
        cost = f"{flops / 1e9:.3g} G an example forward, {3 * flops * batch / 1e12:.3g} T a training step"
        rows.append(("FLOPs", cost))
    return rows + ([("start", origin)] if origin else [])
