"""The functions that a run of a task compiles."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import optax
from flax import nnx

from plstm.errors import UserError
from plstm.tasks.base import Task
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer, epoch_schedule, learning_rate_schedule
from plstm.training.plan import Plan
from plstm.training.steps import Batch, Metrics, StepMetrics, TrainState, make_predict, make_train_step

_latest: dict[str, "Programs"] = {}  # those of one run


class Programs(NamedTuple):
    layout: Layout
    graphdef: nnx.GraphDef
    optimizer: optax.GradientTransformation
    step: Callable[[TrainState, Batch, jax.Array], tuple[TrainState, StepMetrics]]  # of state, batch and key
    measure: Callable[[Any, Batch], Metrics]  # of weights and batch, as are those below
    predict: Callable[[Any, Batch], jax.Array]  # logits
    inspect: Callable[[Any, Batch], dict[str, jax.Array]]  # statistics from inside the model

    @classmethod
    def of(cls, task: Task, plan: Plan) -> Self:
        config = task.config
        layout = Layout(make_mesh(config.optim.batch_size, config.mesh.fsdp))
        if config.optim.schedule_per == "epoch":
            schedule = epoch_schedule(config.optim, plan.steps_per_epoch)
        else:
            schedule = learning_rate_schedule(config.optim, plan.steps, plan.warmup_steps)
        optimizer = build_optimizer(config.optim, schedule)
        model = nnx.eval_shape(lambda: task.build_model(0))
        if config.optim.only and jax.tree.leaves(nnx.state(model, nnx.BatchStat)):
            raise UserError("optim.only: training changes the model's batch norms, too; leave it out")
        graphdef = nnx.graphdef(model)
        is_one_cpu = jax.default_backend() == "cpu" and layout.mesh.size == 1
        microbatches = task.microbatches() if is_one_cpu else 1
        return cls(
            layout,
            graphdef,
            optimizer,
            make_train_step(
                graphdef,
                optimizer,
                schedule,
                task.loss,
                layout=layout,
                microbatches=microbatches,
                only=config.optim.only,
            ),
            make_predict(graphdef, task.metrics, layout),
            make_predict(graphdef, task.logits),
            make_predict(graphdef, task.statistics),
        )


def compile_programs(task: Task, plan: Plan) -> Programs:
    """The programs of a run. Runs in turn which differ only in their seed or fold share them, see `shared_config`."""
    shared = type(task)(task.shared_config())
    key = repr((shared.config, plan.steps, plan.steps_per_epoch, plan.warmup_steps))
    if key not in _latest:
        _latest.clear()
        _latest[key] = Programs.of(shared, plan)
    return _latest[key]
