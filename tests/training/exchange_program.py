"""What the tests of layouts start with four simulated devices: prints which kinds of exchanges between devices
are in the compiled training step and evaluation of models whose operators or layouts could need some, as one JSON
object."""

import json
import re

import jax
import numpy as np
from flax import nnx

from plstm.config import OptimConfig
from plstm.models import EfficientNetConfig, Mamba2DConfig, SS2DConfig, ViLConfig, VisionConfig, build_model
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_predict, make_train_step
from tests.training import classifying

BATCH, SIZES = 8, {"image_size": classifying.SIZE, "classes": 2}
CONFIGS = [
    EfficientNetConfig(**SIZES, stem=8, stages=[[3, 1, 1, 1, 8], [3, 2, 1, 3, 8]], features=8),
    Mamba2DConfig(**SIZES, dims=[8, 8], depths=[1, 1], mixers=["m2d", "attention"], states=2, dtype="float32"),
    SS2DConfig(**SIZES, dims=[8], depths=[1], dtype="float32"),
    ViLConfig(**SIZES, dim=16, depth=2, patch_size=8, heads=2, dtype="float32"),
    VisionConfig(**SIZES, dim=16, depth=2, patch_size=4, heads=2, dtype="float32"),
]
EXCHANGES = r" (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\("


def exchanges(config) -> list[str]:
    layout, optimizer = Layout(make_mesh(BATCH)), build_optimizer(OptimConfig(), lambda step: 1e-2)
    model = build_model(config, 0)
    graphdef = nnx.graphdef(model)
    state = layout.place_state(jax.tree.map(np.asarray, init_state(model, optimizer)))
    batch = next(iter(classifying.draw_split(BATCH).batches(BATCH)))
    batch = layout.place_rows({part: batch[part] for part in ("image", "label")})
    step = make_train_step(graphdef, optimizer, lambda step: 1e-2, classifying.loss, layout=layout)
    measure = make_predict(graphdef, classifying.measure, layout)
    programs = step.lower(state, batch, jax.random.key(0)), measure.lower(layout.place_copies(state.weights), batch)
    return sorted({kind for program in programs for kind in re.findall(EXCHANGES, program.compile().as_text())})


if __name__ == "__main__":
    print(json.dumps({config.family: exchanges(config) for config in CONFIGS}))
