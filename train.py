"""The training loop: `python train.py experiment=arrow/plstm seed=43` trains a run, the same command again resumes it.

A run lives in runs/<id>, where <id> is a hash of its configuration: Hydra's files, metrics.jsonl, checkpoints/. When it
has finished, its record and curve enter results/, from which tables and figures are made. Read from top to bottom.
"""

from __future__ import annotations

import contextlib
import json
import signal
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import hydra
import jax
from absl import logging
from flax import nnx
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from plstm.config import Config, identity, plain_config, portable, run_id, run_name, to_config
from plstm.errors import ReadError, UserError
from plstm.results.fold_tables import describe_folds
from plstm.results.records import RunRecord, has_record, record_path, write_record
from plstm.runs.cli import run_entry, task
from plstm.runs.finetuning import Initial, initial_id
from plstm.runs.folders import curve_of, lock_folder
from plstm.tasks import TASKS
from plstm.training.averaging import Window
from plstm.training.checkpoints import Checkpoints
from plstm.training.environment import describe_environment
from plstm.training.evaluation import describe, evaluate
from plstm.training.interrupt import Interrupt
from plstm.training.memory import forget_programs_near_limit, memory_errors
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer, epoch_schedule, learning_rate_schedule
from plstm.training.processes import Votes, check_agreement, from_main, is_main, start_processes
from plstm.training.progress import Progress, banner
from plstm.training.steps import GUARDED, Programs, init_state, make_predict, make_train_step, share_programs
from plstm.training.tracking import MetricsWriter, Tracker

ROOT = Path(__file__).resolve().parent
PROBE = 8  # examples that the logged statistics of the model are taken over
FINISHED: list[tuple[Path, str]] = []  # record and id of each of this process's runs
SECONDS_TO_LEAVE = 5  # that W&B gets for uploads when a signal or an error stops the run


class Stopped(Exception):
    """A signal, its number the argument, asks to stop."""


@hydra.main(config_path=str(ROOT / "configs"), config_name="train", version_base="1.3")
@task(Config)
def main(node: DictConfig) -> None:
    """Trains one run to its end, or until SIGTERM or SIGINT."""
    logging.set_verbosity(logging.ERROR)
    config = to_config(node)
    with Interrupt() as interrupt, memory_errors(config.optim.batch_size):
        training, signal_number = train(config, interrupt)
    if signal_number is not None:
        say(f"stopped by signal {signal_number} at step {training.step:,}, saved; the same command goes on")
        if signal_number == signal.SIGUSR2:
            signal.raise_signal(signal_number)  # to whoever waited for it, see Interrupt
        raise SystemExit(128 + signal_number)


def train(config: Config, interrupt: Interrupt) -> tuple[Training | None, int | None]:
    """Returns the run, None where it had finished before, and the number of the signal that stopped it, if one did."""
    start_processes(config.mesh.timeout)
    if (initial := config.init_from) is not None:
        config.init_from = initial_id(initial, Path(config.paths.runs))
    run = run_id(plain_config(config))
    check_agreement(f"{run} {config.mesh}")
    where = run, plain_config(config), config.paths.results
    if from_main(has_record(*where)):
        say(f"{run_name(config)} ({run}) has finished; its record is {record_path(*where)}")
        FINISHED.append((record_path(*where), run))
        return None, None
    folder = Path(config.paths.runs, run)
    with lock_folder(folder) if is_main() else contextlib.nullcontext():
        overrides = portable(HydraConfig.get().overrides.task, config.init_from)
        training = Training(config, run, folder, overrides, initial)
        try:
            training.show_banner()
            signal_number = training.run_loop(interrupt)
            training.checkpoints.close()  # who finds the record must find the checkpoint
            if signal_number is None:
                weights = training.whole_weights()  # of all processes together, so before one of them may leave
                interrupt.leave_at_once(f"at step {training.step:,}, saved; the same command goes on")
                training.finish(weights)
        finally:
            training.tracker.finish(SECONDS_TO_LEAVE)  # where the run ends before its end
    return training, signal_number


def say(text: str) -> None:
    """Prints a line, once for all processes."""
    if is_main():
        print(text, flush=True)


class Training:
    """One run in this process: what it is made of, the loop, and its end.

    Where a run has several processes, each of them does the same, but only process 0 prints, logs and writes.
    """

    # ------------------------------------------------------------------ what a run is made of
    def __init__(self, config: Config, run: str, folder: Path, overrides: list[str], initial: str | None):
        """`initial` is where the run to fine-tune lies, None where there is none."""
        self.config, self.run, self.folder, self.overrides = config, run, folder, overrides
        self.session_start = time.monotonic()
        self.checkpoints = Checkpoints(folder / "checkpoints", say=say)
        self.last = from_main(self.checkpoints.last_step() or 0)  # on network disks some processes may see it later
        self.initial = Initial(initial, config) if initial and not self.last else None
        self.environment = describe_environment(ROOT)
        self.layout = Layout(make_mesh(config.optim.batch_size, config.mesh.fsdp))
        init_key, order_key, drop_key = (jax.random.fold_in(jax.random.key(config.seed), n) for n in range(3))

        self.task = TASKS[config.task](config)
        names = dict.fromkeys([*config.loop.eval_splits, *config.loop.final_splits])
        self.splits = {name: self.task.split(name) for name in names}
        self.source = self.task.batches(order_key, self.layout)
        self.steps_per_epoch = self.task.steps_per_epoch
        self.steps = max(round(config.optim.epochs * self.steps_per_epoch), 1)
        self.warmup_steps = round(config.optim.warmup_epochs * self.steps_per_epoch)

        unit = self.steps_per_epoch if config.loop.unit == "epochs" else 1
        self.log_every, self.eval_every = config.loop.log_every * unit, config.loop.eval_every * unit
        self.save_every = config.loop.save_every * unit if config.loop.save_every else self.eval_every

        self.prepare(init_key, drop_key)
        self.probe = self.splits[config.loop.eval_splits[0]].first(PROBE * jax.process_count())

        self.restore()
        self.tracker = Tracker.start(
            run_id=run,
            name=run_name(config),
            group=config.experiment,
            job_type="train",
            tags=[*config.experiment.split("/"), f"seed {config.seed}"],
            config=plain_config(config),
            directory=folder,
            mode=config.logger.mode if is_main() else "disabled",
            project=config.logger.project,
            entity=config.logger.entity,
            lines=self.metrics.lines(),
        )

    def prepare(self, init_key: jax.Array, drop_key: jax.Array) -> None:
        """Draws the state of step 0, and makes what will be compiled, or takes it from the last run of this process."""
        config, task = self.config, self.task
        schedule = learning_rate_schedule(config.optim, self.steps, self.warmup_steps)
        if config.optim.schedule_per == "epoch":
            schedule = epoch_schedule(config.optim, self.steps_per_epoch)
        optimizer = build_optimizer(config.optim, schedule)
        graphdef, state = init_state(task.build_model(init_key), optimizer)
        self.state = self.layout.place_state(state)

        def make() -> Programs:
            key = drop_key if task.draws else jax.random.key(0)  # the same program for all seeds
            step = make_train_step(graphdef, optimizer, schedule, task.loss, key=key, layout=self.layout)
            return Programs(graphdef, step, *(make_predict(graphdef, part) for part in (task.logits, task.statistics)))

        what = [task.program(identity(plain_config(config))), self.steps, self.warmup_steps, str(self.layout.mesh)]
        programs = share_programs(json.dumps(what, sort_keys=True), make)
        self.graphdef, self.train_step, self.predict, self.inspect = programs

    def restore(self) -> None:
        """Goes on from the last checkpoint, if there is one, else from the weights of the run to fine-tune."""
        self.info = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "wall_seconds": 0.0}
        self.info |= {"best": None, "final": None, "window": None, "evaluated": self.last}
        self.info |= {"environment": self.environment, "earlier": []}
        if self.last:
            self.state, info = self.checkpoints.restore(self.last, self.state)
            self.info |= info
            if self.info["environment"] != self.environment:
                self.info["earlier"].append({"until": self.last, **self.info["environment"]})
                self.info["environment"] = self.environment
        elif self.initial:
            params, self.start_weights = self.initial.load(self.state.params, self.layout.copies)
            self.state = self.state._replace(params=self.layout.place_state(params))
        self.wall_before = self.info["wall_seconds"]
        self.start = self.step = int(self.state.step)
        self.window = Window(self.info["window"])
        self.metrics = MetricsWriter(self.folder / "metrics.jsonl", enabled=is_main())
        self.metrics.truncate_after(self.start, self.info["evaluated"])

    def show_banner(self) -> None:
        """Prints what is about to run."""
        config, batch = self.config, self.config.optim.batch_size
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(self.state.params))
        flops = self.task.flops()
        device = self.environment["hardware"]["device_kind"]
        devices = self.layout.mesh.size
        where = jax.default_backend() + (f", {jax.process_count()} processes" if jax.process_count() > 1 else "")
        shared = f", parameters split over {config.mesh.fsdp}" if config.mesh.fsdp > 1 else ""
        resumed = f", resumed at step {self.start:,}" if self.start else ""
        rows = [
            ("run", f"{self.run} in {self.folder}{resumed}"),
            ("devices", f"{devices} x {device} ({where}){shared}"),
            ("data", self.task.describe_data()),
            ("batch", f"{batch} = {devices} devices x {batch // devices}"),
            ("schedule", f"{self.steps:,} steps = {config.optim.epochs:g} epochs x {self.steps_per_epoch:,}"),
            ("optimizer", f"{config.optim.name}, peak {config.optim.peak_lr:g} after {self.warmup_steps:,} steps"),
            ("parameters", f"{self.parameters:,}"),
        ]
        if flops:
            cost = f"{flops / 1e9:.3g} G an example forward, {3 * flops * batch / 1e12:.3g} T a training step"
            rows.append(("FLOPs", cost))
        if self.initial:
            rows.append(("start", self.start_weights))
        self.console = Console(quiet=not is_main())
        banner(run_name(config), rows, self.console)

    @property
    def examples_a_step(self) -> float:
        """Fewer than the batch size where the last batch of an epoch is not full."""
        return min(self.config.optim.batch_size, self.task.train_examples / self.steps_per_epoch)

    # ------------------------------------------------------------------ the loop
    def run_loop(self, interrupt: Interrupt) -> int | None:
        """Trains to the last step; returns None, or the number of the signal that stopped it earlier."""
        loop = self.config.loop
        batches = self.source.from_step(self.start)
        self.interrupt, self.votes = interrupt, Votes(self.layout)
        self.progress = Progress(self.steps, self.start, run_name(self.config), console=self.console)
        with self.progress:
            try:
                while self.step < self.steps:
                    # At the top, so that a run resumed at this step makes up for an evaluation that a signal ended.
                    if self.step % self.eval_every == 0 and self.info["evaluated"] < self.step:
                        is_save = self.step % self.save_every == 0
                        found = self.evaluate(loop.eval_splits, shown=is_save)
                        if is_save:
                            self.save(found)
                    self.state, metrics = self.train_step(self.state, next(batches))
                    self.step += 1
                    self.window.add(metrics)
                    interrupt.wait_for_saving()
                    if 0 in (self.step % self.log_every, self.step % self.eval_every, self.step - self.steps):
                        self.log()
                    self.stop_if_asked()
                if self.info["final"] is None:
                    self.info["final"] = self.evaluate(loop.final_splits)
                    self.save(self.info["final"])
            except Stopped as stopped:
                self.save(None)
                return self.interrupt.signal_number or stopped.args[0]
            except ReadError:
                if jax.process_count() > 1:
                    raise  # for it takes all processes to save
                self.checkpoints.wait()
                if self.step > (self.checkpoints.last_step() or 0):
                    self.save(None)
                    self.checkpoints.wait()
                    say(f"saved at step {self.step:,}; the same command goes on")
                # A signal may have gone to the processes that read the data, too, and ended them before.
                if self.interrupt.signal_number is None:
                    raise
                return self.interrupt.signal_number
        return None

    def stop_if_asked(self) -> None:
        """Raises Stopped in all processes of the run where a signal has come to one of them."""
        if signal_number := self.votes.cast(self.interrupt.signal_number or 0):
            raise Stopped(signal_number)

    def log(self) -> None:
        """Writes the mean of the training metrics since the last time; stops the run if they are not finite."""
        self.check_finite()
        values = self.window.close(self.examples_a_step)
        epoch = self.step / self.steps_per_epoch
        self.tracker.log(self.metrics.write(self.step, epoch, "train", values))
        names = {"loss": "loss", "accuracy": "accuracy", "images_per_second": f"{self.task.noun}_per_second"}
        shown = {word: values[name] for name, word in names.items() if name in values}
        self.progress.update(self.step, {"epoch": epoch} | shown)

    def evaluate(self, names: list[str], shown: bool = True) -> dict[str, dict[str, float]]:
        """Evaluates whole splits; keeps the metrics, prints them if `shown`, and remembers the best step."""
        epoch, weights = self.step / self.steps_per_epoch, self.layout.gather(self.state.weights)
        rest = (self.config.optim.batch_size, self.layout.place_rows, self.stop_if_asked)
        found = {name: evaluate(self.predict, weights, self.splits[name], *rest) for name in names}
        for name, values in found.items():
            self.tracker.log(self.metrics.write(self.step, epoch, name, values))
            if shown:
                self.progress.message(f"step {self.step:,}  {describe(name, values, self.task.noun)}")
        if statistics := jax.device_get(self.inspect(self.layout.local(weights), self.probe)):
            self.tracker.log(self.metrics.write(self.step, epoch, "model", statistics))
        if self.is_best(found):
            self.info["best"] = {"step": self.step, **found}
        self.info["evaluated"] = self.step
        forget_programs_near_limit()
        self.window.restart_clock()
        return found

    def is_best(self, found: dict[str, dict[str, float]]) -> bool:
        """Whether this evaluation is the best so far, of equals the one that loop.best_tie says."""
        loop, before = self.config.loop, self.info["best"]
        if before is None or loop.best_metric is None:
            return loop.best_metric is not None
        new, old = found[loop.best_metric]["accuracy"], before[loop.best_metric]["accuracy"]
        return new > old or (new == old and loop.best_tie == "latest")

    def save(self, found: dict[str, dict[str, float]] | None) -> None:
        """Keeps a checkpoint, ordered by the accuracy of an evaluation; without one it is never the best."""
        self.check_finite()
        self.info["wall_seconds"] = self.wall_before + time.monotonic() - self.session_start
        self.info["window"] = self.window.state()
        best, is_best = self.config.loop.best_metric, (self.info["best"] or {}).get("step") == self.step
        score = found[best]["accuracy"] if found and is_best else -1.0
        self.checkpoints.save(self.step, self.state, self.info, score)
        self.window.restart_clock()

    def check_finite(self) -> None:
        """Raises UserError if the loss, gradient or parameters of any step so far were not finite."""
        if (bad_step := int(self.state.bad_step)) >= 0:
            metric = self.window.first_not_finite(GUARDED) or "loss"
            self.checkpoints.wait()
            last = self.checkpoints.last_step()
            kept = f"the checkpoint of step {last:,} is good" if last else "no checkpoint was kept before"
            raise UserError(
                f"step {bad_step:,}: {metric} is not finite; {kept} ({self.checkpoints.folder}). "
                "Lower optim.peak_lr, or set model.dtype=float32, and start anew"
            )

    # ------------------------------------------------------------------ the end
    def whole_weights(self) -> nnx.State:
        """The weights on the host."""
        return jax.device_get(self.layout.local(self.state.weights))

    def finish(self, weights: nnx.State) -> None:
        """Writes the run's record and curve to the results, and pictures by the weights."""
        config, final = self.config, self.info["final"]
        if not is_main():
            return
        curve = curve_of(self.metrics.path)
        rates = [point.value for point in curve if point.metric == "images_per_second"]
        rates = rates or [self.steps * self.examples_a_step / self.info["wall_seconds"]]  # a run of one step
        record = RunRecord(
            id=self.run,
            name=run_name(config),
            experiment=config.experiment,
            command=" ".join(["python train.py", *self.overrides]),
            overrides=self.overrides,
            config=identity(plain_config(config)),
            table=config.report.table,
            row=config.report.row,
            seed=config.seed,
            **self.environment,
            started=self.info["started"],
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_seconds=round(self.info["wall_seconds"], 1),
            steps=self.steps,
            epochs=self.steps / self.steps_per_epoch,
            images_per_second=round(statistics.median(rates), 1),
            parameters=self.parameters,
            flops_per_image=self.task.flops(),
            metrics={"last": final, "best": self.info["best"]},
            earlier=self.info["earlier"],
        )
        kept = [point for point in curve if self.task.keeps_curve(point.split, point.metric)]
        model = nnx.merge(self.graphdef, weights)
        shown = {split: self.splits[split] for split in config.loop.final_splits}
        for picture in self.task.draw(model, self.predict, shown, self.folder / "figures", record.name):
            self.tracker.image(picture.stem, picture, self.steps)
        self.tracker.summary({f"final/{split}/accuracy": metrics["accuracy"] for split, metrics in final.items()})
        self.tracker.finish()
        path = write_record(record, kept, Path(config.paths.results))  # the last act: with a record, all is done
        print(f"{record.name}: finished; record in {path}", flush=True)
        FINISHED.append((path, self.run))


if __name__ == "__main__":
    run_entry(main, Config)
    for line in describe_folds(FINISHED):
        print(line)
