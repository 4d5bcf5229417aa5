"""Run what is missing of a results table, most telling runs first, and keep its tables and figures up to date.

    python scripts/run_table.py arrow --dry-run             # what is finished, what is not, and what it should cost
    python scripts/run_table.py arrow --max-runs 2 logger.mode=disabled
    python scripts/run_table.py graphs --processes 2 --sections MUTAG       # side by side, a thread each

Rerunning the same command resumes where the last one stopped.
Exit status: 0, 1 if a run failed, 2 if a record or a definition is wrong, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.config import OUTSIDE_ID
from plstm.errors import UserError, run_script
from plstm.results import cells, execution, figures, sweeps, tables
from plstm.results.definitions import TableDefinition, check_overrides, load_table
from plstm.results.records import Hardware, read_records
from plstm.runs.cost import experiment_cost

ROOT = Path(__file__).resolve().parents[1]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a file of configs/tables, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides for every run")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and stop")
    throughput = "training throughput of the first row, to estimate what no finished run tells; others by their FLOPs"
    parser.add_argument("--examples-per-second", type=float, metavar="N", help=throughput)
    parser.add_argument("--max-runs", type=int, help="start at most this many processes")
    parser.add_argument("--processes", type=int, default=1, help="how many run side by side (1)")
    parser.add_argument("--sections", metavar="A,B", help="only these sections of the table (all)")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of records, tables and figures")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of unfinished runs")
    arguments = parser.parse_intermixed_args()
    for key in ("examples_per_second", "max_runs", "processes"):
        if (value := getattr(arguments, key)) is not None and not value > 0:
            parser.error(f"argument --{key.replace('_', '-')}: must be above 0")
    for key, path in (("results", arguments.results), ("runs", arguments.runs)):
        if path != ROOT / key:
            arguments.overrides.append(f"paths.{key}={path.resolve()}")
    return arguments


def check_options(table: TableDefinition, arguments: argparse.Namespace) -> None:
    """Raises UserError for a section that the table has not, or costs of experiments that only their data tell."""
    known = list(map(str, table.section_values)) if table.sections else []
    for section in arguments.sections.split(",") if arguments.sections else []:
        if section not in known:
            raise UserError(f"--sections: {section!r} is no section of table {table.name}: {', '.join(known)}")
    if table.sections and arguments.examples_per_second:
        raise UserError(f"--examples-per-second: the FLOPs of table {table.name}'s runs follow only from their data")


def query_hardware() -> Hardware:
    """What a run started now would record; asked in another process, for JAX would hold on to a GPU."""
    code = "import json, plstm.training.environment as e; print(json.dumps(e.describe_environment('.')['hardware']))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if answer.returncode:
        raise UserError(f"JAX does not start on this machine: {answer.stderr.strip().splitlines()[-1]}")
    return json.loads(answer.stdout.splitlines()[-1])


def list_runs(table: TableDefinition, arguments: argparse.Namespace) -> list[sweeps.Job]:
    """Print one line a job and a total; return what is unfinished in order."""
    records = read_records(arguments.results)
    matched, _ = sweeps.match_records(table, records)
    record_of = {run.key: record for run, record in matched}
    started, superfluous = sweeps.started_runs(table, arguments.runs), cells.superfluous_runs(table, records)
    hardware = query_hardware() if any(record_of.values()) else None
    rate = arguments.examples_per_second

    def estimate(run: sweeps.PlannedRun) -> float | None:
        seconds = sweeps.expected_seconds(table, run, matched, hardware) if hardware else None
        if seconds is not None or rate is None:
            return seconds
        first, own = (experiment_cost(row.experiment) for row in (table.rows[0], run.row))
        return own.total_flops / (3 * first.flops * rate)

    wanted = arguments.sections.split(",") if arguments.sections else None
    runs = [run for run, _ in matched if wanted is None or str(run.values[table.sections]) in wanted]
    unfinished, costs, saved = [], [], 0
    for job in sweeps.jobs(table, runs):
        left = tuple(run for run in job.runs if not record_of[run.key])
        if not left:
            state, cost = "finished", f"{sum(record_of[run.key].wall_seconds for run in job.runs) / 3600:.2f} h"
        elif left[0].key in superfluous:
            state, cost, saved = "rejected", "not needed", saved + len(left)  # another value was chosen
        else:
            state = "partial" if len(left) < len(job.runs) or any(run.key in started for run in left) else "missing"
            own = [estimate(run) for run in left]
            cost = "unknown cost" if None in own else f"about {sum(own) / 3600:.2f} h"
            costs += own
            job = sweeps.Job(left, job.shared)
            unfinished.append(job)
        try:
            start = sweeps.initial_override(matched, job.runs[0])
        except UserError:
            start = ["init_from=ID"]
        command = shlex.join(["python", "train.py", *job.overrides, *start, *arguments.overrides])
        print(f"{state:8}  {cost:>14}  {command}")
    counts = [f"{len(runs) - len(costs) - saved} finished"] + [f"{saved} not needed"] * bool(saved)
    counts.append(f"{len(costs)} to run")
    if known := [cost for cost in costs if cost is not None]:
        where = f"at {rate:g} examples/s of the first row's model" if rate else "on this hardware"
        counts.append(f"about {sum(known) / 3600:.2f} h for {len(known)} of them {where}")
    if len(known) < len(costs):
        counts.append(f"{len(costs) - len(known)} of unknown cost (no finished run to measure from)")
    print(f"{len(runs)} runs: {', '.join(counts)}", flush=True)
    return unfinished


def main() -> int:
    arguments = parse_arguments()
    table = load_table(ROOT / "configs/tables" / f"{arguments.table}.yaml")
    check_overrides(table, arguments.overrides, OUTSIDE_ID)
    check_options(table, arguments)
    unfinished = list_runs(table, arguments)
    if arguments.dry_run:
        return 0

    def matched() -> sweeps.Matches:
        return sweeps.match_records(table, read_records(arguments.results))[0]

    def report() -> None:
        records = read_records(arguments.results)
        paths = tables.write_table(table, records, arguments.results, experiment_cost)
        print("wrote", *paths, *figures.draw_table(table, records, arguments.results), flush=True)

    def after_job(job: sweeps.Job) -> None:
        if not {run.key for run in job.runs} <= {run.key for run, record in matched() if record}:
            raise UserError(f"finished without a record that fits table {table.name} in {arguments.results / 'runs'}")
        report()

    def overrides(job: sweeps.Job) -> list[str]:
        return [*sweeps.initial_override(matched(), job.runs[0]), *arguments.overrides]

    def is_needed(job: sweeps.Job) -> bool:
        return job.runs[0].key not in cells.superfluous_runs(table, read_records(arguments.results))

    report()
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
        run_script(main)
    except KeyboardInterrupt:
        print("stopped; the same command resumes from here", flush=True)
        sys.exit(130)
