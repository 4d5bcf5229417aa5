"""Compare records with their curves, and the benchmarks' medians and ratios with the measurements they follow from.

Exit status: 0, 1 if something differs (one line each), 2 if a file cannot be read.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.errors import run_script
from plstm.results.records import read_records
from plstm.results.verify import measured_problems, record_problems

RESULTS = Path(__file__).resolve().parents[1] / "results"


def main() -> int:
    records = read_records(RESULTS)
    problems = [line for record in records for line in record_problems(record, RESULTS)] + measured_problems(RESULTS)
    print("\n".join([*problems, f"checked {len(records)} records and the benchmarks: {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    run_script(main)
