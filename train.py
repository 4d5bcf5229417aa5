"""The training loop: `python train.py experiment=arrow/plstm seed=43` trains a run; the same command again resumes it.

A run lives in runs/<id>, <id> a hash of its config: .hydra/, metrics.jsonl, checkpoints/, figures/. At its end a record
and a curve enter results/runs, from which tables and figures are made. Read from top to bottom.
"""

import contextlib
import signal
from pathlib import Path

import hydra
import jax
from flax import nnx
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from plstm.config import Config
from plstm.errors import ReadError, first_line
from plstm.files import write_errors
from plstm.runs.cli import one_line_errors, run_entry
from plstm.runs.compose import to_config
from plstm.runs.finetuning import check_start, initial_id
from plstm.runs.folders import TO_TRAIN_AGAIN, check_places, lock_folder
from plstm.runs.identity import named, portable_overrides, run_id, run_name
from plstm.runs.overrides import check_machine_keys
from plstm.runs.pictures import draw_run
from plstm.runs.session import Session, Stopped
from plstm.studies.finished import finished_record
from plstm.studies.records import Record, curve_points, find_record, record_path, write_record
from plstm.training.environment import check_devices, memory_errors, share_programs
from plstm.training.processes import Interrupt, check_agreement, from_main, is_main, log_main, start_processes

ROOT = Path(__file__).resolve().parent
LESS_MEMORY = (
    "take a smaller optim.batch_size or, where the task or model has them, more devices, model.remat=true (blocks are "
    "computed twice, not kept) or mesh.fsdp, which splits the state between devices"
)


@hydra.main(config_path=str(ROOT / "configs"), config_name="train", version_base="1.3")
def main(node: DictConfig) -> Record | None:
    """Trains one run to its end, or until a signal stops it; returns its record (in process 0)."""
    try:
        with one_line_errors():
            overrides = list(HydraConfig.get().overrides.task)
            config = named(to_config(node), overrides)
            check_machine_keys(overrides, config)
            with Interrupt() as interrupt, memory_errors(config.optim.batch_size, LESS_MEMORY, "optim.batch_size"):
                return start(config, overrides, interrupt)
    except Stopped as stopped:
        (number,) = stopped.args
        if number == signal.SIGUSR2:
            signal.raise_signal(number)  # for the launcher that waits for it, see Interrupt
        raise SystemExit(128 + number) from None


def start(config: Config, overrides: list[str], interrupt: Interrupt) -> Record | None:
    """Trains the run of a config unless it has finished before."""
    start_processes(config.mesh.timeout)
    check_devices()
    share_programs(config.paths.runs)
    init_from = config.init_from
    if init_from is not None:
        config.init_from = initial_id(init_from, Path(config.paths.runs))
    run = run_id(config)
    check_agreement(f"{run} {config.mesh}")
    folder = Path(config.paths.runs, run)
    record = find_record(run, config.paths.results)
    if from_main(int(record is not None)):
        path = record_path((record or config).experiment, config.paths.results)
        log_main(f"{run_name(config)} ({run}) has finished; its record is in {path}")
        again = f"to train it again: the same command with {TO_TRAIN_AGAIN}"
        log_main(f"its weights are in {folder}" if folder.is_dir() else again)
        return record
    check_places(config)
    if init_from is not None and from_main(int(not any((folder / "checkpoints").glob("*")))):
        check_start(init_from, config)  # now, and not once the data are there
    overrides = portable_overrides(overrides, config.init_from)
    with lock_folder(folder) if is_main() else contextlib.nullcontext():
        session = Session(config, folder, overrides, init_from, interrupt, ROOT)
        try:
            train(session)
            return finish(session, overrides)
        finally:
            session.tracker.finish()  # does nothing after the run's end


def train(session: Session) -> None:
    """Takes the run's steps, those of earlier sessions excepted. Raises Stopped after a signal, with all saved."""
    try:
        with session.progress:
            loop(session)
    except (Stopped, ReadError) as error:
        if isinstance(error, ReadError) and jax.process_count() > 1:
            raise  # saving takes all processes, and the others have not stopped
        session.save_and_close()
        # A signal may have ended the reading processes before the loop saw it.
        number = session.interrupt.signal_number or (error.args[0] if isinstance(error, Stopped) else None)
        step = f"step {session.run.step:,}"
        if number is not None:
            log_main(f"stopped by signal {number} at {step}, saved; the same command resumes the run")
            raise Stopped(number) from None
        if session.run.step:
            log_main(f"saved at {step}; the same command resumes the run")
        raise


def loop(session: Session) -> None:
    """Step, log, evaluate, save, until the last step is evaluated and saved."""
    run = session.run
    plan = session.plan
    splits = session.config.loop
    batches = session.batches.from_step(run.step)
    while run.step < run.steps:
        # At the top, so that a run resumed at this step makes up for an evaluation that a signal cut off.
        if run.step % plan.eval_every == 0 and run.evaluated < run.step:
            saves = run.step % plan.save_every == 0
            session.evaluate(splits.eval_splits, shown=saves)
            if saves and run.step < run.steps:
                session.save()
            continue  # for this may be the last step
        batch = session.averager.fetch(batches)
        session.state, metrics = session.programs.step(session.state, batch, session.step_key)
        run.step += 1
        session.averager.add(metrics)
        session.interrupt.save_before_leaving()
        if run.step % plan.log_every == 0 or run.step % plan.eval_every == 0 or run.step == plan.steps:
            session.log(metrics)
        session.stop_if_signalled()
    if run.final is None:
        run.final = session.evaluate(splits.final_splits)
        session.save()


def finish(session: Session, overrides: list[str]) -> Record | None:
    """Draws the pictures and writes the record; returns it (in process 0)."""
    run = session.run
    config = session.config
    session.checkpoints.close()  # before the record: where there is a record, all else is there
    # Takes all processes, so before one of them may leave.
    weights = jax.device_get(session.programs.layout.local(session.state.weights))
    session.interrupt.leave_at_once(f"at step {run.step:,}, saved; the same command resumes the run")
    if not is_main():
        return None
    model = nnx.merge(session.programs.graphdef, weights)
    final_splits = {split: session.splits[split] for split in config.loop.final_splits}
    folder = session.folder / "figures"
    try:
        pictures = draw_run(session.task, model, session.programs.predict, final_splits, folder, session.name)
    except Exception as error:  # whatever Matplotlib meets on this machine costs no record
        pictures = []
        log_main(f"{folder}: pictures could not be drawn ({type(error).__name__}: {first_line(error)})")
    for picture in pictures:
        session.tracker.image(picture.stem.removeprefix(f"{session.name}-"), picture, run.step)
    session.tracker.summary(run.summary(session.task.primary_metric))
    session.tracker.finish()
    curve = curve_points(run.lines)
    record = finished_record(overrides, session.task, session.plan, run, session.parameters, curve)
    curve = [point for point in curve if session.task.keeps_curve(point.split, point.metric)]
    with write_errors(Path(config.paths.results), "correct that, or choose another paths.results; then rerun"):
        path = write_record(record, curve, config.paths.results)
    print(f"{session.label}: finished, see {path}", flush=True)
    return record


if __name__ == "__main__":
    run_entry(main, Config)
