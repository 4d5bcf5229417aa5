"""Recompute every number that is shown: tables from records, records from curves and configs, README from both.

    make verify                                    # part of CI: a changed digit in any file of results or README fails
    make verify ARGS="--checkpoints runs"          # also evaluates every run again whose checkpoint is there

Exit status: 0, 1 if something differs (one line each), 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import logging
from plstm.results.sums import sums_problems

from plstm.errors import UserError, run_script
from plstm.results.definitions import load_tables
from plstm.results.records import read_records
from plstm.results.tables import stale_files
from plstm.results.verify import claim_problems, measured_problems, record_problems, rerun_problems

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of results/, README.md, docs/ and configs/")
    parser.add_argument("--checkpoints", type=Path, nargs="+", default=[], metavar="RUNS", help="folders of runs")
    arguments = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    problems, done = check(arguments.root)
    for runs in arguments.checkpoints:
        more, lines = check_runs(arguments.root / "results", runs)
        problems += more
        done += lines
    print("\n".join([*done, *problems] + [f"{len(problems)} problems"] * bool(problems)))
    return 1 if problems else 0


def check(root: Path) -> tuple[list[str], list[str]]:
    """Problems, and lines on what was checked."""
    results = root / "results"
    records, tables = read_records(results), load_tables(root / "configs/tables")
    problems = sums_problems(results)
    problems += [line for table in tables for line in stale_files(table, records, results)]
    problems += [line for record in records for line in record_problems(record, results)]
    problems += measured_problems(results) + claim_problems(root)
    return problems, [f"checked {len(records)} records with their curves, {len(tables)} tables, README and docs"]


def check_runs(results: Path, runs: Path) -> tuple[list[str], list[str]]:
    """As `check`, for the runs in a folder that have a record and a checkpoint."""
    if not runs.is_dir():
        raise UserError(f"--checkpoints {runs}: no such folder")
    problems, done = [], []
    for record in read_records(results):
        if (runs / record.id / "checkpoints").is_dir():
            more, line = rerun_problems(record, runs / record.id)
            problems += more
            done.append(line)
    return problems, done or [f"{runs}: has no checkpoint of a run with a record"]


if __name__ == "__main__":
    run_script(main)
