"""The words of a command line, checked before Hydra composes them: keys with the nearest one, choices of groups."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from plstm.config import Config
from plstm.errors import UserError
from plstm.models import MODELS
from plstm.tasks import TASKS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
HYDRA = re.compile(r"hydra/\w+|hydra\.mode|hydra\.(launcher|sweeper)\.[\w.]+")  # of its keys, what may be set
HIDDEN = ("hydra", "local", "study")  # folders of configs/ of which no key=value chooses
FEW = 20  # choices that an error lists
PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$)[a-z_/][\w/.+-]*", re.ASCII | re.IGNORECASE)  # needs no quotes


def parse_overrides(words: Sequence[str], schema: type = Config) -> list[Override]:
    """Parses `key=value` words for a schema, `Config` or `EvalConfig`. Raises UserError for the first bad one."""
    overrides = []
    for word in words:
        shown = word[:200]
        if "_target_" in word:
            raise UserError(f"{shown}: _target_ names code that would run; leave it out")
        if "=" not in word and not word.startswith("~"):
            key = _likely_key(word, schema)
            raise UserError(f"{shown}: write key=value{f'; did you mean {key}={shown}?' if key else ''}")
        try:
            (override,) = OverridesParser.create().parse_overrides([word])
        except HydraException as error:
            why = " ".join(str(error).split())[:120]
            hint = "quote a value with special characters twice, 'key=\"value\"'; write $HOME for ~"
            raise UserError(f"{shown}: cannot be read ({why}); {hint}") from error
        key = override.key_or_group
        if re.match(r"hydra\b", key):
            if not HYDRA.fullmatch(key):
                known = "hydra/<group>, hydra.mode, hydra.launcher.<key> and hydra.sweeper.<key>"
                raise UserError(f"{shown}: of Hydra's own keys, only {known} can be set; leave it out")
        else:
            if override.is_delete():
                raise UserError(f"{shown}: keys cannot be removed; set {key} to the value that it should have")
            _check_key(override, schema)
        if key in groups() and any(key == other.key_or_group for other in overrides):
            both = "; both: variant=[<one>,<other>]" if key == "variant" else ""
            raise UserError(f"{shown}: {key} is chosen twice; leave one out{both}")
        overrides.append(override)
    return overrides


def _likely_key(word: str, schema: type) -> str:
    """Which key a word without one is likely to be the value of; empty if none is."""
    if schema is Config:
        return "experiment" if word in choices("experiment") else ""
    if word.endswith(".safetensors"):
        return "weights"
    return "run" if re.fullmatch(r"[0-9a-f]{2,12}", word) or Path(word, ".hydra").is_dir() else ""


def as_override(key: str, value: Any) -> str:
    """The word that sets a key to a value, whatever characters a text has, such as model.modes=[P,D]."""
    if isinstance(value, list):
        return f"{key}=[{','.join(map(_quoted, value))}]"
    return f"{key}={_quoted(value)}"


def _quoted(value: Any) -> str:
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    if PLAIN.fullmatch(value):
        return value
    # Hydra reads a backslash as such unless a quotation mark follows, which ends the text without one.
    return '"' + re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + ("\\" + found[2] if found[2] else ""), value) + '"'


def _check_key(override: Override, schema: type) -> None:
    key = override.key_or_group
    known = known_keys(schema)
    own_groups = groups() if schema is Config else []
    value = override.value()
    if key in own_groups:
        _check_choice(override)
    elif key == "study" and schema is Config:
        raise UserError(f"{override.input_line}: a study is many runs; python scripts/run_table.py <study> trains them")
    elif key not in known:
        group, _, rest = key.partition("/")
        if rest and group in own_groups:
            raise UserError(f"{key[:200]}: choose by {group}={rest[:200]}/<name>")
        raise UserError(f"{key[:200]}: there is no such key{did_you_mean(key, [*known, *own_groups])}")
    elif any(name.startswith(f"{key}.") for name in known) and value is not None and not isinstance(value, dict):
        raise UserError(f"{key}: is a group of keys and cannot be a value; set its keys, {key}.<key>=...")


def _check_choice(override: Override) -> None:
    group = override.key_or_group
    known = choices(group)
    values = ",".join(word.partition("=")[2] for word in each_word(override))
    for name in re.findall(r"[^\s,\[\]\"']+", values) or [""]:  # [balanced,d_mode] has two
        if name not in known:
            below = [choice for choice in known if choice.startswith(f"{name}/")] or known
            listed = f"there are {', '.join(below)}" if len(below) <= FEW else f"they are the files of configs/{group}"
            close = did_you_mean(name, known)
            raise UserError(f"{group}={name[:200]}: there is no such choice{close} ({listed})")


def each_word(override: Override) -> list[str]:
    """The words, key=value, that an override stands for: one, or one for each run of a sweep."""
    if not override.is_sweep_override():
        return [override.input_line]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: write the values, separated by commas")
    try:
        values = list(override.sweep_string_iterator())
    except ValueError as error:  # such as a step of 0
        raise UserError(f"{override.input_line}: {error}") from error
    if not values:
        raise UserError(f"{override.input_line}: has no value")
    return [f"{override.get_key_element()}={value}" for value in values]


def override_key(word: str) -> str:
    """The dotted key that a word such as +data.name=MUTAG sets."""
    return word.lstrip("+").partition("=")[0]


@cache
def groups() -> list[str]:
    """The folders of configs/ that a command chooses from, such as experiment and variant."""
    return sorted(path.name for path in CONFIGS.iterdir() if path.is_dir() and path.name not in HIDDEN)


def choices(group: str) -> list[str]:
    """The names that a group of configs/ can have, such as arrow/plstm for `experiment`."""
    return sorted(str(path.relative_to(CONFIGS / group).with_suffix("")) for path in (CONFIGS / group).rglob("*.yaml"))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A hint at the choice that is most like a word, empty if none is. The last part of a dotted key counts most."""
    leaf = word.rpartition(".")[2]

    def likeness(choice: str) -> float:
        other = choice.rpartition(".")[2]
        whole = _ratio(word, choice) if ("." in word) == ("." in choice) else 0.0
        return max(whole, _ratio(leaf, other)) + (leaf in other.split("_"))

    best = max(known, key=likeness, default="")
    return f"; did you mean {best}?" if best and likeness(best) > 0.7 else ""


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one[:100], other).ratio()


@cache
def known_keys(schema: type) -> list[str]:
    """The dotted keys of a schema; those of a training run are of all tasks and families of models."""
    keys = [*_keys(schema)]
    if schema is Config:
        keys += [key for task in TASKS.values() for key in _keys(task.data_schema, "data.")]
        keys += [key for family in MODELS.values() for key in _keys(family.config, "model.")]
    return list(dict.fromkeys(keys))


def _keys(schema: type, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(schema).items():
        yield f"{prefix}{name}"
        for member in (hint, *get_args(hint)):  # of `AugmentConfig | None`
            if is_dataclass(member):
                yield from _keys(member, f"{prefix}{name}.")


def check_machine_keys(overrides: Sequence[str], config: Config) -> None:
    """Raises UserError where the command line sets what has no effect on this run; a machine's settings may."""
    typed = {override_key(override) for override in overrides}
    for key in TASKS[config.task].unused_keys:
        if f"data.{key}" in typed:
            raise UserError(f"data.{key}: task {config.task} has no use for it; leave it out")
