"""Write results/tables, and the generated numbers of README.md and docs/*.md; --check only names files that are stale.

    python scripts/make_tables.py                  # every table of configs/tables, and the documents
    python scripts/make_tables.py --check arrow    # this table only

Exit status: 0, 1 if --check finds a stale file, 2 if a record, a definition or a document is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.files import write_file
from plstm.errors import run_script
from plstm.results.definitions import load_tables
from plstm.results.documents import document_paths, fill_document
from plstm.results.records import read_records
from plstm.results.tables import stale_files, write_table
from plstm.runs.cost import experiment_cost

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="tables to write, all and the documents if none is named")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of records and tables")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on files that are missing or stale")
    arguments = parser.parse_args()
    tables, records = load_tables(ROOT / "configs/tables", arguments.names), read_records(arguments.results)
    stale = []
    for table in tables:
        what = table, records, arguments.results, experiment_cost
        if arguments.check:
            stale += stale_files(*what)
        else:
            print("wrote", *write_table(*what))
    documents = [] if arguments.names or arguments.results != ROOT / "results" else document_paths(ROOT)
    for path in documents:
        if (text := fill_document(path, ROOT)) != path.read_text(encoding="utf-8"):
            stale.append(f"stale: {path}")
            if not arguments.check:
                write_file(path, text.encode())
                print("wrote", path)
    if arguments.check:
        print("\n".join([*stale, "run: make tables"]) if stale else f"{len(tables)} tables are up to date")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    run_script(main)
