"""Draw the figures of results tables, of those that have finished runs, into results/figures.

python scripts/make_figures.py                 # every table of configs/tables
python scripts/make_figures.py arrow
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from plstm.errors import run_script
from plstm.results.definitions import load_tables
from plstm.results.figures import draw_table
from plstm.results.records import read_records

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="tables to draw, all if none is named")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of records and figures")
    arguments = parser.parse_args()
    for table in load_tables(ROOT / "configs/tables", arguments.names):
        paths = draw_table(table, read_records(arguments.results), arguments.results)
        print(f"{table.name}: {' '.join(map(str, paths)) or 'no finished run, or no figure asked for; nothing drawn'}")


if __name__ == "__main__":
    run_script(main)
