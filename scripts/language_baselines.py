"""Scores on formal languages without reading a token: results/baselines/languages.json.

chance: one over the classes, as "Neural Networks and the Chomsky Hierarchy" counts it. best constant: always the same
class. position alone: at each place of the answer the class that is commonest there at this length. Both are chosen on
other rows than those of the test, every tenth length of it.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.languages import LANGUAGES
from plstm.errors import run_script
from plstm.runs.compose import compose_experiment
from plstm.tasks import TASKS
from scripts.common import Parser, machine_folder, positive, write_results


def scores(name: str, every: int, rows: int) -> tuple[float, float]:
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
    parser = Parser(__doc__)
    parser.add_argument("--every", type=positive, default=10, help="take every so many-th length")
    parser.add_argument("--rows", type=positive, default=512, help="rows of each length")
    parser.add_argument("--out", type=Path, default=machine_folder("results") / "baselines/languages.json")
    arguments = parser.parse_args()
    found = [{"name": name} for name in ("chance", "best constant", "position alone")]
    for name, language in LANGUAGES.items():
        own = (language.chance, *scores(name, arguments.every, arguments.rows))
        for entry, score in zip(found, own, strict=True):
            entry[name] = round(score, 4)
        print(f"{name:30}" + "".join(f"{score:8.4f}" for score in own), flush=True)
    write_results(arguments.out, {"every": arguments.every, "rows": arguments.rows, "baselines": found})


if __name__ == "__main__":
    run_script(main)
