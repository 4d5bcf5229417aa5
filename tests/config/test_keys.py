"""No key of the schema is without effect: code that is no check reads it, and another value does another thing."""

from __future__ import annotations

import ast
import copy
import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from data.arrow_pointing.geometry import Canvas, base_seed, parameters, render
from data.augment.recipes import AugmentConfig
from data.loading import epoch_order
from plstm.config import Config, EvalConfig, to_config
from plstm.models import build_model
from plstm.models.graph import GraphConfig
from plstm.runs.cli import CONFIGS, known_keys
from plstm.tasks import TASKS
from plstm.training.optimizers import build_optimizer, learning_rate_schedule

ROOT = CONFIGS.parent
SOURCES = [
    ROOT / "train.py",
    ROOT / "eval.py",
    *(path for part in ("plstm", "data") for path in (ROOT / part).rglob("*.py")),
]
# What stands before a key where it is read: its group, or the name that a function gives to it.
OWNERS = {"optim": {"optim", "config"}, "model": {"model", "config"}, "augment": {"augment", "config", "_config"}}
OWNERS |= {"": {"config", "self", "options"}, "paths": {"paths"}, "loop": {"loop"}}


def reads(tree: ast.AST) -> set[tuple[str, str]]:
    """(owner, key) of each attribute that is read, `getattr` with a name included, outside of what only checks."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef) and (node.name == "check" or node.name.startswith("_check")):
            return
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add((ast.unparse(node.value).split(".")[-1], node.attr))
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "getattr"
            and isinstance(node.args[1], ast.Constant)
        ):
            found.add((ast.unparse(node.args[0]).split(".")[-1], node.args[1].value))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


@lru_cache
def all_reads() -> set[tuple[str, str]]:
    return set().union(*(reads(ast.parse(path.read_text())) for path in SOURCES))


def unread(keys: list[str], found: set[tuple[str, str]]) -> list[str]:
    """Keys that nobody reads."""
    left = []
    for key in keys:
        group, _, leaf = key.rpartition(".")
        if any(other.startswith(f"{key}.") for other in keys):
            continue  # a group
        if not any((owner, leaf) in found for owner in OWNERS.get(group, {group})):
            left.append(key)
    return left


def keys_of_all_tasks() -> list[str]:
    return [*known_keys(Config), *(f"augment.{field.name}" for field in dataclasses.fields(AugmentConfig))]


@pytest.mark.parametrize("keys", [keys_of_all_tasks(), known_keys(EvalConfig)], ids=["train", "eval"])
def test_every_key_is_read(keys):
    assert not unread(keys, all_reads())
    assert len(keys) > 10


def test_a_key_that_nobody_reads_would_be_seen():
    new = [
        "optim.momentum",
        "loop.patience",
        "data.shuffle",
        "model.bias",
        "mesh.tensor",
        "augment.posterize",
        "colour",
    ]
    assert unread(new, all_reads()) == new
    checked = ast.parse("def _check_ranges(config):\n    assert config.optim.momentum < 1\n")
    assert unread(["optim.momentum"], reads(checked)) == ["optim.momentum"]
    assert unread(["optim.momentum"], reads(ast.parse("def f(config):\n    return config.optim.momentum\n"))) == []


# ---------------------------------------------------------------------- another value, another thing
def with_value(config: Config, key: str, value) -> Config:
    changed = copy.deepcopy(config)
    *groups, leaf = key.split(".")
    node = changed
    for group in groups:
        node = getattr(node, group)
    assert getattr(node, leaf) != value, key
    setattr(node, leaf, value)
    return changed


@pytest.fixture(scope="module")
def imagenet(composed) -> Config:
    small = ["debug=smoke", "data=imagenet_held_out", "model.dim=16", "model.heads=2", "optim.epochs=4"]
    return to_config(composed("experiment=imagenet/vit_s", *small, "optim.warmup_epochs=1"))


def trained(config: Config) -> list[np.ndarray]:
    """What four optimizer steps along the schedule make of two tensors."""
    optim, per_epoch = config.optim, 288 // config.optim.batch_size
    steps, warmup = round(optim.epochs * per_epoch), round(optim.warmup_epochs * per_epoch)
    optimizer = build_optimizer(optim, learning_rate_schedule(optim, steps, warmup))
    params = {"kernel": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "bias": jnp.ones(3)}
    state = optimizer.init(params)
    for step in range(steps):
        grads = jax.tree.map(lambda leaf, step=step: jnp.sin(9 * leaf + step) * 3e-4 * (1 + 9999 * (step % 3)), params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


OPTIM = {"name": "adamw", "peak_lr": 3e-3, "end_factor": 0.5, "warmup_epochs": 2.0, "epochs": 3.0, "batch_size": 64}
OPTIM |= {"weight_decay": 0.5, "b1": 0.5, "b2": 0.9, "eps": 1e-3, "clip_norm": 0.1}
LOSS = {"loss": "cross_entropy", "label_smoothing": 0.3, "schedule_per": "epoch"}  # these in other places


def test_every_key_of_the_optimizer_changes_the_training(imagenet):
    keys = {field.name for field in dataclasses.fields(imagenet.optim)}
    assert {*OPTIM, *LOSS} == keys, "say here what a new key does"
    start = trained(imagenet)
    for key, value in OPTIM.items():
        changed = trained(with_value(imagenet, f"optim.{key}", value))
        assert any((one != other).any() for one, other in zip(start, changed, strict=True)), key


def test_loss_and_smoothing_change_the_loss(imagenet):
    config = with_value(imagenet, "augment.mixup", 0.0)
    batch = {"image": jnp.zeros((4, 8, 8, 3), jnp.uint8), "label": jnp.arange(4)}

    def loss(config: Config) -> float:
        task = TASKS["imagenet"](config)
        weights = jax.random.normal(jax.random.key(0), (3, 1000))
        return float(task.loss(lambda images, key: images.mean((1, 2)) @ weights, batch, jax.random.key(1))[0])

    cross = with_value(config, "optim.loss", "cross_entropy")
    assert len({loss(config), loss(cross), loss(with_value(cross, "optim.label_smoothing", 0.3))}) == 3


MODEL = {"image_size": 96, "channels": 1, "classes": 7, "patch_size": 8, "dim": 32, "depth": 4, "heads": 1}
MODEL |= {"mlp_ratio": 2, "remat": True}
MODEL |= {"modes": ["D", "P"], "gates": "printed", "stm_bias_only": True, "gate_init": "normal", "norm": "layernorm"}
MODEL |= {"position_embedding": False, "layer_scale": 0.1, "drop_path": 0.5, "dtype": "bfloat16", "method": "recurrent"}
GRAPH = {"kind": "gin", "dim": 32, "depth": 2, "heads": 2, "mlp_ratio": 2, "p_norm": "linf", "reverse_p": "pruned"}
GRAPH |= {"transition_node": "tail", "method": "recurrent"}


def built(build) -> tuple[str, list[np.ndarray]]:
    graphdef, params, _ = nnx.split(build(), nnx.Param, ...)
    return str(graphdef), [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


def unchanged(config, values: dict, build) -> list[str]:
    """The keys whose other value builds the same model from the same seed."""
    fields = {field.name for field in dataclasses.fields(config)}
    # pLSTM pools corners alone, ViT both; the family is another model altogether.
    assert fields - {"pooling", "family"} == set(values), "say here what a new key does"
    (text, leaves), left = built(lambda: build(config)), []
    for key, value in values.items():
        changed = copy.deepcopy(config)
        assert getattr(changed, key) != value, key
        setattr(changed, key, value)
        other_text, others = built(lambda changed=changed: build(changed))
        equal = [one.shape == other.shape and (one == other).all() for one, other in zip(leaves, others, strict=False)]
        left += [key] * (text == other_text and len(leaves) == len(others) and all(equal))
    return left


@pytest.mark.slow
def test_every_key_of_a_vision_model_changes_the_model(composed):
    config = to_config(composed("experiment=arrow/plstm", "debug=smoke", "model.dim=16", "model.heads=2")).model
    assert not unchanged(config, MODEL, lambda config: build_model(config, 0))


@pytest.mark.slow
def test_every_key_of_a_graph_model_changes_the_model():
    build = lambda config: build_model(config, 0, {"features": 3, "classes": 2})  # noqa: E731
    assert not unchanged(GraphConfig(dim=16, depth=4), GRAPH, build)


def made_by(config: Config) -> list[bytes]:
    """Initial parameters, order of the first epoch, and the first training images of a run of arrow pointing."""
    init_key = jax.random.fold_in(jax.random.key(config.seed), 0)  # as train.py
    params = nnx.state(TASKS["arrow"](config).build_model(init_key), nnx.Param)
    order = epoch_order(config.seed, 0, 256)
    law, base = Canvas(config.data.size, config.data.scale), base_seed(config.data.train_seed)
    images = b"".join(render(parameters(base, index, law), law).tobytes() for index in range(8))
    return [
        b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)),
        np.asarray(order).tobytes(),
        images,
    ]


def test_a_seed_changes_initialisation_order_and_images_and_nothing_else_does(composed):
    small = ["experiment=arrow/vit", "debug=smoke", "model.dim=16", "model.heads=2"]
    first, again, other = (made_by(to_config(composed(*small, f"seed={seed}"))) for seed in (43, 43, 44))
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))
