"""What the tests of layouts start: alone with simulated devices, or as one of several processes.

    python layouts_program.py MODEL FOLDER LAYOUT ...      LAYOUT: devices x fsdp, such as 8x4

Trains a tiny MODEL, "pLSTM" or "MLP", which compiles fast, for two steps from one start in each layout, evaluates it,
and saves it in FOLDER/LAYOUT; then restores each of these checkpoints in the layout named after it, the last one in the
first. The operator works in chunks. Process 0 writes the states to FOLDER/LAYOUT.npy, and prints one JSON object.
"""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from plstm.config import OptimConfig
from plstm.models import VisionConfig, build_model
from plstm.nn.layers import drop_path
from plstm.ops.grid import cpu
from plstm.training.checkpoints import Checkpoints
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.processes import SharedSignal, from_main, is_main, start_processes
from plstm.training.steps import evaluate, init_state, make_predict, make_train_step
from tests.drawing import fill
from tests.training import classifying

BATCH, EXAMPLES = 8, 19
CONFIG = VisionConfig(
    image_size=16, patch_size=4, dim=64, heads=2, depth=1, modes=["D"], classes=2, dtype="float32", drop_path=0.5
)


class MLP(nnx.Module):
    def __init__(self):
        self.up, self.down = (nnx.Linear(*sizes, rngs=nnx.Rngs(0)) for sizes in ((768, 64), (64, 2)))

    def __call__(self, images, *, key=None):
        return self.down(drop_path(jax.nn.gelu(self.up(images.reshape(len(images), -1))), 0.5, key))


def start_state(model: str, optimizer):
    """The model's definition and step 0, every parameter drawn by NumPy."""
    build = {"pLSTM": lambda: build_model(CONFIG, 0), "MLP": MLP}[model]
    filled = fill(build, 0.1)
    return nnx.graphdef(filled), jax.tree.map(np.asarray, init_state(filled, optimizer))


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def main(model: str, folder: Path, names: list[str]) -> None:
    start_processes(60)
    cpu.BYTES_PER_CORE = 1
    part = {"process_index": jax.process_index(), "process_count": jax.process_count()}
    split, key = dataclasses.replace(classifying.draw_split(EXAMPLES), **part), jax.random.key(0)
    optimizer, schedule = build_optimizer(OptimConfig(), lambda step: 1e-2), lambda step: 1e-2
    graphdef, start = start_state(model, optimizer)
    measure = make_predict(graphdef, classifying.measure)
    report, states = {}, {}
    for name in names:
        devices, fsdp = map(int, name.split("x"))
        layout = Layout(make_mesh(BATCH, fsdp, jax.devices()[:devices]))
        step = make_train_step(graphdef, optimizer, schedule, classifying.loss, layout=layout)
        state, losses = layout.place_state(start), []
        for batch in list(split.batches(BATCH))[:2]:
            state, metrics = step(state, layout.place_rows({part: batch[part] for part in ("image", "label")}), key)
            losses.append({k: float(v) for k, v in [("loss", metrics.averaged["loss"][0]), *metrics.latest.items()]})
        params = layout.gather(state.params)
        report[name] = {
            "steps": losses,
            "evaluation": evaluate(measure, params, split, BATCH, layout.place_rows),
            "held": sum(leaf.addressable_data(0).size for leaf in jax.tree.leaves(state)),
        }
        states[name] = state, flat(layout.local(state)), layout
        checkpoints = Checkpoints(folder / name, name)
        checkpoints.save(2, state, {"from": name}, 0.5)
        checkpoints.close()
        if is_main():
            np.save(folder / f"{name}.npy", states[name][1])
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        like, _, layout = states[other]
        restored, info = Checkpoints(folder / name, name, read_only=True).restore(2, like)
        assert info["from"] == name
        np.testing.assert_array_equal(flat(layout.local(restored)), states[name][1])
        jax.tree.map(lambda a, b: np.testing.assert_equal(a.sharding, b.sharding), restored, like)
    shared = SharedSignal(layout)
    is_last = jax.process_index() == jax.process_count() - 1
    report["signals"] = [shared.any_process_signalled(15 if n == 3 and is_last else 0) for n in range(8)]
    report["from_main"] = from_main(100 + jax.process_index())
    if is_main():
        print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
