"""What a run is called: its id, a hash of its config, and its name; and its config for any machine."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from omegaconf import OmegaConf

from data.augment.recipes import AugmentConfig
from plstm.config import Config
from plstm.tasks import TASKS

# Keys that change where a run lives, how fast it is and how it is shown, but not its numbers: no part of its id.
OUTSIDE_ID = (
    "logger",
    "mesh",
    "paths",
    "model.remat",
    "data.root",
    "data.generate",
    "data.placement",
    "data.workers",
    "data.max_corrupt",
    "data.download",
)


def plain_config(config: Config) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.structured(config), resolve=True)


def portable_config(config: Config) -> dict[str, Any]:
    """The config as nested dictionaries without the keys of `OUTSIDE_ID`: enough to repeat the run elsewhere."""
    plain = plain_config(config)
    for key in OUTSIDE_ID:
        drop(plain, key)
    return plain


def drop(plain: dict[str, Any], key: str) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        plain = plain.get(parent) or {}
    plain.pop(leaf, None)


def identity(config: Config) -> dict[str, Any]:
    """What the run's id is a hash of: the portable config's values that differ from the schema's defaults."""
    # So a new key changes no id as long as its default does what the code did before.
    defaults = plain_config(Config(model=type(config.model)(), data=type(config.data)()))
    defaults["augment"] = asdict(AugmentConfig())
    always = {"task": config.task, "family": config.model.family, "augmented": config.augment is not None}
    return always | _differences(portable_config(config), defaults)


def _differences(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Nested keys whose values differ; groups in which none does are left out."""
    inner = {key: _differences(value, defaults[key]) for key, value in values.items() if isinstance(value, dict)}
    found = {key: inner.get(key, value) for key, value in values.items() if value != defaults[key]}
    return {key: value for key, value in found.items() if value != {}}


def run_id(config: Config) -> str:
    """12 hexadecimal digits that name a run: a hash of its `identity`."""
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:12]


def portable_overrides(overrides: list[str], init_from: str | None = None) -> list[str]:
    """The overrides for any machine: without keys of `OUTSIDE_ID`, the run to fine-tune by its id, `init_from`."""
    kept = [override for override in overrides if not override.lstrip("+").startswith(OUTSIDE_ID)]
    start = f'init_from="{init_from}"'  # quoted, as Hydra takes some ids for numbers
    return [start if override.lstrip("+").startswith("init_from=") else override for override in kept]


def run_name(config: Config) -> str:
    """A name to read, such as arrow-plstm-s43, or graphs-gin-MUTAG-f0-s43."""
    return "-".join([config.experiment.replace("/", "-"), *TASKS[config.task].name_parts(config), f"s{config.seed}"])
