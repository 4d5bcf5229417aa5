"""Write results/tables, and the generated numbers of README.md and docs/*.md; --check only names files that are stale.

    python scripts/make_tables.py                  # every table of configs/tables, and the documents
    python scripts/make_tables.py --check arrow    # this table only
    python scripts/make_tables.py --figures        # the figures instead, of tables with finished runs

Exit status: 0, 1 if --check finds a stale file, 2 if a record, a definition or a document is wrong.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.files import write_file
from plstm.errors import run_script
from plstm.results.definitions import load_tables
from plstm.results.documents import document_paths, fill_document
from plstm.results.figures import draw_table
from plstm.results.records import read_records
from plstm.results.tables import render_table
from plstm.runs.programs import experiment_cost
from scripts.common import Parser

ROOT = Path(__file__).resolve().parents[1]


def files(names: list[str], results: Path) -> Iterator[tuple[Path, bytes]]:
    """Path and contents of the tables, and then, where none is named, of the documents, which quote the tables."""
    records = read_records(results)
    for table in load_tables(ROOT / "configs/tables", names):
        yield from render_table(table, records, results, experiment_cost).items()
    for path in [] if names or results != ROOT / "results" else document_paths(ROOT):
        yield path, fill_document(path, ROOT).encode()


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", help="tables to write, all and the documents if none is named")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of records and tables")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on files that are missing or stale")
    parser.add_argument("--figures", action="store_true", help="draw the figures and nothing else")
    arguments = parser.parse_args()
    if arguments.figures:
        records = read_records(arguments.results)
        for table in load_tables(ROOT / "configs/tables", arguments.names):
            paths = draw_table(table, records, arguments.results)
            print(f"{table.name}: {' '.join(map(str, paths)) or 'no finished run, or no figure asked for'}")
        return 0
    stale = 0
    for path, data in files(arguments.names, arguments.results):
        if not path.is_file() or path.read_bytes() != data:
            stale += 1
            print("stale:" if arguments.check else "wrote", path)
            if not arguments.check:
                write_file(path, data)
    print("run: make tables" if arguments.check and stale else "tables and documents are up to date")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    run_script(main)
