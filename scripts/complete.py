"""Continue a text by a model of bytes.

    python scripts/complete.py model.safetensors "def area(self"
    python scripts/complete.py 1f392a "import numpy as np" --bytes 400 --temperature 0.7    # a run's folder or id

Prints the text and what follows. Exit status: 0, or 2 for bad input.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.errors import UserError, printable, run_script
from plstm.models.text import complete
from plstm.runs.weights import from_checkpoint
from scripts.common import Parser, add_source, positive


def main() -> None:
    parser = Parser(__doc__)
    add_source(parser)
    parser.add_argument("text", help="how a file begins")
    parser.add_argument("--bytes", type=positive, default=200, metavar="N", help="so many more")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the draw; 0: the likeliest byte")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    arguments = parser.parse_args()
    model = from_checkpoint(arguments.weights, runs=arguments.runs)
    options = {"temperature": arguments.temperature, "seed": arguments.seed}
    try:
        text = arguments.text + complete(model, arguments.text, arguments.bytes, **options)
    except UserError as error:
        raise UserError(f"{arguments.weights}: {error}") from error
    print("\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n")))


if __name__ == "__main__":
    run_script(main)
