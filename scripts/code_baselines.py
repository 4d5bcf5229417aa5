"""Bits per byte of source code without a neural network: results/baselines/code.json.

    python -m data.code fetch
    python scripts/code_baselines.py                # minutes, 4 GiB

A unigram and an interpolated 5-gram (Witten and Bell, 1991), counted on all text that models train on and scored on the
windows that models are scored on; gzip and xz of the whole test text, where xz finds repeats that are megabytes apart.
"""

import gzip
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.code import DIGEST, SEPARATOR, load_corpus
from plstm.errors import run_script
from plstm.tasks.code import CodeData, CodeSplit
from scripts.common import Parser, machine_data_root, machine_folder, write_results

BASE = SEPARATOR + 1
ORDER = 5


def keys(tokens: np.ndarray, order: int) -> np.ndarray:
    """A number for each run of so many tokens: [..., T] -> int64 [..., T - order + 1]."""
    count = tokens.shape[-1] - order + 1
    found = np.zeros((*tokens.shape[:-1], count), np.int64)
    for n in range(order):
        found *= BASE
        found += tokens[..., n : n + count]
    return found


def lookup(table: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The values at `wanted` keys of a sorted table, 0 where it has none."""
    place = np.minimum(np.searchsorted(table, wanted), len(table) - 1)
    return np.where(table[place] == wanted, values[place], 0)


def witten_bell(text: np.ndarray, windows: np.ndarray, order: int) -> Iterator[np.ndarray]:
    """Probabilities of the tokens of windows after the first by n-grams of 1 to `order` tokens: yields float64
    [rows, T - 1] for each. A separator is read and never predicted.

        p_n(x | h) = (c(h x) + d(h) p_(n-1)(x | h')) / (c(h) + d(h)),   p_0 = 1 / 256

    c(h x): how often x follows the last n - 1 tokens h; d(h): how many tokens do; h': h without its first token.
    """
    found = np.full((len(windows), windows.shape[1] - 1), 1 / SEPARATOR)
    for n in range(1, order + 1):
        grams, counts = np.unique(keys(text, n)[text[n - 1 :] != SEPARATOR], return_counts=True)
        contexts, first, kinds = np.unique(grams // BASE, return_index=True, return_counts=True)
        totals = np.add.reduceat(counts, first)
        wanted = keys(windows[:, 1:] if n == 1 else windows, n)
        start = max(n - 2, 0)  # the targets before have fewer tokens before them
        seen, distinct = (lookup(contexts, values, wanted // BASE) for values in (totals, kinds))
        mixed = lookup(grams, counts, wanted) + distinct * found[:, start:]
        found[:, start:] = np.where(seen > 0, mixed / np.maximum(seen + distinct, 1), found[:, start:])
        yield found.copy()


def main() -> None:
    Parser(__doc__).parse_args()
    corpus = load_corpus("packages", machine_data_root())
    text = np.concatenate([*corpus["train"].values()]).astype(np.int64)
    lines: dict[str, dict] = {name: {"name": name} for name in ("unigram", "5-gram", "gzip", "xz")}
    for split in ("val", "test"):
        windows = CodeSplit(corpus[split], CodeData.context, CodeData.eval_rows).windows["tokens"].astype(np.int64)
        is_scored = windows[:, 1:] < SEPARATOR
        by_order = [float(-np.log2(found[is_scored]).mean()) for found in witten_bell(text, windows, ORDER)]
        lines["unigram"][f"{split}_bits"] = round(by_order[0], 4)
        lines["5-gram"][f"{split}_bits"] = round(by_order[-1], 4)
        print(split, [round(bits, 4) for bits in by_order], flush=True)
    whole = np.concatenate([*corpus["test"].values()])
    content = whole[whole < SEPARATOR].astype(np.uint8).tobytes()
    for name, compressed in (("gzip", gzip.compress(content, 9)), ("xz", lzma.compress(content, preset=9))):
        lines[name]["test_bits"] = round(8 * len(compressed) / len(content), 4)
    print(*lines.values(), sep="\n")
    write_results(machine_folder("results") / "baselines/code.json", {"corpus": DIGEST, "baselines": [*lines.values()]})


if __name__ == "__main__":
    run_script(main)
