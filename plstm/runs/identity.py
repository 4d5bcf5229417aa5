"""What a run is called: its id, a hash of its config, and its name; and its config and overrides for any machine."""

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from omegaconf import OmegaConf

from data.augment.recipes import AugmentConfig
from plstm.config import Config
from plstm.limits import ID_DIGITS, check_limits
from plstm.models import MODELS
from plstm.runs.overrides import as_override, override_key
from plstm.tasks import TASKS

# Keys that say where a run lives, how fast it is and how it is shown; no record has them.
OF_MACHINE = (
    "logger",
    "mesh",
    "paths",
    "model.remat",
    "data.root",
    "data.path",
    "data.teacher_file",
    "data.generate",
    "data.workers",
    "data.max_corrupt",
    "data.download",
)
# No part of a run's id: they change no weight, but for the rounding of model.method; loop.log_every changes the points
# of the recorded training curve, loop.save_every which checkpoints there are.
OUTSIDE_ID = (*OF_MACHINE, "loop.log_every", "loop.save_every", "model.method")
NAMES = ("experiment", "variant")  # neither are these


# ---------------------------------------------------------------------- configs
def plain_config(config: Config) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.structured(config), resolve=True)


def portable_config(config: Config) -> dict[str, Any]:
    """The config as nested dictionaries without the keys of `OF_MACHINE`: enough to repeat the run elsewhere."""
    plain = plain_config(config)
    for key in OF_MACHINE:
        drop(plain, key)
    return plain


def drop(plain: dict[str, Any], key: str) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        plain = plain.get(parent) or {}
    plain.pop(leaf, None)


# ---------------------------------------------------------------------- ids
def identity(plain: dict[str, Any]) -> dict[str, Any]:
    """The part of a plain config that a run's id is a hash of: task, family, whether it augments, and the values that
    differ from the schema's defaults, except those of `OUTSIDE_ID` and `NAMES`."""
    # So a new key changes no id as long as its default does what the code did before.
    task = plain["task"]
    family = plain["model"]["family"]
    always = {"task": task, "family": family, "augmented": plain["augment"] is not None}
    different = _differences(plain, _defaults(task, family))
    for key in (*OUTSIDE_ID, *NAMES):
        drop(different, key)
    return always | {key: value for key, value in different.items() if value != {}}


@functools.cache
def _defaults(task: str, family: str) -> dict[str, Any]:
    defaults = plain_config(Config(model=MODELS[family].config(), data=TASKS[task].data_schema()))
    return defaults | {"augment": asdict(AugmentConfig())}


def _differences(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Nested keys whose values differ; groups in which none does, and empty texts, are left out."""
    inner = {key: _differences(value, defaults[key]) for key, value in values.items() if isinstance(value, dict)}
    found = {key: inner.get(key, value) for key, value in values.items() if value != defaults[key]}
    return {key: value for key, value in found.items() if value not in ({}, "")}


def plain_id(plain: dict[str, Any]) -> str:
    """12 hexadecimal digits that name the run of a plain config: a hash of its `identity`."""
    return hashlib.sha256(json.dumps(identity(plain), sort_keys=True).encode()).hexdigest()[:ID_DIGITS]


def run_id(config: Config) -> str:
    return plain_id(plain_config(config))


# ---------------------------------------------------------------------- names
def run_name(config: Config) -> str:
    """A name to read, such as arrow-plstm-d_mode-s43, or graphs-gin-MUTAG-f0-s43."""
    variants = variant_names(config)
    parts = TASKS[config.task].name_parts(config)
    return "-".join([config.experiment.replace("/", "-"), *variants, *parts, f"s{config.seed}"])


def variant_names(config: Config) -> list[str]:
    return config.variant.split(",") if config.variant else []


def named(config: Config, overrides: Sequence[str]) -> Config:
    """The config with the experiment and variant that overrides choose: variant=[balanced,d_mode] is the variant
    balanced,d_mode. Raises UserError for names that a run's files cannot have."""
    chosen = dict(word.lstrip("+").split("=", 1) for word in overrides if "=" in word)
    names = {key: re.sub(r"[\[\]\"' ]", "", chosen[key]) for key in NAMES if key in chosen}
    config = replace(config, **{key: name for key, name in names.items() if name not in ("", "null")})
    check_limits(config)
    return config


def is_among(key: str, keys: Sequence[str]) -> bool:
    """Whether a dotted key is one of these, or one of a group of these."""
    return f"{key}.".startswith(tuple(f"{other}." for other in keys))


def portable_overrides(overrides: Sequence[str], init_from: str | None = None) -> list[str]:
    """The overrides for any machine: without keys of `OF_MACHINE`, the run to fine-tune by its id, `init_from`."""
    kept = [word for word in overrides if not is_among(override_key(word), OF_MACHINE)]
    start = as_override("init_from", init_from)
    return [start if override_key(word) == "init_from" else word for word in kept]
