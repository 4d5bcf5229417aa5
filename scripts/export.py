"""Write a run's weights to a .safetensors file, with its config, preprocessing and class names.

    python scripts/export.py 1f392a model.safetensors           # a run's folder, or the first digits of its id

`plstm.load`, `eval.py weights=...`, `train.py init_from=...` and `scripts/classify.py` read it.
Exit status: 0, or 2 for bad input.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import plstm
from plstm.errors import UserError, run_script
from plstm.runs.identity import run_name
from plstm.runs.weights import from_checkpoint, training_config
from scripts.common import Parser, machine_folder


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("run", help="a run's folder or id")
    parser.add_argument("file", type=Path, help="the file to write, named *.safetensors")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last", help="of the run")
    parser.add_argument("--runs", type=Path, default=machine_folder("runs"), help="folder that ids are looked up in")
    arguments = parser.parse_args()
    if arguments.file.suffix != ".safetensors":
        raise UserError(f"{arguments.file}: name it *.safetensors")
    model = from_checkpoint(arguments.run, runs=arguments.runs, checkpoint=arguments.checkpoint)
    name = run_name(training_config(model.info, arguments.run))
    plstm.save(model, arguments.file)
    print(f"{arguments.file}: {name}, step {model.info.step:,}, {arguments.file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    run_script(main)
