"""Say what is in pictures: the five likeliest classes of each, with their probabilities.

    python scripts/classify.py cat.jpg dog.png --weights model.safetensors
    python scripts/classify.py cat.jpg --weights 1f392a         # a run's folder, or the first digits of its id

Without --weights it takes the newest run. Exit status: 0, or 2 for bad input.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from absl import logging
from PIL import Image

from data.decoding import CorruptImage, decode
from data.imagenet.source import class_words
from plstm.config import run_name
from plstm.errors import UserError
from plstm.models import from_checkpoint

ROOT = Path(__file__).resolve().parents[1]
SHOWN = 5


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, nargs="+", metavar="picture", help="an image file")
    parser.add_argument("--weights", help="a .safetensors file, or a run's folder or id")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last", help="of a run")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder that ids are looked up in")
    return parser.parse_args()


def newest_run(runs: Path) -> Path:
    found = [path for path in runs.glob("*") if (path / "checkpoints").is_dir()]
    if not found:
        raise UserError(f"--weights: not given, and no run in {runs}; name a .safetensors file, or train a model first")
    return max(found, key=lambda path: (path / "checkpoints").stat().st_mtime)


def read(path: Path) -> Image.Image:
    try:
        return decode(path.read_bytes())
    except CorruptImage as error:
        raise UserError(f"{path}: not a picture that can be read ({error})") from error


def labels(names: Sequence[str]) -> list[str]:
    """The classes' names, with words where they are WordNet ids."""
    if not any(re.fullmatch(r"n\d{8}", name) for name in names):
        return list(names)
    words = class_words()
    return [f"{name}  {words[name]}" if name in words else name for name in names]


def main() -> None:
    arguments = parse_arguments()
    logging.set_verbosity(logging.ERROR)
    pictures = [read(path) for path in arguments.pictures]
    source = arguments.weights or newest_run(arguments.runs)
    model = from_checkpoint(source, runs=arguments.runs, checkpoint=arguments.checkpoint)
    if model.info.preprocessing is None:
        raise UserError(f"--weights {source}: a model of task {model.info.config.task} takes no pictures")
    names = labels(model.info.class_names)
    print(f"{run_name(model.info.config)}, step {model.info.step:,} ({source})")
    for path, picture in zip(arguments.pictures, pictures, strict=True):
        logits = model(model.info.preprocessing(picture)[None])[0]
        print(path)
        for number, probability in zip(*(np.asarray(found) for found in top(logits)), strict=True):
            print(f"  {probability:6.1%}  {names[number] if names else number}")


def top(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The likeliest classes [at most `SHOWN`], best first, and their probabilities."""
    probabilities, classes = jax.lax.top_k(jax.nn.softmax(logits), min(SHOWN, logits.shape[-1]))
    return classes, probabilities


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
