"""The record of a run that has just finished."""

import json
import shlex
import statistics
from datetime import UTC, datetime

from plstm.runs.identity import portable_config, run_id, run_name
from plstm.studies.records import CurvePoint, Record
from plstm.tasks import Task
from plstm.training.plan import Plan
from plstm.training.state import RunState


def finished_record(
    overrides: list[str],
    task: Task,
    plan: Plan,
    run: RunState,
    parameters: int,
    curve: list[CurvePoint],
) -> Record:
    """The record of a finished run of `plan`, from its state, number of parameters and curve."""
    config = task.config
    speeds = [point.value for point in curve if point.metric == "examples_per_second"]
    metrics = json.dumps({"last": run.final, "best": run.best})
    speeds = speeds or [run.steps * plan.examples_per_step / run.seconds]  # a run of one step
    return Record(
        id=run_id(config),
        name=run_name(config),
        experiment=config.experiment,
        variant=config.variant,
        task=config.task,
        seed=config.seed,
        command=shlex.join(["python", "train.py", *overrides]),
        overrides=overrides,
        config=portable_config(config),
        **run.environment,
        earlier=run.earlier,
        started=run.started,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_seconds=round(run.seconds, 1),
        steps=run.steps,
        epochs=run.steps / plan.steps_per_epoch,
        unit=task.unit,
        examples_per_second=round(statistics.median(speeds), 1),
        parameters=parameters,
        flops_per_example=task.flops(),
        metrics=json.loads(metrics, parse_constant=lambda name: None),  # not finite: None, as in metrics.jsonl
    )
