"""Command lines to try on train.py, and what becomes of one: a config that starts, or one line that says why not."""

# ruff: noqa: SIM905 (a line of words is shorter than a list of them)

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from plstm.config import Config, identity, plain_config, run_id, to_config
from plstm.errors import UserError
from plstm.runs.cli import CONFIGS, check_overrides, explain, known_keys, uncomposable
from plstm.runs.finetuning import initial_id
from plstm.runs.programs import Plan
from plstm.tasks import TASKS
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer, learning_rate_schedule
from plstm.training.steps import init_state, make_train_step

STARTS = {
    "arrow": ["experiment=arrow/plstm", "debug=smoke", "model.dim=16", "model.heads=2"],
    "vit": ["experiment=arrow/vit", "debug=smoke", "model.dim=16", "model.heads=2"],
    "imagenet": ["experiment=imagenet/vit_s", "debug=smoke", "model.dim=16", "model.heads=2", "data=imagenet_held_out"],
}
GROUPS = ("model", "data", "augment", "optim", "experiment", "debug")
KEYS = known_keys(Config)
CHOICES = {
    group: [str(path.relative_to(CONFIGS / group))[:-5] for path in sorted((CONFIGS / group).rglob("*.yaml"))]
    for group in GROUPS
}
NUMBERS = "0 1 2 3 5 16 48 64 7.5 0.5 0.1 1e-3 1e-320 1e39 1e308 1e400 -1 -0.0 1000 100000".split()
NUMBERS += [str(2**31), str(2**64), str(10**30), *"nan inf -inf NaN 1_000 0x10".split()]
NAMES = "adamw lamb val test train last best arrow imagenet P D attention zeros float16 device auto rand-m9".split()
NAMES += "offline deit3 none plstm_t arrow/vit smoke a,b true false null None ???".split()
ODD = [
    "",
    "''",
    "' '",
    "ä",
    "箭头",
    "'a b'",
    "../../x",
    "/",
    "~",
    "'x\ny'",
    "'a\\tb'",
    "\udcff",
    "'${seed}'",
    "${no.such}",
]
ODD += ["${oc.env:HOME}", "${run_id:}", "[", "{", "'", "a=b", "x" * 300, "{a: 1}", "{}", "[]", "[null]", "[[1]]"]
ODD += ["choice(1,2)", "range(3)", "'nan'", "0.0.0", "@", "$x"]
WHOLE = [*"0 1 2 3 4 8 12 16 24 32 48 64 96 128 256 -1".split(), str(2**31), str(2**64)]
BROKEN = "0.0 0.1 0.25 0.5 1.0 2.5 1e-3 1e-8 inf nan null true false".split()
SPLITS = ["[val]", "[val,test]", "[test]", "[val,val_ext,test,test_ext]", "[]", "[val,val]", "val", "[train]"]
WORDS = {
    "task": ["arrow", "imagenet", "none"],
    "experiment": ["custom", "arrow/plstm"],
    "model.family": ["vision", "graph", "none"],
    "model.modes": ["[P]", "[D]", "[P,D]", "[D,P]", "[attention]", "[P,P]", "[attention,P]", "[]", "[P,D,P]"],
    "model.gates": ["released", "printed"],
    "model.stm_bias_only": ["true", "false", "1"],
    "model.position_embedding": ["true", "false", "yes"],
    "model.gate_init": ["zeros", "normal"],
    "model.pooling": ["corners", "class_token"],
    "model.norm": ["rmsnorm", "layernorm"],
    "model.dtype": ["float32", "bfloat16"],
    "model.method": ["auto", "parallel", "chunkwise", "recurrent", "fused"],
    "data.name": ["arrow_pointing", "imagenet2012", "mosaics"],
    "data.placement": ["device", "stream"],
    "data.generate": ["true", "false"],
    "data.root": ["null", "/nowhere", "data", "''"],
    "augment.auto_augment": ["null", "three_augment", "rand-m9-mstd0.5-inc1", "rand-m9", "rand-m99", "rand-x", "''"],
    "optim.name": ["adamw", "lamb"],
    "optim.loss": ["cross_entropy", "binary_cross_entropy"],
    "loop.eval_splits": SPLITS,
    "loop.final_splits": SPLITS,
    "loop.best_split": ["null", "val", "test", "train"],
    "logger.mode": ["disabled", "offline", "online", "auto"],
    "logger.project": ["plstm", "''", "a/b"],
    "logger.entity": ["null", "me", "''"],
    "paths.runs": ["runs", "''", "/tmp/x", "~/x", "null"],
    "paths.results": ["results", "''", "/tmp/x", "null"],
    "init_from": ["null", "0123456789ab", "none", "''"],
    "init_checkpoint": ["last", "best", "first"],
}


# ---------------------------------------------------------------------- what is tried
def values() -> st.SearchStrategy[str]:
    """The text of a value as it stands on a command line."""
    numbers, names, odd = (st.sampled_from(texts) for texts in (NUMBERS, NAMES, ODD))
    simple = st.one_of(numbers, names)
    lists = st.lists(simple, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
    return st.one_of(numbers, numbers, names, odd, lists, st.integers().map(str), st.floats().map(repr))


def likely(key: str) -> st.SearchStrategy[str]:
    """Values of about the kind that a key has, many of them good."""
    if key in GROUPS:
        return st.sampled_from(CHOICES[key])
    if key in WORDS:
        return st.sampled_from(WORDS[key])
    return st.sampled_from([*WHOLE, *BROKEN])


def keys() -> st.SearchStrategy[str]:
    """Keys of all tasks, some of them misspelt, and groups."""
    known = st.sampled_from(KEYS)
    letters = st.sampled_from("abcdefgxyz_.")

    def misspell(key: str, place: int, letter: str) -> str:
        place %= len(key)
        return key[:place] + letter + key[place + 1 :]

    misspelt = st.builds(misspell, known, st.integers(0, 99), letters)
    return st.one_of(known, known, known, known, st.sampled_from(GROUPS), misspelt)


def command_lines() -> st.SearchStrategy[tuple[str, list[str]]]:
    """A start of `STARTS`, and one to three overrides."""
    marks = st.sampled_from(["", "", "", "", "", "", "", "+", "++", "~"])

    def write(mark: str, key: str, value: str) -> str:
        return f"~{key}" if mark == "~" else f"{mark}{key}={value}"

    anything = st.builds(write, marks, keys(), values())
    close = st.sampled_from([*KEYS, *GROUPS]).flatmap(lambda key: likely(key).map(lambda value: f"{key}={value}"))
    override = st.one_of(anything, close, close)
    return st.tuples(st.sampled_from(sorted(STARTS)), st.lists(override, min_size=1, max_size=3))


# ---------------------------------------------------------------------- what becomes of it
@dataclass
class Outcome:
    """`line`: why it does not start, None where it does; `config`: of a start."""

    line: str | None
    config: Config | None = None


def outcome(start: str, overrides: list[str], folder: str, build: Callable[[Config], None]) -> Outcome:
    """As train.py does it: compose, check, name the run, build. Any other error than ours comes through."""
    own = [f"paths.runs={folder}/runs", f"paths.results={folder}/results", "logger.mode=disabled"]
    try:
        check_overrides([*own, *overrides])
        try:
            node = compose("train", overrides=[*STARTS[start], *own, *overrides])
        except (AttributeError, TypeError, ValueError) as error:
            return Outcome(uncomposable(error, overrides))
        config = to_config(node)
        if config.init_from is not None:
            initial_id(config.init_from, Path(config.paths.runs))
        build(config)
    except (HydraException, OmegaConfBaseException) as error:
        return Outcome(explain(error, Config))
    except UserError as error:
        return Outcome(str(error))
    return Outcome(None, config)


def build(config: Config) -> None:
    """All that stands between a checked config and the first step, without data: in shapes, as `jax.eval_shape`."""
    parts(config)
    program = plain_config(config)
    kept = {key: program[key] for key in ("task", "model", "data", "augment")}
    kept["optim"] = {key: program["optim"][key] for key in ("name", "loss", "batch_size", "label_smoothing")}
    trace(json.dumps(kept, sort_keys=True))


def parts(config: Config) -> None:
    """What is not traced: the layout, the steps, the schedule, the seeds, the data set's variant, the record."""
    layout, task = Layout(make_mesh(config.optim.batch_size, config.mesh.fsdp)), TASKS[config.task](config)
    plan = Plan.of(config, task)
    schedule = learning_rate_schedule(config.optim, plan.steps, plan.warmup_steps)
    assert all(math.isfinite(float(schedule(step))) for step in (0, plan.warmup_steps, plan.steps - 1))
    jax.random.fold_in(jax.random.key(config.seed), 0)
    assert task.describe_data()
    if config.task == "arrow":
        task._variant  # noqa: B018 (it checks the sizes)
    elif config.data.name == "mosaics":
        assert all(len(task.split(name)) for name in config.loop.final_splits if name != "train")
        task.batches(layout)
    json.dumps(identity(config), allow_nan=False, ensure_ascii=False).encode()
    assert len(run_id(config)) == 12


@functools.cache
def trace(program: str) -> None:
    """Initialisation and a training step of a config's program, in shapes."""
    config = to_config(OmegaConf.create(json.loads(program)))
    task, made = TASKS[config.task](config), {}
    optimizer = build_optimizer(config.optim, learning_rate_schedule(config.optim, 20, 2))

    def initial():
        made["graphdef"], state = init_state(task.build_model(jax.random.key(0)), optimizer)
        return state

    state = jax.eval_shape(initial)
    batch, size = config.optim.batch_size, config.data.size
    images = (batch, size, size, 3) if config.task == "imagenet" else (batch, -(-size * size // 8))
    step = make_train_step(made["graphdef"], optimizer, lambda n: 0.0, task.loss, layout=Layout(make_mesh(batch)))
    shapes = {"image": jax.ShapeDtypeStruct(images, jnp.uint8), "label": jax.ShapeDtypeStruct((batch,), jnp.int32)}
    jax.eval_shape(step, state, shapes, jax.random.key(1))


# ---------------------------------------------------------------------- what is asked of it
def fault(overrides: list[str], found: Outcome) -> str | None:
    """What is wrong with an outcome, None if nothing is."""
    if found.line is not None:
        if "\n" in found.line or len(found.line) > 600 or not found.line.strip():
            return f"not one line: {found.line!r}"
        given = [text.lstrip("+~").partition("=")[0] for text in overrides]
        named = any(key and key in found.line for key in [*given, *KEYS])  # one choice may break another key's bounds
        return None if named else f"names no key: {found.line!r}"
    plain = plain_config(found.config)
    given = {}
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.key_or_group in KEYS and not override.is_delete():
            given[override.key_or_group] = override.value()
        elif override.is_delete():
            return f"~ was let through: {overrides}"
    for key, value in given.items():
        if isinstance(value, dict | list) or "${" in str(value) or key in GROUPS:
            continue
        taken = plain
        for part in key.split("."):
            taken = taken.get(part) if isinstance(taken, dict) else None
        if not same(value, taken):
            return f"{key}={value!r} was taken as {taken!r}"
    return None


def same(given: Any, taken: Any) -> bool:
    """Whether a value of the command line is what the config has, in its own type."""
    if isinstance(taken, bool):
        return taken == (str(given).lower() in ("true", "yes", "on", "y", "1") or (type(given) is int and given != 0))
    if given is None or taken is None:
        return given is taken or str(given).lower() in ("null", "none", "")
    try:
        return type(taken)(given) == taken
    except (TypeError, ValueError):
        return str(given) == str(taken)
