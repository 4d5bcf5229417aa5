"""Write results/tables from the run records, then results/SHA256SUMS; --check only names files missing or stale.

    python scripts/make_tables.py                  # every table of configs/tables
    python scripts/make_tables.py --check arrow

Exit status: 0, 1 if --check finds such a file, 2 if a record or a definition is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.results.sums import write_sums

from plstm.errors import run_script
from plstm.results.definitions import load_tables
from plstm.results.records import read_records
from plstm.results.tables import stale_files, write_table

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="tables to write, all if none is named")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of records and tables")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on files that are missing or stale")
    arguments = parser.parse_args()
    tables = load_tables(ROOT / "configs/tables", arguments.names)
    records = read_records(arguments.results)
    if not arguments.check:
        for table in tables:
            print("wrote", *write_table(table, records, arguments.results))
        print("wrote", write_sums(arguments.results))
        return 0
    stale = [line for table in tables for line in stale_files(table, records, arguments.results)]
    print("\n".join([*stale, "run: make tables"]) if stale else f"{len(tables)} tables are up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    run_script(main)
