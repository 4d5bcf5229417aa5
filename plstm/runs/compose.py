"""A run's config: its checks, and its way from Hydra and from files."""

import copy
import functools
import re
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from plstm.config import MODES, Config, EvalConfig
from plstm.errors import UserError
from plstm.models import MODELS
from plstm.runs.identity import OUTSIDE_ID, drop
from plstm.tasks import TASKS

FLOAT32_MIN, FLOAT32_MAX = 1e-37, 1e38  # magnitudes, a little rounded
NAME = r"(?=.{1,64}$)[\w.+-]+(/[\w.+-]+)*"


# ---------------------------------------------------------------------- checks
def check(config: Config) -> None:
    """Raises UserError naming the key where values are out of range or do not fit together."""
    for key in ("model", "data"):
        if not is_dataclass(getattr(config, key)):
            raise UserError(f"{key}: choose one, {key}=...; see configs/{key}")
    _check_values(config)
    _check_keys(config)
    _check_splits(config)
    _check_inputs(config.task, config.model.family)
    config.model.check()
    if config.augment is not None:
        config.augment.check()
    TASKS[config.task].check(config)


def _check_inputs(task: str, family: str) -> None:
    reads, gives = MODELS[family].inputs, TASKS[task].inputs
    if reads != gives:
        raise UserError(f"model: family {family} takes {reads}, and data=... gives {gives}; choose another model=...")


def _check_values(config: Any) -> None:
    """Refuses what no key can be: a number that 32 bits do not hold, text that cannot be printed on one line, or a path
    whose ~ would not be expanded."""
    for key, value in _leaves(asdict(config)):
        if isinstance(value, float) and not (value == 0 or FLOAT32_MIN <= abs(value) <= FLOAT32_MAX):
            raise UserError(f"{key}={value}: must be a number that float32 holds, 0 or from 1e-37 to 1e38")
        if isinstance(value, int) and abs(value) >= 2**31:
            raise UserError(f"{key}={value}: must be under 2^31")
        if isinstance(value, str) and not value.isprintable():
            raise UserError(f"{key}={value!r}: must be printable text of one line")
        if key.startswith("paths.") and value.startswith("~"):
            raise UserError(f"{key}={value}: give a path without ~, which is not expanded")


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value; entries of a list have the list's key."""
    if isinstance(node, dict):
        for name, child in node.items():
            yield from _leaves(child, f"{key}.{name}" if key else name)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _leaves(child, key)
    else:
        yield key, node


def _check_keys(config: Config) -> None:
    task = TASKS[config.task]
    ranges = (
        (
            "at least 1",
            lambda n: n >= 1,
            "optim.batch_size loop.log_every loop.eval_every mesh.fsdp data.train_images data.size",
        ),
        ("positive", lambda value: value > 0, "optim.epochs optim.peak_lr optim.eps optim.clip_norm mesh.timeout"),
        ("at least 0", lambda value: value >= 0, "seed optim.warmup_epochs optim.weight_decay data.fold_seed"),
        ("from 0 to 1024", lambda value: 0 <= value <= 1024, "data.workers"),
        ("in [0, 1)", lambda value: 0 <= value < 1, "optim.b1 optim.b2 optim.label_smoothing"),
        ("in [0, 1]", lambda value: 0 <= value <= 1, "optim.end_factor data.max_corrupt loop.stop_at"),
        ("given, or left out", lambda value: value != "", "paths.runs paths.results data.root"),
        # W&B's tags have at most 64 letters; file names and links have it, too.
        ("a name such as arrow/plstm, of at most 64 letters", re.compile(NAME).fullmatch, "experiment"),
    )
    choices = {
        "optim.name": ("adamw", "lamb"),
        "optim.loss": task.losses,
        "optim.schedule_per": ("step", "epoch"),
        "loop.unit": ("steps", "epochs"),
        "loop.best_tie": ("latest", "earliest"),
        "init_checkpoint": ("last", "best"),
        "logger.mode": MODES,
        "data.placement": ("device", "stream"),
    }
    rules = [(key, f"must be {words}", is_good) for words, is_good, keys in ranges for key in keys.split()]
    rules += [(key, f"choose one of {', '.join(known)}", known.__contains__) for key, known in choices.items()]
    for key, words, is_good in rules:
        value = functools.reduce(lambda node, part: getattr(node, part, None), key.split("."), config)
        if value is not None and not is_good(value):
            raise UserError(f"{key}={value}: {words}")
    every, save_every = config.loop.eval_every, config.loop.save_every
    if save_every is not None and (save_every < 1 or save_every % every):
        raise UserError(f"loop.save_every={save_every}: must be a multiple of loop.eval_every={every}, or null")
    if config.optim.warmup_epochs >= config.optim.epochs:
        raise UserError(f"optim.warmup_epochs={config.optim.warmup_epochs}: must be under optim.epochs")
    if config.augment is not None and not task.augments:
        raise UserError(f"augment: task {config.task} takes its training examples as they are; leave it out")
    if config.init_checkpoint != "last" and config.init_from is None:
        raise UserError(f"init_checkpoint={config.init_checkpoint}: says which weights of init_from, which is not set")


def _check_splits(config: Config) -> None:
    # Not "train", under which the averages of the training steps are logged.
    loop, known = config.loop, [split for split in TASKS[config.task].splits if split != "train"]
    for key, splits in (("loop.eval_splits", loop.eval_splits), ("loop.final_splits", loop.final_splits)):
        if not splits:
            raise UserError(f"{key}: name at least one split of {', '.join(known)}")
        for split in splits:
            if split not in known:
                raise UserError(f"{key}: no split {split!r}; choose from {', '.join(known)}")
            if splits.count(split) > 1:
                raise UserError(f"{key}: {split} is named twice")
        if loop.best_split not in (None, *splits):
            raise UserError(f"loop.best_split={loop.best_split}: must be one of {key}, {', '.join(splits)}")


# ---------------------------------------------------------------------- from Hydra and from files
def schema(task: Any = "arrow", family: Any = "vision") -> DictConfig:
    """The typed defaults of a task's runs with a family of models. Raises UserError where there is none of the name."""
    for key, name, known in (("task", task, TASKS), ("model.family", family, MODELS)):
        if not isinstance(name, str) or name not in known:
            raise UserError(f"{key}={name!r}: choose one of {', '.join(known)}; data=... and model=... set it")
    return OmegaConf.structured(Config(task=task, model=MODELS[family].config(), data=TASKS[task].data_schema()))


def from_plain(plain: dict[str, Any]) -> Config:
    """The unchecked dataclasses of nested dictionaries, defaults filled in; OmegaConf's error for an unknown key."""
    model = plain.get("model")
    family = model.get("family", "vision") if isinstance(model, dict) else "vision"
    return OmegaConf.to_object(OmegaConf.merge(schema(plain.get("task", "arrow"), family), plain))


def to_config(node: DictConfig) -> Config:
    """The checked dataclasses of a composed Hydra config, or one read back; interpolations resolved."""
    task, family = (OmegaConf.select(node, key) for key in ("task", "model.family"))
    if task in TASKS and family in MODELS:
        _check_inputs(task, family)  # first, as the other model's keys may refer to keys of other data
    config = from_plain(_resolved(node))
    check(config)
    return config


def from_file(plain: dict[str, Any]) -> Config:
    """The checked config of a run that was read from a file, which may be anybody's.

    Only references to other keys, such as ${data.size}, are filled in. A resolver such as ${oc.env:NAME} would read
    this machine: a key of `OUTSIDE_ID` that has one is left out, any other raises UserError.
    """
    kept = copy.deepcopy(plain)
    for key, value in list(_leaves(kept)):
        if "${" not in re.sub(r"\$\{[\w.]+\}", "", str(value)):
            continue
        if not f"{key}.".startswith(tuple(f"{outside}." for outside in OUTSIDE_ID)):
            raise UserError(f"{key}: {value!r} would be filled in from this machine; write the value itself")
        drop(kept, key)
    return to_config(OmegaConf.create(kept))


def to_eval_config(node: DictConfig) -> EvalConfig:
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(EvalConfig), _resolved(node)))
    _check_values(config)
    return config


def _resolved(node: DictConfig) -> dict[str, Any]:
    """A node's values with interpolations filled in, so that the schema's types hold for these, too."""
    if missing := sorted(OmegaConf.missing_keys(node)):
        raise UserError(f"{missing[0]}: give a value, {missing[0]}=...")
    return OmegaConf.to_container(node, resolve=True)
