"""Turn a checkpoint of a released (linen) vision model into a .safetensors file as export.py writes, or back.

    python scripts/import_released.py checkpoint.npz model.safetensors experiment=imagenet/plstm
    python scripts/import_released.py --export model.safetensors checkpoint.npz

A checkpoint is an .npz with "/" between the levels of a name, an Orbax folder, or a msgpack file of flax. Layers, sizes
and classes follow from it. The experiment tells the rest, such as the preprocessing; more overrides may follow. The
file names no run. Exit status: 0, or 2 for bad input.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax.serialization import msgpack_restore
from flax.traverse_util import flatten_dict

import plstm
from plstm.config import Config
from plstm.errors import UserError, first_line, run_script
from plstm.files import write_errors, write_file
from plstm.models import VisionConfig
from plstm.runs.compose import compose_experiment
from plstm.runs.overrides import parse_overrides
from plstm.runs.released import from_released, infer_config, to_released
from plstm.runs.weights import from_checkpoint, trained_info
from plstm.tasks import TASKS
from scripts.common import Parser, machine_folder

ELSEWHERE = {"image_size": "data.size", "classes": "data.classes"}  # keys of the model that follow another


def read(path: Path) -> dict[str, np.ndarray]:
    """A checkpoint's parameters by name; what lies beside `params` is left out."""
    try:
        if path.is_dir():
            checkpointer = ocp.PyTreeCheckpointer()
            whole = checkpointer.metadata(path.absolute()).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), whole)  # on any devices
            tree = checkpointer.restore(path.absolute(), restore_args=as_numpy)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                tree = dict(file)
        else:
            tree = msgpack_restore(path.read_bytes())
        tree = flatten_dict(tree, sep="/")
    except Exception as error:  # three formats raise a dozen different ones for damaged files
        raise UserError(f"{path}: not a checkpoint that can be read ({first_line(error)})") from error
    while any(name.startswith("params/") for name in tree):
        tree = {name.removeprefix("params/"): leaf for name, leaf in tree.items() if name.startswith("params/")}
    return {name: np.asarray(leaf) for name, leaf in tree.items()}


def choose_config(tree: dict[str, np.ndarray], overrides: list[str]) -> Config:
    """The experiment's config with what the parameters tell, then the user's overrides."""
    parse_overrides(overrides)
    experiments = [word.removeprefix("experiment=") for word in overrides if word.startswith("experiment=")]
    if len(experiments) != 1:
        raise UserError("experiment: name the one that the model was trained as, experiment=imagenet/plstm")
    found = [f"{ELSEWHERE.get(key, f'model.{key}')}={json.dumps(value)}" for key, value in infer_config(tree).items()]
    others = [word for word in overrides if not word.startswith("experiment=")]
    return compose_experiment(experiments[0], *found, *others)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("source", type=Path, help="the checkpoint, or the weights to export")
    parser.add_argument("file", type=Path, help="the file to write, named *.safetensors, or *.npz with --export")
    parser.add_argument("overrides", nargs="*", help="experiment=... and other keys of its config")
    parser.add_argument("--export", action="store_true", help="from our weights to a checkpoint of released names")
    arguments = parser.parse_args()
    suffix = ".npz" if arguments.export else ".safetensors"
    if arguments.file.suffix != suffix:
        raise UserError(f"{arguments.file}: name it *{suffix}")
    if arguments.export and arguments.overrides:
        raise UserError(f"{arguments.overrides[0]}: --export takes no overrides; the weights have their config")
    if arguments.export:
        model = from_checkpoint(arguments.source, runs=machine_folder("runs"))
        config = model.info.config
        if not isinstance(config, VisionConfig):
            raise UserError(f"{arguments.source}: released names are known for vision models only")
        tree = to_released(model, config)
        with write_errors(arguments.file, "choose another file"):
            write_file(arguments.file, lambda file: np.savez(file, **tree))
    else:
        tree = read(arguments.source)
        config = choose_config(tree, arguments.overrides)
        task = TASKS[config.task](config)
        model = from_released(tree, config.model)
        model.info = trained_info(model, config, task.sizes, task.class_names)
        plstm.save(model, arguments.file)
    print(f"{arguments.file}: {sum(leaf.size for leaf in tree.values()):,} parameters")


if __name__ == "__main__":
    run_script(main)
