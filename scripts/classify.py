"""Classify pictures: the five likeliest classes of each, with their probabilities.

    python scripts/classify.py model.safetensors cat.jpg dog.png
    python scripts/classify.py 1f392a cat.jpg         # a run's folder, or the first digits of its id

Exit status: 0, or 2 for bad input.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from PIL import Image

from data.decoding import CorruptImage, decode
from data.imagenet.source import class_words
from plstm.errors import UserError, first_line, printable, run_script
from plstm.runs.weights import from_checkpoint
from scripts.common import Parser, add_source


def read(path: Path) -> Image.Image:
    try:
        return decode(path.read_bytes(), upright=True)
    except (OSError, CorruptImage) as error:
        what = "not a picture that can be read, " if isinstance(error, CorruptImage) else ""
        raise UserError(f"{path}: {what}{first_line(error)}") from error


def main() -> None:
    parser = Parser(__doc__)
    add_source(parser)
    parser.add_argument("pictures", type=Path, nargs="+", metavar="picture", help="an image file")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last", help="of a run")
    arguments = parser.parse_args()
    pictures = [read(path) for path in arguments.pictures]
    source = arguments.weights
    model = from_checkpoint(source, runs=arguments.runs, checkpoint=arguments.checkpoint)
    info = model.info
    if info.preprocessing is None:
        raise UserError(f"{source}: this model of family {info.config.family} takes no pictures, or does not say how")
    words = class_words() if any(re.fullmatch(r"n\d{8}", name) for name in info.class_names) else {}
    for path, picture in zip(arguments.pictures, pictures, strict=True):
        probabilities = np.asarray(jax.nn.softmax(model(info.preprocessing(picture)[None])[0]))
        print(path)
        for number in np.argsort(-probabilities, kind="stable")[:5]:
            name = info.class_names[number] if info.class_names else str(number)
            print(f"  {probabilities[number]:6.1%}  {printable(name)}  {words.get(name, '')}".rstrip())


if __name__ == "__main__":
    run_script(main)
