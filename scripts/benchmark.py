"""Measure parts of this repository against their yardsticks, in one process, in alternation.

    python scripts/benchmark.py operator            # the 2-D operator against the paper's quad-tree and the plain scan
    python scripts/benchmark.py chunks              # ... in chunks that stay in the cache, against all at once
    python scripts/benchmark.py tune                # ... in every form, by which plstm/ops/tuned.py chooses
    python scripts/benchmark.py model               # training steps of pLSTM-Vis-T against ViT-T
    python scripts/benchmark.py scaling             # ... from 192 to 768 pixels, with a plot
    python scripts/benchmark.py compile             # compilation against the depth
    python scripts/benchmark.py memory              # planned memory, with and without model.remat
    python scripts/benchmark.py data                # views a second and core of each ImageNet recipe
    python scripts/benchmark.py graphs              # epochs of the graph models; data sets in $PLSTM_DATA
    python scripts/benchmark.py run                 # whole runs of train.py, start and end included

Prints a line a row and writes results/benchmarks/<subject>-<backend>.json: every single time next to the command, the
settings, the commit, the versions and the machine. `<subject> --help` lists the options of a subject, and `--check`
checks them without measuring. Exit status: 0, or 2 for bad input.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.errors import run_script
from scripts.benchmarks.harness import run_subject
from scripts.common import Parser

# Subject -> the module of scripts.benchmarks that has it in SUBJECTS, imported for this subject alone.
MODULES = {
    **dict.fromkeys(("operator", "chunks", "tune"), "operators"),
    **dict.fromkeys(("model", "scaling", "compile", "memory"), "models"),
    "graphs": "graphs",
    "data": "pipeline",
    "run": "runs",
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("subject", choices=MODULES, metavar="subject", help=", ".join(MODULES))
    name = parser.parse_args(sys.argv[1:2]).subject
    module = importlib.import_module(f"scripts.benchmarks.{MODULES[name]}")
    run_subject(name, module.SUBJECTS[name], sys.argv[2:])


if __name__ == "__main__":
    run_script(main)
