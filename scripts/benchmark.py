"""Measure parts of this repository against their yardsticks, in one process, in alternation.

    python scripts/benchmark.py operator --help     # the options of a subject
    python scripts/benchmark.py scaling --repeats 3

Prints a line a row and writes results/benchmarks/<subject>-<backend>.json: every single time next to the command, the
settings, the commit, the versions and the machine. Exit status: 0, or 2 for bad input.
"""

import inspect
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from plstm.errors import run_script
from scripts.benchmarks import baselines, languages, models, operators, runs, sequences, steps
from scripts.common import ROOT, Parser, positive, write_results

SUBJECTS = {  # functions of the repeats and of the subject's options, which yield rows
    "operator": operators.measure_operator,
    "chunks": operators.measure_chunks,
    "tune": operators.measure_forms,
    "sequences": sequences.measure_sequences,
    "languages": languages.measure_languages,
    "model": models.measure_sizes,
    "scaling": models.measure_scaling,
    "compile": models.measure_compilation,
    "memory": models.measure_memory,
    "graphs": models.measure_epochs,
    "data": models.measure_views,
    "run": runs.measure_runs,
    "start": runs.measure_start,
    "steps": steps.measure_steps,
    "baselines": baselines.measure_baselines,
}
LISTED = ("structures", "operators", "models", "groups")  # options whose default has all there is to choose from


def parse_arguments() -> dict[str, Any]:
    """An option for each argument of a subject, with several values where the default is a tuple."""
    parser = Parser(__doc__)
    commands = parser.add_subparsers(dest="subject", required=True, metavar="subject")
    for name, measure in SUBJECTS.items():
        words = getattr(measure, "func", measure).__doc__
        command = commands.add_parser(name, description=words, help=words)
        for option, parameter in list(inspect.signature(measure).parameters.items())[1:]:
            default, several = parameter.default, {"nargs": "*"} if isinstance(parameter.default, tuple) else {}
            kind = type(default[0]) if default and several else str if several else type(default)
            kind = {int: positive, tuple: operators.side_x_images}.get(kind, kind)
            choices = ["float32", "bfloat16"] if option == "dtype" else default if option in LISTED else None
            details = {"default": default, "type": kind, "choices": choices, **several}
            command.add_argument(f"--{option}", help="(default: %(default)s)", **details)
        command.add_argument("--repeats", type=positive, default=7, help="the median is over these")
        command.add_argument("--out", type=Path, help="default: results/benchmarks/<subject>-<backend>.json")
    return vars(parser.parse_args())


def main() -> None:
    settings = parse_arguments()
    name, out = settings.pop("subject"), settings.pop("out")
    machine = {"load_average_at_start": os.getloadavg()[0], "glibc_tunables": os.environ.get("GLIBC_TUNABLES")}
    rows = []
    for row in SUBJECTS[name](**settings):
        rows.append(row)
        print(operators.shown(row), flush=True)
    report = {"settings": settings | machine, "rows": rows, "peak_memory_bytes": operators.peak_memory()}
    if name == "scaling":
        report["summary"] = models.summarise_scaling(rows)
        print(operators.shown(report["summary"]))
    path = out or ROOT / f"results/benchmarks/{name}-{jax.default_backend()}.json"
    write_results(path, report)
    print(f"Written to {path}")


if __name__ == "__main__":
    run_script(main)
