"""What a run knows of itself beside its arrays: the JSON in its checkpoints, whether it is sound, its banner."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from plstm.config import Config, LoopConfig, plain_config, run_name
from plstm.errors import UserError
from plstm.runs.programs import Plan
from plstm.tasks import Task
from plstm.training.checkpoints import Checkpoints
from plstm.training.processes import is_main
from plstm.training.progress import MetricAverager
from plstm.training.steps import GUARDED, TrainState
from plstm.training.tracking import Tracker


def new_info(environment: dict[str, Any], task: Task) -> dict[str, Any]:
    """What a checkpoint holds beside the state, at step 0."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_seconds": 0.0,
        "evaluated": 0,  # the last step that was evaluated
        "best": None,
        "final": None,
        "averager": None,
        "environment": environment,
        "earlier": [],  # environments of sessions that another one followed
        "sizes": dict(task.sizes),
        "class_names": list(task.class_names),
    }


def is_best(found: dict[str, dict[str, float]], best: dict[str, Any] | None, loop: LoopConfig, metric: str) -> bool:
    """Whether an evaluation is the best so far; ties are broken by loop.best_tie."""
    if loop.best_split is None or best is None:
        return loop.best_split is not None
    new, old = found[loop.best_split][metric], best[loop.best_split][metric]
    return new > old or (new == old and loop.best_tie == "latest")


def check_finite(state: TrainState, averager: MetricAverager, checkpoints: Checkpoints) -> None:
    """Raises UserError if the loss, gradient or parameters of any step so far were not finite."""
    if (bad_step := int(state.bad_step)) >= 0:
        metric = averager.first_not_finite(GUARDED) or "loss"
        checkpoints.wait()
        last, where = checkpoints.last_step(), f"({checkpoints.folder})"
        kept = f"the checkpoint of step {last:,} is good {where}" if last else f"no checkpoint was kept before {where}"
        remedy = "Lower optim.peak_lr, or set model.dtype=float32, and start anew"
        raise UserError(f"step {bad_step:,}: {metric} is not finite; {kept}. {remedy}")


def count_parameters(state: TrainState) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(state.params))


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
        ("parameters", f"{count_parameters(state):,}"),
    ]
    if flops:
        cost = f"{flops / 1e9:.3g} G an example forward, {3 * flops * batch / 1e12:.3g} T a training step"
        rows.append(("FLOPs", cost))
    return rows + ([("start", origin)] if origin else [])


def start_tracker(config: Config, folder: Path) -> Tracker:
    """Starts or continues the run in W&B."""
    return Tracker(
        config.logger.mode if is_main() else "disabled",
        id=folder.name,
        dir=str(folder),
        name=run_name(config),
        group=config.experiment,
        job_type="train",
        tags=[*config.experiment.split("/"), f"seed {config.seed}"],
        config=plain_config(config),
        project=config.logger.project,
        entity=config.logger.entity,
    )
