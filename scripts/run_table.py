"""Run what is missing of a results table, most telling runs first, and keep its tables and figure up to date.

    python scripts/run_table.py arrow --dry-run             # what is finished, what is not, and what it should cost
    python scripts/run_table.py imagenet --dry-run --measure 256        # costs by the speed of this machine's devices
    python scripts/run_table.py arrow --max-runs 2 logger.mode=disabled
    python scripts/run_table.py graphs --processes 2        # cross-validations side by side, a thread each

Typing the same command again goes on where the last one stopped.
Exit status: 0, 1 if a run failed, 2 if a record or a definition is wrong, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.errors import UserError
from plstm.results import execution, figures, fold_tables, sums, sweeps, tables
from plstm.results.definitions import TableDefinition, check_overrides, load_table
from plstm.results.records import Hardware, RunRecord, read_records
from scripts.benchmarks.harness import alternate
from scripts.common import positive

ROOT = Path(__file__).resolve().parents[1]
STEPS = 5  # measured


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a file of configs/tables, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides for every run")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and stop")
    throughput = parser.add_mutually_exclusive_group()
    throughput.add_argument(
        "--images-per-second",
        type=float,
        metavar="N",
        help="throughput of the first row's runs, to estimate by what nobody has measured; others by their operations",
    )
    throughput.add_argument(
        "--measure",
        type=positive,
        metavar="BATCH",
        help="with --dry-run: time training steps of the first row's model on BATCH images, and estimate by that",
    )
    parser.add_argument("--max-runs", type=positive, help="start at most this many runs, or cross-validations")
    parser.add_argument("--processes", type=positive, default=1, help="how many run side by side (1)")
    parser.add_argument("--columns", metavar="A,B", help="of a table of cross-validations: only these (all)")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of records, tables and figures")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of unfinished runs")
    arguments = parser.parse_intermixed_args()
    if arguments.measure and not arguments.dry_run:
        parser.error("--measure goes with --dry-run: this process would hold on to the devices")
    if arguments.images_per_second is not None and not arguments.images_per_second > 0:
        parser.error("argument --images-per-second: must be above 0")
    for key, path in (("results", arguments.results), ("runs", arguments.runs)):
        if path != ROOT / key:
            arguments.overrides.append(f"paths.{key}={path.resolve()}")
    return arguments


def check_options(table: TableDefinition, arguments: argparse.Namespace) -> None:
    """Raises UserError for an option that the table has no use for, or a column that it has not."""
    if arguments.columns and not table.folds:
        raise UserError(f"--columns: table {table.name} has no cross-validations; leave it out")
    for column in arguments.columns.split(",") if arguments.columns else []:
        if column not in table.columns:
            raise UserError(f"--columns: {column!r} is none of {', '.join(table.columns)}")
    if table.folds and (arguments.measure or arguments.images_per_second):
        raise UserError(f"--measure, --images-per-second: they are for images, and table {table.name} is of graphs")


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h"


def list_runs(table: TableDefinition, arguments: argparse.Namespace) -> list[sweeps.Job]:
    """Print one line a run or cross-validation and a total; return what is unfinished in order."""
    records = read_records(arguments.results)
    started = sweeps.started_runs(table, arguments.runs)
    hardware = execution.query_hardware(ROOT) if any(record.table == table.name for record in records) else None
    superfluous = fold_tables.superfluous_runs(table, records)
    unfinished, costs, saved = [], [], 0
    matched, _ = sweeps.match_records(table, records)
    matched = [(run, record) for run, record in matched if is_wanted(table, run, arguments)]
    record_of = {run.key: record for run, record in matched}
    for job in sweeps.jobs(table, [run for run, _ in matched]):
        done = [record_of[run.key] for run in job.runs if record_of[run.key]]
        left = tuple(run for run in job.runs if not record_of[run.key])
        if not left:
            state, cost = "finished", hours(sum(record.wall_seconds for record in done))
        elif left[0].key in superfluous:
            state, cost = "rejected", "not needed"  # another value was chosen
            saved += len(left)
        else:
            state = "partial" if done or any(run.key in started for run in left) else "missing"
            own = [estimate(table, run, records, hardware, arguments.images_per_second) for run in left]
            cost = "unknown cost" if None in own else f"about {hours(sum(own))}"
            costs += own
            job = sweeps.Job(left, job.fold)
            unfinished.append(job)
        try:
            start = sweeps.initial_override(table, job.runs[0], records)
        except UserError:
            start = ["init_from=ID"]
        command = shlex.join(["python", "train.py", *job.overrides, *start, *arguments.overrides])
        print(f"{state:8}  {cost:>14}  {command}")
    finished = len(matched) - len(costs) - saved
    counts = [f"{finished} finished", *([f"{saved} not needed"] if saved else [])]
    counts.append(describe_costs(costs, arguments.images_per_second))
    print(f"{len(matched)} runs: {', '.join(counts)}", flush=True)
    return unfinished


def describe_costs(costs: list[float | None], images_per_second: float | None) -> str:
    """How many runs are left, and what those of known cost should take together (seconds each)."""
    known = [cost for cost in costs if cost is not None]
    words = f"{len(costs)} to run"
    if known:
        words += f", about {hours(sum(known))} for {len(known)} of them "
        words += (
            f"at {images_per_second:g} images/s of the first row's model" if images_per_second else "on this hardware"
        )
    if len(known) < len(costs):
        words += f", {len(costs) - len(known)} of unknown cost (no finished run to measure from)"
    return words


def is_wanted(table: TableDefinition, run: sweeps.PlannedRun, arguments: argparse.Namespace) -> bool:
    return not (table.folds and arguments.columns) or run.values[table.folds.over] in arguments.columns.split(",")


def estimate(
    table: TableDefinition,
    run: sweeps.PlannedRun,
    records: list[RunRecord],
    hardware: Hardware | None,
    images_per_second: float | None,
) -> float | None:
    """Seconds, from the table's finished runs on this hardware, else from a throughput; None without either."""
    measured = sweeps.expected_seconds(run, records, table, hardware) if hardware else None
    if measured is not None or images_per_second is None or table.folds:
        return measured
    from plstm.runs.cost import experiment_cost

    first, own = experiment_cost(table.rows[0].experiment), experiment_cost(run.row.experiment)
    return own.total_flops / (3 * first.flops * images_per_second)


def measure(experiment: str, batch: int) -> float:
    """Images a second in training steps of an experiment's model on this machine's devices."""
    from plstm.runs.cost import compose_experiment
    from scripts.benchmarks.models import TrainingStep

    step = TrainingStep(compose_experiment(experiment).model, batch)
    seconds = statistics.median(alternate({"step": step}, STEPS)["step"])
    print(f"measured: {batch / seconds:.1f} images/s of {experiment}, data not counted", flush=True)
    return batch / seconds


def main() -> int:
    arguments = parse_arguments()
    table = load_table(ROOT / "configs/tables" / f"{arguments.table}.yaml")
    check_overrides(table, arguments.overrides)
    check_options(table, arguments)
    if arguments.measure:
        arguments.images_per_second = measure(table.rows[0].experiment, arguments.measure)
    unfinished = list_runs(table, arguments)
    if arguments.dry_run:
        return 0

    def report() -> None:
        records = read_records(arguments.results)
        paths = tables.write_table(table, records, arguments.results)
        print("wrote", *paths, *figures.draw_table(table, records, arguments.results), flush=True)
        sums.refresh_sums(arguments.results)

    def after_job(job: sweeps.Job) -> None:
        matched, _ = sweeps.match_records(table, read_records(arguments.results))
        finished = {run.key for run, record in matched if record}
        if not all(run.key in finished for run in job.runs):
            raise UserError(f"finished without a record for table {table.name} in {arguments.results / 'runs'}")
        report()

    report()

    def overrides(job: sweeps.Job) -> list[str]:
        return [*sweeps.initial_override(table, job.runs[0], read_records(arguments.results)), *arguments.overrides]

    def is_needed(job: sweeps.Job) -> bool:
        return job.runs[0].key not in fold_tables.superfluous_runs(table, read_records(arguments.results))

    work = unfinished[: arguments.max_runs]
    failures = execution.execute(work, overrides, ROOT, after_job, arguments.processes, is_needed)
    text = (arguments.results / "tables" / f"{table.name}.md").read_text()
    print(text.partition("\n## ")[0], f"\npictures of each run: {arguments.runs}/*/figures", flush=True)
    if failures:
        print("\n".join([f"{len(failures)} runs failed:", *failures]), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", flush=True)
        sys.exit(130)
