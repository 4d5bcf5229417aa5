"""How far the majority class gets in the cross-validations of the graph table: results/baselines/graphs.json.

    python scripts/majority_baselines.py                   # the four sets, fetched where they are missing
    python scripts/majority_baselines.py --root /path/of/copies

In each fold the answer is the class that most of its training graphs have.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from data.tudataset import load_tudataset, make_folds
from plstm.errors import run_script
from plstm.results.definitions import load_table
from plstm.training.environment import describe_environment
from scripts.common import write_results


def majority_accuracy(labels: np.ndarray, folds: int, seed: int) -> float:
    """Mean test accuracy over the folds."""
    found = []
    for fold in make_folds(labels, folds, seed):
        answer = np.bincount(labels[fold.train]).argmax()
        found.append(np.mean(labels[fold.test] == answer))
    return float(np.mean(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="where data sets live, as data.root of a run")
    parser.add_argument("--out", type=Path, default=ROOT / "results/baselines/graphs.json")
    arguments = parser.parse_args()
    table = load_table(ROOT / "configs/tables/graphs.yaml")
    folds, seed = table.require["data.folds"], table.require["data.fold_seed"]
    row: dict[str, str | float] = {"name": "majority class"}
    for name in table.columns:
        row[name] = round(majority_accuracy(load_tudataset(name, arguments.root).labels, folds, seed), 4)
        print(f"{name:10}{row[name]:8.4f}", flush=True)
    environment = describe_environment(ROOT)
    record = {
        "command": "python scripts/majority_baselines.py",
        "folds": folds,
        "fold_seed": seed,
        **{key: environment[key] for key in ("commit", "dirty", "versions")},
        "baselines": [row],
    }
    write_results(arguments.out, record)
    print(arguments.out)
    return 0


if __name__ == "__main__":
    run_script(main)
