"""Measure parts of this repository against their yardsticks, in one process, in alternation.

    python scripts/benchmark.py operator --help     # the options of a subject
    python scripts/benchmark.py scaling --repeats 3

Prints a line a row and writes results/benchmarks/<subject>-<backend>.json: every single time next to the command, the
settings, the commit, the versions and the machine. Exit status: 0, or 2 for bad input.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.errors import run_script
from scripts.benchmarks import graphs, models, operators, pipeline, runs
from scripts.benchmarks.harness import option, run_subject
from scripts.common import Parser

SUBJECTS = operators.SUBJECTS | models.SUBJECTS | graphs.SUBJECTS | pipeline.SUBJECTS | runs.SUBJECTS


def main() -> None:
    parser = Parser(__doc__)
    commands = parser.add_subparsers(dest="subject", required=True, metavar="subject")
    for name, subject in SUBJECTS.items():
        description = subject.measure.__doc__
        command = commands.add_parser(name, description=description, help=description)
        for flag, details in subject.arguments.items():
            command.add_argument(flag, **details)
        command.add_argument("--repeats", **option(7, "the median is over these"))
        command.add_argument("--out", type=Path, help="default: results/benchmarks/<subject>-<backend>.json")
    settings = vars(parser.parse_args())
    name, out = settings.pop("subject"), settings.pop("out")
    run_subject(name, SUBJECTS[name], settings, out)


if __name__ == "__main__":
    run_script(main)
