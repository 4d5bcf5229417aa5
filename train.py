"""The training loop: `python train.py experiment=arrow/plstm seed=43` trains a run; the same command again resumes it.

A run lives in runs/<id>, <id> a hash of its config: .hydra/, metrics.jsonl, checkpoints/, figures/. At its end a record
and a curve enter results/runs, from which tables and figures are made. Read from top to bottom.
"""

import contextlib
import signal
import time
from pathlib import Path

import hydra
import jax
from flax import nnx
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from plstm.config import Config
from plstm.errors import ReadError
from plstm.files import write_errors
from plstm.runs.cli import check_machine_keys, one_line_errors, run_entry
from plstm.runs.compose import to_config
from plstm.runs.finetuning import initial_id, initial_run, initial_weights
from plstm.runs.folders import check_places, lock_folder, write_config
from plstm.runs.identity import plain_config, portable_overrides, run_id, run_name, shared_config
from plstm.runs.programs import Plan, check_finite, compile_programs, describe_run, first_info, is_best, last_step
from plstm.studies.finished import finished_record
from plstm.studies.records import Record, curve_points, find_record, record_path, write_record
from plstm.tasks import TASKS
from plstm.training.checkpoints import NO_SCORE, Checkpoints
from plstm.training.environment import describe_environment, forget_programs_near_limit, memory_errors, share_programs
from plstm.training.meshes import Layout, make_mesh
from plstm.training.processes import Interrupt, Votes, check_agreement, from_main, is_main, say, start_processes
from plstm.training.progress import MetricAverager, Progress, banner, print_plain
from plstm.training.steps import describe, evaluate, init_state
from plstm.training.tracking import MetricsWriter, Tracker, long_name

ROOT = Path(__file__).resolve().parent
PROBE = 8  # examples over which the logged statistics of the model are taken
LESS_MEMORY = (
    "take a smaller optim.batch_size or, where the task or model has them, more devices, model.remat=true (blocks are "
    "computed twice, not kept) or mesh.fsdp, which splits the state between devices"
)


class Stopped(Exception):
    """A signal, its number the argument, stopped the run, which is saved."""


@hydra.main(config_path=str(ROOT / "configs"), config_name="train", version_base="1.3")
def main(node: DictConfig) -> Record | None:
    """Trains one run to its end, or until a signal stops it; returns its record (in process 0)."""
    try:
        with one_line_errors(Config):
            config, overrides = to_config(node), list(HydraConfig.get().overrides.task)
            check_machine_keys(overrides, config)
            with Interrupt() as interrupt, memory_errors(config.optim.batch_size, LESS_MEMORY):
                return start(config, overrides, interrupt)
    except Stopped as stopped:
        (number,) = stopped.args
        if number == signal.SIGUSR2:
            signal.raise_signal(number)  # for the launcher that waits for it, see Interrupt
        raise SystemExit(128 + number) from None


def start(config: Config, overrides: list[str], interrupt: Interrupt) -> Record | None:
    """Trains the run of a config unless it has finished before."""
    start_processes(config.mesh.timeout)
    share_programs(config.paths.runs)
    base = config.init_from
    if base is not None:
        config.init_from = initial_id(base, Path(config.paths.runs))
    run = run_id(config)
    check_agreement(f"{run} {config.mesh}")
    record = find_record(run, config.experiment, config.paths.results)
    if from_main(int(record is not None)):
        path = record_path(config.experiment, config.paths.results)
        say(f"{run_name(config)} ({run}) has finished; its record is in {path}")
        say("to train it again: the same command with paths.results=outputs/again paths.runs=outputs/again/runs")
        return record
    check_places(config)
    folder = Path(config.paths.runs, run)
    if base is not None and from_main(int(not any((folder / "checkpoints").glob("*")))):
        initial_run(base, config)  # now, and not once the data are there
    with lock_folder(folder) if is_main() else contextlib.nullcontext():
        return train(config, folder, portable_overrides(overrides, config.init_from), base, interrupt)


def train(config: Config, folder: Path, overrides: list[str], base: str | None, interrupt: Interrupt) -> Record | None:
    """Trains a run to its end; `base` is the run to fine-tune, None for none. Raises Stopped after a signal.

    Where a run has several processes, each of them does the same, but only process 0 prints, logs and writes.
    """
    session_start, loop, batch_size = time.monotonic(), config.loop, config.optim.batch_size

    # ------------------------------------------------------------ devices
    environment = describe_environment(ROOT)
    layout = Layout(make_mesh(batch_size, config.mesh.fsdp))

    # ------------------------------------------------------------ data
    task = TASKS[config.task](config)
    splits = {name: task.split(name) for name in dict.fromkeys([*loop.eval_splits, *loop.final_splits])}
    source, plan = task.batches(layout), Plan.of(config, task)
    probe = splits[loop.eval_splits[0]].first(PROBE * jax.process_count())

    # ------------------------------------------------------------ model and optimizer
    programs = compile_programs(shared_config(config), plan.steps, plan.steps_per_epoch, plan.warmup_steps)
    init_key, _, step_key = (jax.random.fold_in(jax.random.key(config.seed), n) for n in range(3))
    state = layout.place_state(init_state(task.build_model(init_key), programs.optimizer)[1])

    # ------------------------------------------------------------ restore: the first of these that is there
    # 1. the last undamaged checkpoint of this run, 2. the weights of the run to fine-tune, 3. the state just drawn
    checkpoints = Checkpoints(folder / "checkpoints", folder.name)
    last = checkpoints.last_step()
    info = first_info(task, plan, environment)
    origin = None
    if last:
        state, saved = checkpoints.restore(last, state)
        info |= saved
        if info["environment"] != environment:
            info["earlier"].append({"until": last, **info["environment"]})
            info["environment"] = environment
    elif base is not None:
        found, origin = initial_weights(base, config, layout.gather(state.params), layout.copies)
        state = state._replace(**layout.place_state(found))
    seconds_before, step = info["wall_seconds"], int(state.step)
    averager = MetricAverager(info["averager"])

    # ------------------------------------------------------------ logging
    metrics = MetricsWriter(folder / "metrics.jsonl", info["metrics"], is_main())
    console, name = Console(quiet=not is_main()), run_name(config)
    banner(name, describe_run(task, plan, layout.mesh, state, folder, origin), console)
    progress = Progress(plan.steps, step, name, task.unit, console)
    tracker = Tracker(
        config.logger.mode if is_main() else "disabled",
        id=folder.name,
        dir=str(folder),
        name=long_name(name, overrides),
        group=config.experiment,
        job_type="train",
        tags=[*config.experiment.split("/"), f"seed {config.seed}"],
        config=plain_config(config),
        project=config.logger.project,
        entity=config.logger.entity,
    )

    # ------------------------------------------------------------ what the loop does at some steps
    votes = Votes(layout)

    def stop_if_asked() -> None:
        """Raises Stopped in all processes of the run when a signal has come to one of them."""
        if number := votes.cast(interrupt.signal_number or 0):
            raise Stopped(interrupt.signal_number or number)

    def write(split: str, values: dict[str, float]) -> None:
        tracker.log(metrics.write(step, step / plan.steps_per_epoch, split, values))

    def log() -> None:
        check_finite(state, averager, checkpoints)
        values = averager.close(plan.examples_per_step)
        write("train", values)
        shown = {name: value for name, value in values.items() if name not in step_metrics.latest}
        progress.show(step, {"epoch": step / plan.steps_per_epoch, **shown})
        if share := averager.waited():
            workers = "" if "workers" in task.unused_keys else "data.workers, and "
            say(f"{share:.0%} of the training time is waiting for data; see {workers}whether cores are idle")

    def evaluate_splits(names: list[str], shown: bool = True) -> dict[str, dict[str, float]]:
        """Evaluates whole splits, logs the metrics and remembers the best step."""
        weights = layout.gather(state.weights)
        rest = (batch_size, layout.place_rows, stop_if_asked)
        found = {split: evaluate(programs.measure, weights, splits[split], *rest) for split in names}
        for split, values in found.items():
            write(split, values)
            if shown:
                print_plain(console, f"{name}: step {step:,}  {describe(split, values, task.unit)}")
        if inside := jax.device_get(programs.inspect(layout.local(weights), probe)):
            write("model", inside)
        if is_best(found, info["best"], loop, task.primary_metric):
            info["best"] = {"step": step, **found}
        info.update(evaluated=step, steps=last_step(found, step, info["steps"], loop, task.primary_metric))
        forget_programs_near_limit()
        averager.restart_clock()
        return found

    def save() -> None:
        """Keeps a checkpoint; only that of the best step has a score."""
        interrupt.save_before_leaving()
        check_finite(state, averager, checkpoints)
        info["wall_seconds"] = seconds_before + time.monotonic() - session_start
        info.update(averager=averager.state(), metrics=[*metrics.lines])  # a copy, as it is written later
        best = info["best"] or {}
        score = best[loop.best_split][task.primary_metric] if best.get("step") == step else NO_SCORE
        checkpoints.save(step, state, info, score)
        averager.restart_clock()

    try:
        if is_main():  # from here on nothing refuses the run
            write_config(folder, config, overrides)

        # -------------------------------------------------------- loop
        with progress:
            try:
                batches = source.from_step(step)
                while step < info["steps"]:
                    # At the top, so that a run resumed at this step makes up for an evaluation that a signal cut off.
                    if step % plan.eval_every == 0 and info["evaluated"] < step:
                        evaluate_splits(loop.eval_splits, shown=step % plan.save_every == 0)
                        if step % plan.save_every == 0 and step < info["steps"]:
                            save()
                        continue  # for this may be the last step
                    state, step_metrics = programs.step(state, averager.fetch(batches), step_key)
                    step += 1
                    averager.add(step_metrics)
                    interrupt.save_before_leaving()
                    if 0 in (step % plan.log_every, step % plan.eval_every, step - plan.steps):
                        log()
                    stop_if_asked()
                if info["final"] is None:
                    info["final"] = evaluate_splits(loop.final_splits)
                    save()
            except (Stopped, ReadError) as error:
                if isinstance(error, ReadError) and jax.process_count() > 1:
                    raise  # saving takes all processes, and the others have not stopped
                checkpoints.wait()
                if step > (checkpoints.last_step() or 0):
                    save()
                checkpoints.close()
                number = interrupt.signal_number or (error.args[0] if isinstance(error, Stopped) else None)
                if number is None:
                    if step:
                        say(f"saved at step {step:,}; the same command resumes the run")
                    raise
                # A signal may have ended the reading processes before the loop saw it.
                say(f"stopped by signal {number} at step {step:,}, saved; the same command resumes the run")
                raise Stopped(number) from None
        checkpoints.close()  # before the record: where there is a record, all else is there

        # -------------------------------------------------------- end: pictures, then the record
        weights = jax.device_get(layout.local(state.weights))  # takes all processes, so before one of them may leave
        interrupt.leave_at_once(f"at step {step:,}, saved; the same command resumes the run")
        if not is_main():
            return None
        model, final = nnx.merge(programs.graphdef, weights), {split: splits[split] for split in loop.final_splits}
        for picture in task.draw(model, programs.predict, final, folder / "figures", name):
            tracker.image(picture.stem, picture, step)
        primary = task.primary_metric
        tracker.summary({f"final/{split}/{primary}": found[primary] for split, found in info["final"].items()})
        tracker.finish()
        curve = curve_points(metrics.lines)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        record = finished_record(config, overrides, task, plan, info, parameters, curve)
        curve = [point for point in curve if task.keeps_curve(point.split, point.metric)]
        with write_errors(config.paths.results, "correct that, or choose another paths.results; then the same command"):
            path = write_record(record, curve, config.paths.results)
        print(f"{name}: finished; record in {path}", flush=True)
        return record
    finally:
        tracker.finish()  # does nothing after the run's end


if __name__ == "__main__":
    run_entry(main, Config)
