"""The configs of a study's runs without running them: Hydra composes an experiment once, the rest is set on the result.

So the ids of a thousand runs take a second, where Hydra would take minutes.
"""

import copy
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple, get_args, get_type_hints

from flax.traverse_util import flatten_dict
from omegaconf import OmegaConf

from plstm.errors import UserError
from plstm.runs.compose import compose_config, to_config
from plstm.runs.identity import plain_config
from plstm.runs.overrides import CONFIGS, choices
from plstm.studies.records import value_at
from plstm.tasks import TASKS

REFERENCE = re.compile(r"\$\{([\w.]+)\}")


class Composed(NamedTuple):
    plain: dict[str, Any]  # the config as nested dictionaries, resolved
    references: dict[str, str]  # dotted keys that take the value of another key unless they are set
    inferred: list[str]  # keys of data that follow from the others unless they are set
    floats: frozenset[str]  # keys that turn an int into a float


def planned_config(
    experiment: str, variant: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The plain config of `python train.py experiment=... variant=[...] key=value ...`; settings: values by dotted key
    or, for a group such as model, by its name. Raises UserError where there is no such experiment, variant or key."""
    values = {key: value for name in variant for key, value in variant_values(name).items()} | dict(settings or {})
    groups = {key: value for key, value in values.items() if (CONFIGS / key).is_dir()}
    composed = compose_once(experiment, tuple(f"{group}={name}" for group, name in groups.items()))
    plain = copy.deepcopy(composed.plain)
    values = {key: value for key, value in values.items() if key not in groups}
    for key, value in values.items():
        turned = float(value) if key in composed.floats and isinstance(value, int) else value
        _set(plain, key, turned, f"experiment={experiment} {key}={value}")
    if composed.inferred and any(key.startswith("data.") for key in values):
        facts = TASKS[plain["task"]].infer_data(OmegaConf.create(plain["data"]))
        for key in (key for key in composed.inferred if f"data.{key}" not in values):
            _set(plain, f"data.{key}", facts[key], f"data.{key}")
    for key, source in composed.references.items():
        if key not in values:
            _set(plain, key, value_at(plain, source), key)
    return plain


@functools.cache
def compose_once(experiment: str, groups: tuple[str, ...] = ()) -> Composed:
    """What Hydra makes of an experiment and choices such as model=code/gdn. Raises UserError where there is none."""
    node = compose_config("train", [f"experiment={experiment}", *groups])
    written = flatten_dict(OmegaConf.to_container(node), sep=".")
    references = {key: found[1] for key, value in written.items() if (found := REFERENCE.fullmatch(str(value)))}
    inferred = [key.removeprefix("data.") for key, value in written.items() if value == "???"]
    config = to_config(node)
    return Composed(plain_config(config), references, inferred, frozenset(_floats(config)))


def _floats(config: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if is_dataclass(value):
            yield from _floats(value, f"{prefix}{name}.")
        elif float in (hint, *get_args(hint)):
            yield f"{prefix}{name}"


@functools.cache
def variant_values(name: str) -> dict[str, Any]:
    """The values of configs/variant/<name>.yaml by dotted key; a variant has keys alone, no defaults list."""
    if name not in choices("variant"):
        raise UserError(f"variant={name}: there is no such choice; there are {', '.join(choices('variant'))}")
    return flatten_dict(OmegaConf.to_container(OmegaConf.load(CONFIGS / "variant" / f"{name}.yaml")), sep=".")


def _set(plain: dict[str, Any], key: str, value: Any, what: str) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        plain = plain.get(parent) or {}
    if leaf not in plain:
        raise UserError(f"{what}: there is no such key in its config")
    plain[leaf] = value
