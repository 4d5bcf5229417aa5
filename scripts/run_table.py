"""Run what is missing of a results table, most telling runs first, and keep its tables and figures up to date.

    python scripts/run_table.py arrow --dry-run             # what is finished, what is not, and what it should cost
    python scripts/run_table.py arrow --max-runs 2 logger.mode=offline      # W&B for every run; =disabled for none
    python scripts/run_table.py graphs --processes 2 --sections MUTAG       # two runs side by side

On CPUs, runs of image models that should take over 12 hours each, by their FLOPs, are started only with --yes.
On CPUs as many runs as there are cores go side by side, one thread each: a second core speeds up one small run by a
quarter only. On GPUs a run takes all of them, or with --processes its share.
Rerunning the same command resumes where the last one stopped.
Exit status: 0, 1 if a run failed, 2 if a record or a definition is wrong, 130 if interrupted.
"""

import argparse
import functools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.config import Config
from plstm.errors import UserError
from plstm.files import write_file
from plstm.runs.cli import check_command
from plstm.runs.compose import from_file
from plstm.runs.identity import OUTSIDE_ID, is_among
from plstm.runs.overrides import as_override, override_key, parse_overrides
from plstm.studies import sweeps
from plstm.studies.definitions import TableDefinition, load_table
from plstm.studies.figures import draw_table
from plstm.studies.plans import planned_config
from plstm.studies.records import Record, read_records
from plstm.studies.tables import render_table, text_table
from plstm.studies.weights import missing_weights
from plstm.tasks import TASKS
from plstm.training.environment import Hardware
from plstm.training.flops import MANY_HOURS
from scripts.common import ONE_THREAD, Parser, machine_folder, positive, run_resumable, start_python, stop

ROOT = Path(__file__).resolve().parents[1]
PLAIN_LINES = {"TERM": "dumb"}  # of several runs' bars a terminal can show one


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("table", help="a file of configs/study, without .yaml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="Hydra overrides for every run")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and stop")
    parser.add_argument("--yes", action="store_true", help="start runs of over 12 hours on CPUs, too")
    parser.add_argument("--max-runs", type=positive, help="start at most this many processes")
    parser.add_argument("--processes", type=positive, help="how many run side by side (a core each; on GPUs 1)")
    parser.add_argument("--sections", metavar="A,B", help="only these sections of the table")
    parser.add_argument("--seeds", metavar="N,M", help="only these seeds")
    results = machine_folder("results", ROOT)
    parser.add_argument("--results", type=Path, default=results, help="folder of records, tables and figures")
    parser.add_argument("--runs", type=Path, default=machine_folder("runs", ROOT), help="folder of runs")
    arguments = parser.parse_intermixed_args()
    if paths := [override for override in arguments.overrides if is_among(override_key(override), ["paths"])]:
        parser.error(f"{paths[0]}: use --results and --runs")
    return arguments


def check_overrides(overrides: Sequence[str], table: TableDefinition) -> None:
    """Raises UserError for an override that the table's first run refuses, or that changes more than where a run lies
    and how it is shown, and so would make it another run."""
    for override in parse_overrides(overrides):
        if not is_among(override.key_or_group, OUTSIDE_ID):
            raise UserError(f"override {override.input_line!r}: would make other runs than the table's; leave it out")
    if overrides:
        check_command([*sweeps.jobs(table, sweeps.planned_runs(table))[0].overrides, *overrides], Config)


def planned_jobs(table: TableDefinition, sections: str | None, seeds: str | None) -> list[sweeps.Job]:
    """The jobs of these sections and seeds, all where none is named; UserError for one that the table does not have."""
    runs = sweeps.planned_runs(table)
    for option, key, wanted in (("sections", table.sections, sections), ("seeds", "seed", seeds)):
        if wanted is not None:
            known = [str(value) for value in table.sweep.get(key, ())]
            if not known:
                raise UserError(f"--{option}: table {table.name} has none; leave it out")
            if unknown := [name for name in wanted.split(",") if name not in known]:
                raise UserError(f"--{option}: {unknown[0]!r} is none of table {table.name}: {', '.join(known)}")
            runs = [run for run in runs if str(run.values[key]) in wanted.split(",")]
    return sweeps.jobs(table, runs)


@functools.cache
def query_environment() -> dict[str, Any]:
    """What a run started now would record; asked in another process, for JAX would hold on to a GPU."""
    code = "import json, plstm.training.environment as e; print(json.dumps(e.describe_environment('.')))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if answer.returncode:
        raise UserError(f"JAX does not start on this machine: {answer.stderr.strip()[-200:]}")
    return json.loads(answer.stdout.splitlines()[-1])


def query_hardware() -> Hardware:
    return query_environment()["hardware"]


def place(jobs: int, processes: int | None, hardware: Hardware) -> list[dict[str, str]]:
    """The environment of each process that runs beside others: its share of the cores, or GPUs of its own. `jobs` are
    those of the command, finished or not: with other threads a resumed run would add up in another order."""
    cores = hardware["cpu_cores"]
    devices = hardware["device_count"]
    on_cpu = hardware["platform"] == "cpu"
    count = max(1, min(processes or (cores if on_cpu else 1), jobs))
    if count == 1:
        return [{}]
    if on_cpu:
        share = cores // count
        own = ONE_THREAD if share < 2 else {"NPROC": str(share), "OMP_NUM_THREADS": str(share)}
        return [own | PLAIN_LINES] * count
    if count > devices:
        raise UserError(f"--processes {count}: this machine has {devices} devices, and a run needs one of its own")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices)))).split(",")
    share = devices // count
    own = (",".join(visible[n * share : (n + 1) * share]) for n in range(count))
    return [{"CUDA_VISIBLE_DEVICES": each} | PLAIN_LINES for each in own]


def core_hours(runs: Sequence[sweeps.PlannedRun]) -> dict[str, float]:
    """By row, what a run takes on one CPU core, by its FLOPs; 0 where nobody counted them."""
    hours = {}
    for name, run in {run.row.name: run for run in runs}.items():
        settings = run.row.set | run.values
        config = from_file(planned_config(run.row.experiment, run.row.variants, settings))
        hours[name] = TASKS[config.task](config).cpu_hours()
    return hours


def check_cost(runs: Sequence[sweeps.PlannedRun], cores: int, side_by_side: int) -> None:
    """Raises UserError for runs of over MANY_HOURS each on their share of this machine's cores, by their FLOPs."""
    hours = core_hours(runs)
    most = max(hours.values(), default=0) * side_by_side / cores
    if most > MANY_HOURS:
        total = max(sum(hours[run.row.name] for run in runs) / cores, most)
        raise UserError(
            f"about {total:,.0f} hours on this machine's CPU, up to {most:,.0f} a run, by their FLOPs; "
            "--yes starts them"
        )


def list_jobs(table: TableDefinition, arguments: argparse.Namespace) -> list[sweeps.Job]:
    """Prints a total, in a dry run after a line a job; returns what is unfinished in order."""
    records = read_records(arguments.results)
    found = sweeps.match_records(table, records)
    started = sweeps.started_runs(arguments.runs)
    superfluous = sweeps.superfluous_runs(table, records)
    hardware = query_hardware()
    jobs = planned_jobs(table, arguments.sections, arguments.seeds)
    shows_hours = arguments.dry_run and hardware["platform"] == "cpu"
    hours = core_hours([run for job in jobs for run in job.runs if run.id not in found]) if shows_hours else {}
    unfinished: list[sweeps.Job] = []
    finished = rejected = 0
    seconds: list[float | None] = []  # of each unfinished run
    for job in jobs:
        left = tuple(run for run in job.runs if run.id not in found)
        finished += len(job.runs) - len(left)
        if not left:
            state = "finished"
            cost = f"{sum(found[run.id].wall_seconds for run in job.runs) / 3600:.2f} h"
        elif left[0].id in superfluous:
            state = "rejected"  # another value was chosen
            cost = "not needed"
            rejected += len(left)
        else:
            state = "partial" if len(left) < len(job.runs) or any(run.id in started for run in left) else "missing"
            own = [sweeps.expected_seconds(table, run, found, hardware) for run in left]
            by_flops = sum(hours.get(run.row.name, 0) for run in left)
            unknown = f"~{by_flops:,.1f} core-hours" if by_flops else "unknown cost"
            cost = unknown if None in own else f"about {sum(own) / 3600:.2f} h"
            seconds += own
            job = sweeps.Job(left, job.shared)
            unfinished.append(job)
        if arguments.dry_run:
            command = shlex.join(["python", "train.py", *job.overrides, *arguments.overrides])
            print(f"{state:8}  {cost:>17}  {command}")
    known = [cost for cost in seconds if cost is not None]
    at_most = "at most " if table.choose_once and seconds else ""  # later choices save runs
    counts = f"{finished} finished, {rejected} not needed, {at_most}{len(seconds)} to run"
    about = f", about {sum(known) / 3600:.2f} h for {len(known)} of them, going by finished runs on this hardware"
    print(f"{finished + rejected + len(seconds)} runs: {counts}{about if known else ''}", flush=True)
    devices = hardware["device_count"]
    if len(unfinished) > 1 and hardware["platform"] != "cpu" and devices > 1:
        print(f"{devices} devices: --processes {devices} trains a run on each; otherwise a run takes all", flush=True)
    return unfinished


def execute(
    work: Sequence[sweeps.Job],
    overrides: Callable[[sweeps.Job], list[str] | None],
    root: Path,
    after_job: Callable[[sweeps.Job], None],
    places: Sequence[dict[str, str]] = ({},),
) -> list[str]:
    """Start jobs in order, each a process in `root`, the folder of `train.py`; places: the environment of each of those
    that run side by side.

    overrides: key=value to add to a job's command, None where it is not needed any more; its UserError holds the job
    back while others run, which may make what it needs. after_job: called after every job that ends well. Their
    UserErrors at the end are failures of the job.

    Returns a line for each failed job. Where anything else is raised, such as KeyboardInterrupt, the processes get
    SIGINT, and it is raised at their end.
    """
    failures: list[str] = []
    waiting = list(enumerate(work, 1))
    running: dict[subprocess.Popen, tuple[sweeps.Job, dict[str, str]]] = {}
    free = list(places)

    def fail(job: sweeps.Job, why: object) -> None:
        failures.append(f"{' '.join(job.overrides)}: {why}")
        print(f"failed: {failures[-1]}", flush=True)

    try:
        while waiting or running:
            for number, job in waiting.copy():
                if not free:
                    break
                try:
                    own = overrides(job)
                except UserError as error:
                    if running:
                        continue
                    fail(job, error)
                else:
                    words = "no longer needed: " if own is None else ""
                    print(f"run {number}/{len(work)}: {words}{shlex.join(job.overrides)}", flush=True)
                    if own is not None:
                        own_place = free.pop()
                        running[start_python(["train.py", *job.overrides, *own], root, own_place)] = job, own_place
                waiting.remove((number, job))
            for child in _wait(list(running)):
                job, own_place = running.pop(child)
                free.append(own_place)
                try:
                    if child.returncode:
                        raise UserError(f"exit status {child.returncode}")
                    after_job(job)
                except UserError as error:
                    fail(job, error)
    except BaseException:
        stop(list(running))
        raise
    return failures


def _wait(children: list[subprocess.Popen]) -> list[subprocess.Popen]:
    """Returns the processes that have ended, as soon as there are any; none of none."""
    ended: list[subprocess.Popen] = []
    while children and not ended:
        time.sleep(0.1)
        ended = [child for child in children if child.poll() is not None]
    return ended


def keep_weights(table: TableDefinition, records: Sequence[Record], arguments: argparse.Namespace) -> None:
    """Writes the weights that the table keeps, of finished runs whose folder is here."""
    for path, run in missing_weights(table, records, arguments.results).items():
        if (arguments.runs / run).is_dir():  # in another process, as for `query_hardware`
            command = [sys.executable, "scripts/export.py", str(arguments.runs.resolve() / run), str(path.resolve())]
            if subprocess.run(command, cwd=ROOT).returncode:
                print(f"the weights of run {run} are not kept", file=sys.stderr, flush=True)


def main() -> int:
    arguments = parse_arguments()
    results = arguments.results
    table = load_table(ROOT / "configs/study" / f"{arguments.table}.yaml")
    check_overrides(arguments.overrides, table)
    unfinished = list_jobs(table, arguments)
    if arguments.dry_run:
        return 0
    hardware = query_hardware()
    places = place(len(planned_jobs(table, arguments.sections, arguments.seeds)), arguments.processes, hardware)
    if hardware["platform"] == "cpu" and not arguments.yes:
        runs = [run for job in unfinished[: arguments.max_runs] for run in job.runs]
        check_cost(runs, hardware["cpu_cores"], len(places))

    def report() -> None:
        records = read_records(results)
        files = render_table(table, records, results)
        for path, data in files.items():
            write_file(path, data)
        keep_weights(table, records, arguments)
        if [*files, *draw_table(table, records, results)]:
            print(f"table and figures: {results / table.name}", flush=True)

    def after_job(job: sweeps.Job) -> None:
        if not {run.id for run in job.runs} <= sweeps.match_records(table, read_records(results)).keys():
            raise UserError(
                f"finished without a record in {results / 'runs'} that has all metrics of table {table.name}, "
                f"{', '.join(table.measures)}; correct these in its definition, or remove the record's line and the "
                "run's folder to train it again"
            )
        report()

    def overrides(job: sweeps.Job) -> list[str] | None:
        records = read_records(results)
        if job.runs[0].id in sweeps.superfluous_runs(table, records):
            return None
        start = job.runs[0].init_from
        if start and start not in {record.id for record in records}:
            raise UserError(f"fine-tunes {job.runs[0].row.init_from}, which has not finished")
        return [*arguments.overrides, *paths]

    paths = [as_override(f"paths.{key}", str(getattr(arguments, key).resolve())) for key in ("results", "runs")]
    report()
    failures = execute(unfinished[: arguments.max_runs], overrides, ROOT, after_job, places)
    print(
        f"\n{text_table(table, read_records(results), results)}\npictures of each run: {arguments.runs}/*/figures",
        flush=True,
    )
    if failures:
        print("\n".join([f"{len(failures)} runs failed:", *failures]), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    run_resumable(main)
