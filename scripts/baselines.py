"""Scores without a model: results/baselines/graphs.json and languages.json.

Of graphs the mean test accuracy of the majority class over the folds. Of formal languages, without reading a token:
chance, one over the classes, as "Neural Networks and the Chomsky Hierarchy" counts it; best constant, always the same
class; position alone, at each place of the answer the class that is commonest there at this length. The last two are
chosen on other rows than those of the test, every tenth length of it.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.graphs.tudataset import load_tudataset, make_folds
from data.languages import LANGUAGES
from plstm.errors import run_script
from plstm.runs.compose import compose_experiment
from plstm.studies.definitions import load_table
from plstm.tasks import TASKS
from scripts.common import ROOT, Parser, machine_folder, write_results

EVERY = 10  # of the test's lengths
ROWS = 512  # of each length


def majority_accuracy(labels: np.ndarray, folds: int, seed: int) -> float:
    """In each fold the answer is the class that most of its training graphs have."""
    answers = [(np.bincount(labels[fold.train]).argmax(), fold.test) for fold in make_folds(labels, folds, seed)]
    return float(np.mean([np.mean(labels[test] == answer) for answer, test in answers]))


def language_scores(name: str, every: int = EVERY, rows: int = ROWS) -> tuple[float, float]:
    """The scores of the best constant and of the position alone, each length of the test weighing the same."""
    settings = (f"data.name={name}", f"data.every={every}", f"data.eval_rows={rows}")
    configs = (compose_experiment("languages/rnn", *settings, f"data.eval_seed={seed}") for seed in (1001, 2002))
    tests, others = map(TASKS["languages"], configs)
    classes = tests.language.classes
    seen = np.zeros(classes)
    constant = []
    place = []
    for length in tests.lengths("test"):
        test, other = (task.draw_at("test", length) for task in (tests, others))
        counts = np.stack([((other["label"] == c) & other["counted"]).sum(axis=0) for c in range(classes)])
        test_counts = np.stack([((test["label"] == c) & test["counted"]).sum(axis=0) for c in range(classes)])
        whole = test_counts.sum()
        seen += counts.sum(axis=1) / counts.sum()
        constant.append(test_counts.sum(axis=1) / whole)
        place.append(np.take_along_axis(test_counts, counts.argmax(axis=0)[None], axis=0).sum() / whole)
    return float(np.mean(constant, axis=0)[seen.argmax()]), float(np.mean(place))


def main() -> None:
    Parser(__doc__).parse_args()
    folder = machine_folder("results") / "baselines"
    found = [{"name": name} for name in ("chance", "best constant", "position alone")]
    for name, language in LANGUAGES.items():
        for entry, score in zip(found, (language.chance, *language_scores(name)), strict=True):
            entry[name] = round(score, 4)
        print(f"{name:30}" + "".join(f"{entry[name]:8.4f}" for entry in found), flush=True)
    write_results(folder / "languages.json", {"every": EVERY, "rows": ROWS, "baselines": found})
    data = compose_experiment("graphs/plstm").data
    row = {"name": "majority class"}
    for name in load_table(ROOT / "configs/study/graphs.yaml").section_values:
        row[name] = round(majority_accuracy(load_tudataset(name, data.root).labels, data.folds, data.fold_seed), 4)
        print(f"{name:30}{row[name]:8.4f}", flush=True)
    write_results(folder / "graphs.json", {"folds": data.folds, "fold_seed": data.fold_seed, "baselines": [row]})


if __name__ == "__main__":
    run_script(main)
