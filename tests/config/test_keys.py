"""No key of the schema is without effect: code that is no check reads it, and another value does another thing."""

import ast
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from data.augment.recipes import AugmentConfig
from plstm.config import Config, EvalConfig
from plstm.models import build_model
from plstm.models.graph import GraphConfig
from plstm.runs.compose import to_config
from plstm.runs.overrides import known_keys
from plstm.training.optimizers import build_optimizer, learning_rate_schedule
from tests.commands import SOURCES
from tests.config.test_config import with_value


def reads(node: ast.AST) -> set[str]:
    """Names of attributes that are read, `getattr` with a name included, outside of what only checks."""
    match node:
        case ast.FunctionDef(name=name) if name == "check" or name.startswith("_check"):
            return set()
        case ast.Attribute(attr=key, ctx=ast.Load()) | ast.Call(args=[_, ast.Constant(value=str(key)), *_]):
            found = {key}
        case _:
            found = set()
    return found.union(*(reads(child) for child in ast.iter_child_nodes(node)))


def test_every_key_is_read():
    found = set().union(*(reads(ast.parse(path.read_text())) for path in SOURCES if "scripts" not in path.parts))
    keys = known_keys(Config) + known_keys(EvalConfig) + [field.name for field in dataclasses.fields(AugmentConfig)]
    assert {key.rpartition(".")[2] for key in keys} <= found
    assert not {"momentum", "patience", "hue", "colour"} & found, "a key that nobody reads would not be seen"


SMALL = ["debug=smoke", "model.dim=16", "model.heads=2"]


OPTIM = {"name": "adamw", "peak_lr": 3e-3, "end_factor": 0.5, "warmup_epochs": 2.0, "epochs": 3.0, "batch_size": 64}
OPTIM |= {"weight_decay": 0.5, "b1": 0.5, "b2": 0.9, "eps": 1e-3, "clip_norm": 0.1, "only": ["bias"]}
VISION = {"image_size": 96, "channels": 1, "classes": 7, "patch_size": 8, "dim": 32, "depth": 4, "heads": 1}
VISION |= {"mlp_ratio": 2, "remat": True, "dtype": "bfloat16", "method": "recurrent", "position_embedding": False}
VISION |= {"modes": ["D", "P"], "gates": "printed", "stm_bias_only": True, "gate_init": "normal", "norm": "layernorm"}
VISION |= {"layer_scale": 0.1, "drop_path": 0.5, "direct_weight": True, "transition_dtype": "bfloat16", "track": 2}
GRAPH = {"kind": "gin", "dim": 32, "depth": 2, "heads": 2, "mlp_ratio": 2, "p_norm": "linf", "reverse_p": "pruned"}
GRAPH |= {"transition_node": "tail", "method": "recurrent"}


def trained(optim) -> list[np.ndarray]:
    """What a few optimizer steps along the schedule make of two tensors."""
    per_epoch = 288 // optim.batch_size
    steps, warmup = round(optim.epochs * per_epoch), round(optim.warmup_epochs * per_epoch)
    optimizer = build_optimizer(optim, learning_rate_schedule(optim, steps, warmup))
    params = {"kernel": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "bias": jnp.ones(3)}
    state = optimizer.init(params)
    for step in range(steps):
        grads = jax.tree.map(lambda leaf, step=step: jnp.sin(9 * leaf + step) * 3e-4 * (1 + 9999 * (step % 3)), params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return jax.tree.leaves(params)


def built(config) -> list:
    graphdef, params, _ = nnx.split(build_model(config, 0, {"features": 3, "classes": 2}), nnx.Param, ...)
    return [str(graphdef), *jax.tree.leaves(params)]


@pytest.mark.parametrize(
    ("group", "values", "elsewhere", "make"),
    [
        # The task reads these three, and other tests see it.
        ("optim", OPTIM, {"loss", "label_smoothing", "schedule_per"}, trained),
        # pLSTM pools corners alone, ViT both; transitions need track; the family is another model altogether.
        pytest.param("vision", VISION, {"pooling", "transitions", "family"}, built, marks=pytest.mark.slow),
        # The LSTM GNN's pooling is no key of pLSTM's.
        pytest.param("graph", GRAPH, {"family", "lstm_pool"}, built, marks=pytest.mark.slow),
    ],
)
def test_every_key_changes_something(composed, group, values, elsewhere, make):
    imagenet = ["experiment=imagenet/vit", "data=imagenet_held_out", "optim.epochs=4", "optim.warmup_epochs=1"]
    config = {
        "optim": to_config(composed(*imagenet, *SMALL)).optim,
        "vision": to_config(composed("experiment=arrow/plstm", *SMALL, "model.transition_dtype=float32")).model,
        "graph": GraphConfig(dim=16, depth=4),
    }[group]
    keys = {field.name for field in dataclasses.fields(config)}
    assert keys - elsewhere == set(values), "say here what a new key does"
    start = make(config)
    for key, value in values.items():
        assert getattr(config, key) != value, key
        changed = make(with_value(config, key, value))
        same = [np.array_equal(one, other) for one, other in zip(start, changed, strict=False)]
        assert len(start) != len(changed) or not all(same), key
