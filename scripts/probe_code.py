"""Can a model finish functions? It continues heads and docstrings of unseen packages; what compiles is counted.

    python scripts/probe_code.py 1f392a                        # a run's folder or id, or a .safetensors file
    python scripts/probe_code.py 1f392a --prompts 5 --samples 8

Nothing is run. Each of `--samples` drawn texts is cut where its indentation ends, or after its last whole line, and is
correct where Python compiles the function and it has a statement besides its docstring. pass@k is the chance that one
of k draws is correct (Chen et al., 2021). Writes results/probes/<name>-<id>.json. Three to seven minutes on one core.
"""

import ast
import math
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.code import SEPARATOR, Corpus
from plstm.errors import UserError, run_script
from plstm.files import check_writable
from plstm.models.text import sample
from plstm.runs.identity import run_name
from plstm.runs.weights import config_of, from_checkpoint
from plstm.studies.probes import probe_file
from plstm.tasks import TASKS
from plstm.tasks.code import CodeTask
from scripts.common import Parser, add_source, machine_data_root, machine_folder, positive, write_results

LONGEST = 160  # bytes of a prompt
DEDENT = re.compile(r"\n(?=[^\s])")


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The chance that k of the samples, drawn without replacement, have a correct one."""
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def prompts(corpus: Corpus) -> Iterator[str]:
    """Heads and docstrings of the functions at the left margin of test files, of no more than LONGEST bytes."""
    for tokens in corpus["test"].values():
        for file in np.split(tokens, np.flatnonzero(tokens == SEPARATOR))[1:]:
            text = file[1:].astype(np.uint8).tobytes().decode("utf-8", "replace")
            lines = text.encode().splitlines(keepends=True)  # of bytes, for those of text also end at a form feed
            for node in parsed(text).body:
                if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
                    head = b"".join(lines[node.lineno - 1 : node.body[0].end_lineno])
                    if len(head) <= LONGEST:
                        yield head.decode()


def parsed(text: str) -> ast.Module:
    """An empty module for text that is no Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python is about to drop
        try:
            tree = ast.parse(text)
            compile(tree, "<text>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module([], [])
    return tree


def is_correct(prompt: str, drawn: bytes) -> bool:
    """Whether the function that a draw finishes compiles and does something."""
    body = drawn.decode("utf-8", "replace")
    end = DEDENT.search(body)
    body = body[: end.start()] if end else body.rpartition("\n")[0]
    functions = parsed(prompt + body).body
    return len(functions) == 1 and isinstance(functions[0], ast.FunctionDef) and len(functions[0].body) > 1


def main() -> None:
    parser = Parser(__doc__)
    add_source(parser)
    parser.add_argument("--prompts", type=positive, default=20, help="functions to finish, spread evenly")
    parser.add_argument("--samples", type=positive, default=16, help="draws for each")
    parser.add_argument("--bytes", type=positive, default=96, metavar="N", help="of a draw")
    parser.add_argument("--temperature", type=float, default=0.6, help="of the draws")
    arguments = parser.parse_args()
    results = machine_folder("results")
    check_writable(results / "probes", "paths.results")
    config = config_of(arguments.weights, arguments.runs)
    config.data.root = machine_data_root()
    task = TASKS[config.task](config)
    if not isinstance(task, CodeTask) or config.data.name == "folder":
        raise UserError(f"{arguments.weights}: probes take a model of code that was trained on the packages")
    model = from_checkpoint(arguments.weights, runs=arguments.runs)
    heads = [*dict.fromkeys(prompts(task.corpus))]
    if not heads:
        raise UserError(f"data.name={config.data.name}: the test files have no function with a docstring")
    chosen = np.unique(np.linspace(0, len(heads) - 1, arguments.prompts).round().astype(int))
    counts = []
    for number in chosen:
        options = {"temperature": arguments.temperature, "seed": int(number)}
        drawn = sample(model, heads[number].encode(), arguments.bytes, arguments.samples, **options)
        counts.append(sum(is_correct(heads[number], bytes(row)) for row in drawn))
    ks = [k for k in (1, 2, 8, 16, 64) if k < arguments.samples]
    scores = {f"pass@{k}": float(np.mean([pass_at_k(arguments.samples, c, k) for c in counts])) for k in ks}
    scores["any"] = float(np.mean([c > 0 for c in counts]))
    print("  ".join(f"{name} {value:.3f}" for name, value in scores.items()))
    asked = {key: getattr(arguments, key) for key in ("samples", "bytes", "temperature")}
    name, run = run_name(config), model.info.weights_id
    path = probe_file(name, run, results)
    write_results(path, {"run": run, "name": name, **asked, "correct": counts, "scores": scores})


if __name__ == "__main__":
    run_script(main)
