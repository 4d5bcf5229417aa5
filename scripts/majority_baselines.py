"""Mean test accuracy of the majority class over the graph table's folds: results/baselines/graphs.json."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.graphs.tudataset import load_tudataset, make_folds
from plstm.errors import run_script
from plstm.runs.compose import compose_experiment
from plstm.studies.definitions import load_table
from scripts.common import ROOT, Parser, machine_folder, write_results


def majority_accuracy(labels: np.ndarray, folds: int, seed: int) -> float:
    """In each fold the answer is the class that most of its training graphs have."""
    answers = [(np.bincount(labels[fold.train]).argmax(), fold.test) for fold in make_folds(labels, folds, seed)]
    return float(np.mean([np.mean(labels[test] == answer) for answer, test in answers]))


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--root", help="where data sets live, as data.root of a run; they are downloaded where missing")
    parser.add_argument("--out", type=Path, default=machine_folder("results") / "baselines/graphs.json")
    arguments = parser.parse_args()
    table = load_table(ROOT / "configs/study/graphs.yaml")
    data = compose_experiment("graphs/plstm").data
    row = {"name": "majority class"}
    for name in table.section_values:
        row[name] = round(majority_accuracy(load_tudataset(name, arguments.root).labels, data.folds, data.fold_seed), 4)
        print(f"{name:10}{row[name]:8.4f}", flush=True)
    write_results(arguments.out, {"folds": data.folds, "fold_seed": data.fold_seed, "baselines": [row]})


if __name__ == "__main__":
    run_script(main)
