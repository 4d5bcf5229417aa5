"""A process's work on a run: what train.py's loop reads and changes, and what it does at some of its steps."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from plstm.config import Config
from plstm.errors import UserError, printable
from plstm.files import core_count
from plstm.runs.finetuning import initial_weights
from plstm.runs.folders import write_config
from plstm.runs.identity import plain_config, run_id, run_name, variant_names
from plstm.tasks import TASKS, Task
from plstm.tasks.programs import compile_programs
from plstm.training.checkpoints import NO_SCORE, Checkpoints
from plstm.training.environment import describe_environment
from plstm.training.flops import MANY_HOURS
from plstm.training.processes import Interrupt, SharedSignal, is_main, log_main
from plstm.training.progress import MetricAverager, Progress, banner, print_plain
from plstm.training.state import Found, RunState
from plstm.training.steps import GUARDED, Batch, Split, StepMetrics, describe, evaluate, init_state
from plstm.training.tracking import MetricsWriter, Tracker, long_name

PROBED = 8  # examples over which the logged statistics of the model are taken, or a batch where a split has its own


class Stopped(Exception):
    """A signal stopped the run, which `train` then saves; the argument is the signal's number."""


class Session:
    """With several processes each has one; only process 0 prints, logs and writes."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        overrides: list[str],
        init_from: str | None,
        interrupt: Interrupt,
        root: Path,
    ):
        """Prepares a run, or what is left of it; init_from: the run to fine-tune; root: of the repository."""
        start = time.monotonic()
        self.config = config
        self.folder = folder
        self.name = run_name(config)
        self.interrupt = interrupt

        # -------------------------------------------------------- model and optimizer; what they refuse, before data
        self.task = task = TASKS[config.task](config)
        self.plan = task.plan()
        _warn_of_cost(task)
        self.programs = compile_programs(task, self.plan)
        layout = self.programs.layout
        init_key, self.step_key = (jax.random.fold_in(jax.random.key(config.seed), n) for n in (0, 2))
        self.state = layout.place_state(init_state(task.build_model(init_key), self.programs.optimizer))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(self.state.params))

        # -------------------------------------------------------- data
        loop = config.loop
        self.splits = {name: task.split(name) for name in dict.fromkeys([*loop.eval_splits, *loop.final_splits])}
        self.probe = _first_examples(self.splits[loop.eval_splits[0]])
        self.batches = task.batches(layout)

        # -------------------------------------------------------- restore: the first of these that is there
        # 1. the last undamaged checkpoint of this run, 2. the weights of the run to fine-tune, 3. the state just drawn
        self.checkpoints = Checkpoints(folder / "checkpoints", folder.name)
        self.run = RunState(self.plan.steps, dict(task.sizes), list(task.class_names))
        origin = None
        if last := self.checkpoints.last_step():
            self.state, saved = self.checkpoints.restore(last, self.state)
            self.run = RunState.from_json(saved, folder)
            if self.run.steps > self.plan.steps:
                raise UserError(f"{folder}: its checkpoints go beyond step {self.plan.steps:,}; remove the folder")
        elif init_from is not None:
            params = layout.gather(self.state.params)
            weights, origin = initial_weights(init_from, config, params, layout.copies)
            self.state = self.state._replace(**layout.place_state(weights))
        self.run.begin_session(describe_environment(root))
        self._start = start - self.run.seconds  # as if it had never stopped

        # -------------------------------------------------------- logging
        self.console = Console(quiet=not is_main())
        self.averager = MetricAverager(self.run.averages)
        self.metrics = MetricsWriter(folder / "metrics.jsonl", self.run.lines, is_main())
        banner(self.name, self.describe(overrides, layout.mesh.size, origin), self.console)
        self.progress = Progress(self.plan.steps, self.run.step, self.label, task.unit, self.console)
        self._signal = SharedSignal(layout)
        if is_main():  # from here on nothing refuses the run
            write_config(folder, config, overrides)
        mode = config.logger.mode if is_main() else "disabled"
        self.tracker = open_tracker(mode, task, folder, overrides, self.run.environment, self.parameters)

    @property
    def label(self) -> str:
        """What a line of this run begins with; the id's first digits tell runs apart that train side by side."""
        return f"{self.name} {self.folder.name[:4]}"

    # ------------------------------------------------------------------ in the loop
    def log(self, metrics: StepMetrics) -> None:
        """Logs the metrics averaged since the last call, and those of the step just taken."""
        self.check_finite()
        values = self.averager.close(self.plan.examples_per_step)
        self._write("train", values)
        shown = {name: values[name] for name in ("loss", self.task.primary_metric) if name in values}
        shown |= {name: value for name, value in values.items() if name not in metrics.latest}
        self.progress.show(self.run.step, shown | {"epoch": self.run.step / self.plan.steps_per_epoch})
        if share := self.averager.waited():
            workers = "" if "workers" in self.task.unused_keys else "data.workers, and "
            log_main(f"{share:.0%} of the training time is waiting for data; see {workers}whether cores are idle")

    def evaluate(self, names: Sequence[str], shown: bool = True) -> Found:
        """Evaluates whole splits, logs their metrics and updates the run's best and last step."""
        layout = self.programs.layout
        weights = layout.gather(self.state.weights)
        batch_size = self.config.optim.batch_size
        found: Found = {}
        for name in names:
            split = self.splits[name]
            found[name] = evaluate(
                self.programs.measure, weights, split, batch_size, layout.place_rows, self.stop_if_signalled
            )
        metric = self.task.primary_metric
        for name, values in found.items():
            if metric not in values:
                has = f"its evaluations have {', '.join(values)}; correct primary_metric of its class"
                raise UserError(f"task {self.config.task}: its primary metric is {metric}, and {has}")
            self._write(name, values)
            if shown:
                print_plain(self.console, f"{self.label}: {self.run.step:,}  {describe(name, values)}")
        if statistics := jax.device_get(self.programs.inspect(layout.local(weights), self.probe)):
            self._write("model", statistics)
        self.run.add_evaluation(found, self.config.loop, metric)
        self.averager.restart_clock()
        return found

    def save(self) -> None:
        """Keeps a checkpoint; only that of the best step has a score."""
        self.interrupt.save_before_leaving()
        self.check_finite()
        run = self.run
        run.seconds = time.monotonic() - self._start
        run.averages = self.averager.state()
        score = NO_SCORE
        if run.best is not None and run.best["step"] == run.step:
            score = run.best[self.config.loop.best_split][self.task.primary_metric]
        self.checkpoints.save(run.step, self.state, run.to_json(), score)
        self.averager.restart_clock()

    def save_and_close(self) -> None:
        """Keeps what was computed since the last checkpoint."""
        self.checkpoints.wait()
        if self.run.step > (self.checkpoints.last_step() or 0):
            self.save()
        self.checkpoints.close()

    def stop_if_signalled(self) -> None:
        """Raises Stopped in all processes of the run when a signal has come to one of them."""
        if number := self._signal.any_process_signalled(self.interrupt.signal_number or 0):
            raise Stopped(self.interrupt.signal_number or number)

    def check_finite(self) -> None:
        """Raises UserError if the loss, gradient or parameters of any step so far were not finite."""
        bad_step = int(self.state.bad_step)
        if bad_step < 0:
            return
        metric = self.averager.first_not_finite(GUARDED) or "loss"
        self.checkpoints.wait()
        last = self.checkpoints.last_step()
        where = f"({self.checkpoints.folder})"
        kept = f"the checkpoint of step {last:,} is good {where}" if last else f"no checkpoint was kept before {where}"
        remedy = "Lower optim.peak_lr, or set model.dtype=float32 where the model has it, and start anew"
        raise UserError(f"step {bad_step:,}: {metric} is not finite; {kept}. {remedy}")

    def describe(self, overrides: Sequence[str], devices: int, origin: str | None) -> list[tuple[str, str]]:
        """The rows of the banner; origin: what fine-tuning starts from, None otherwise."""
        config = self.config
        optim = config.optim
        batch = optim.batch_size
        step = self.run.step
        flops = self.task.flops()
        platform = jax.default_backend()
        if jax.process_count() > 1:
            platform += f", {jax.process_count()} processes"
        shared = f", parameters split over {config.mesh.fsdp}" if config.mesh.fsdp > 1 else ""
        rows = [
            ("run", self.folder.name + (f", resumed at step {step:,}" if step else "")),
            ("folder", str(self.folder)),
            ("overrides", printable(" ".join(overrides)) or "none"),
            ("devices", f"{devices} x {jax.devices()[0].device_kind} ({platform}){shared}"),
            ("data", self.task.describe_data()),
            ("batch", f"{batch} = {devices} device{'s' * (devices > 1)} x {batch // devices}"),
            ("schedule", f"{self.plan.steps:,} steps = {optim.epochs:g} epochs x {self.plan.steps_per_epoch:,}"),
            ("optimizer", f"{optim.name}, peak {optim.peak_lr:g}, warm-up {optim.warmup_epochs:g} epochs"),
            ("parameters", f"{self.parameters:,}"),
        ]
        if flops:
            step_cost = f"{3 * flops * batch / 1e12:.3g} T a training step"
            rows.append(("FLOPs", f"{flops / 1e9:.3g} G an example forward, {step_cost}"))
        return rows + ([("start", origin)] if origin else [])

    def _write(self, split: str, values: dict[str, float]) -> None:
        self.tracker.log(self.metrics.write(self.run.step, self.run.step / self.plan.steps_per_epoch, split, values))


def _warn_of_cost(task: Task) -> None:
    threads = os.environ.get("NPROC", "")  # of XLA
    cores = int(threads) if threads.isdecimal() and int(threads) else core_count()
    if jax.default_backend() == "cpu" and (hours := task.cpu_hours() / cores) > MANY_HOURS:
        log_main(f"warning: about {hours:,.0f} hours on this machine's CPU, by its FLOPs; debug=smoke takes a minute")


def _first_examples(split: Split) -> Batch:
    """`PROBED` of this process, or fewer where the split is shorter, as padding would enter the statistics."""
    of_each = max(min(PROBED, len(split) // jax.process_count()), 1)
    return split.first(of_each * jax.process_count())


def open_tracker(
    mode: str, task: Task, folder: Path, overrides: Sequence[str], environment: dict[str, Any], parameters: int
) -> Tracker:
    """The W&B run of a run in `folder`, trained with these overrides in this environment; mode: as of `Tracker`."""
    config = task.config
    facts = {"parameters": parameters, "flops_per_example": task.flops(), **environment}
    return Tracker(
        mode,
        id=run_id(config),
        dir=str(folder),
        name=long_name(run_name(config), overrides),
        group=config.experiment,
        job_type="train",
        tags=[*config.experiment.split("/"), *variant_names(config), f"seed {config.seed}"],
        config=plain_config(config) | facts,
        project=config.logger.project,
        entity=config.logger.entity,
    )
