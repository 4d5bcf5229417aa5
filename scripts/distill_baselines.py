"""The teacher of the study distill-small under the window's mask, without training: results/baselines/distill.json.

    python scripts/distill_baselines.py

The gate of the study: where the mask costs the teacher less than 0.05 bits per byte, it hardly looks further than the
window, and no student can be told from the window alone. Then train the teacher for longer.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import plstm
from plstm.errors import UserError, run_script
from plstm.models import build_model
from plstm.runs.weights import config_of
from plstm.studies.definitions import Column, load_table
from plstm.tasks import TASKS, Task
from plstm.tasks.code import CodeTask
from plstm.training.steps import evaluate, make_ready
from scripts.common import ROOT, Parser, machine_data_root, machine_folder, write_results

WINDOWS = (16, 32, 64)  # students have 32
SINKS = 4
LEAST = 0.05  # bits per byte


def under_window(teacher: Any, window: int, sinks: int) -> nnx.Module:
    """The teacher with the same parameters, whose attention sees the last `window` tokens and the first `sinks`."""
    config = teacher.info.config
    if "attention" not in config.blocks:
        raise UserError(f"blocks {', '.join(config.blocks)}: none is attention; take a Transformer as the teacher")
    blocks = ["window" if block == "attention" else block for block in config.blocks]
    model = build_model(replace(config, blocks=blocks, window=window, sinks=sinks), 0, teacher.info.sizes)
    nnx.update(model, nnx.state(teacher, nnx.Param))
    return model


def scores(model: nnx.Module, task: Task, columns: Sequence[Column]) -> dict[str, float]:
    """The metrics of the study's columns, by their names."""
    batch_size = task.config.optim.batch_size
    measure, weights, place = make_ready(model, task.metrics, batch_size)
    splits = {column.split for column in columns}
    found = {split: evaluate(measure, weights, task.split(split), batch_size, place) for split in sorted(splits)}
    return {column.name: round(found[column.split][column.metric], 5) for column in columns}


def main() -> None:
    parser = Parser(__doc__)
    results = machine_folder("results")
    parser.add_argument("weights", nargs="?", type=Path, default=results / "weights/code-teacher.safetensors")
    parser.add_argument("--out", type=Path, default=results / "baselines/distill.json")
    arguments = parser.parse_args()
    teacher = plstm.load(arguments.weights)
    config = config_of(arguments.weights)
    config.data.root = machine_data_root()
    task = TASKS[config.task](config)
    if not isinstance(task, CodeTask):
        raise UserError(f"{arguments.weights}: is of task {config.task}, not of code")
    columns = load_table(ROOT / "configs/study/distill-small.yaml").columns
    full = scores(teacher, task, columns)
    print("teacher", full, flush=True)
    lines = []
    for window in WINDOWS:
        found = scores(under_window(teacher, window, SINKS), task, columns)
        lines.append({"name": f"teacher under a window of {window}", **found})
        print(lines[-1], flush=True)
    first = columns[0].name
    costs = {line["name"]: round(line[first] - full[first], 5) for line in lines}
    write_results(arguments.out, {"baselines": lines, "teacher": full, "costs": costs})
    for name, cost in costs.items():
        print(f"{name}: {cost:+.3f} bits per byte{'' if cost >= LEAST else f', less than {LEAST}'}")


if __name__ == "__main__":
    run_script(main)
