"""A run's config: its checks, and its way from Hydra and from files."""

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from plstm.config import Config, EvalConfig, PathsConfig
from plstm.errors import UserError, first_line, require
from plstm.limits import check_limits
from plstm.models import MODELS
from plstm.runs import small
from plstm.runs.identity import named
from plstm.runs.overrides import CONFIGS, did_you_mean
from plstm.tasks import TASKS

MOST_BYTES = 1_000_000  # of a run's config, of which a folder's class names can take most; others have 3,000
MOST_DEPTH = 20


# ---------------------------------------------------------------------- checks
def check(config: Config) -> None:
    """Raises UserError naming the key where values are out of range or do not fit together."""
    for key in ("model", "data"):
        if not is_dataclass(getattr(config, key)):
            raise UserError(f"{key}: choose one, {key}=...; see configs/{key}")
    check_limits(config.data, "data.")  # first, as keys of the model follow some of them
    check_limits(config)
    _check_joined_keys(config)
    _check_splits(config)
    _check_inputs(config.task, config.model.family)
    config.model.check()
    if config.augment is not None:
        config.augment.check()
    TASKS[config.task].check(config)


def _check_inputs(task: str, family: str) -> None:
    takes = MODELS[family].inputs
    gives = TASKS[task].inputs
    if takes != gives:
        raise UserError(f"model: family {family} takes {takes}, and data=... gives {gives}; choose another model=...")


def _check_joined_keys(config: Config) -> None:
    task = TASKS[config.task]
    loop = config.loop
    fits = loop.save_every is None or loop.save_every % loop.eval_every == 0
    smooths = task.smooths or config.optim.label_smoothing == 0
    fine_tunes = config.init_from is not None
    may_be_best = fine_tunes or config.init_checkpoint == "last"
    require(
        config,
        ("optim.loss", config.optim.loss in task.losses, f"choose one of {', '.join(task.losses)}"),
        ("optim.label_smoothing", smooths, "this task has none; leave it at 0"),
        ("optim.warmup_epochs", config.optim.warmup_epochs < config.optim.epochs, "must be under optim.epochs"),
        ("loop.save_every", fits, f"must be a multiple of loop.eval_every={loop.eval_every}, or null"),
        ("init_checkpoint", may_be_best, "says which weights of init_from, which is not set"),
        ("init_new", fine_tunes or not config.init_new, "draws parameters beside those of init_from, which is not set"),
    )
    if config.augment is not None and not task.augments:
        raise UserError(f"augment: task {config.task} takes its training examples as they are; leave it out")


def _check_splits(config: Config) -> None:
    # Not "train", under which the averages of the training steps are logged.
    loop = config.loop
    known = [split for split in TASKS[config.task].splits if split != "train"]
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
def register() -> None:
    """Makes the schemas known to Hydra; needed before a config is composed."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=Config)
    store.store(name="eval_schema", node=EvalConfig)
    for name, task in TASKS.items():  # the defaults lists of configs/data and configs/model begin with these
        store.store(group="schema/data", name=name, node=task.data_schema)
    for name, family in MODELS.items():
        store.store(group="schema/model", name=name, node=family.config)
    for name, node in small.DATA.items():  # what configs/train.yaml adds to debug=smoke
        store.store(group="schema/small/data", name=f"smoke_{name}", node=node, package="_global_")
    for name, node in small.MODELS.items():
        store.store(group="schema/small/model", name=f"smoke_{name}", node={"model": node}, package="_global_")


def in_clone(folder: str) -> str:
    """A relative folder lies in the clone, wherever a command is typed."""
    return folder if Path.cwd() == CONFIGS.parent else str(CONFIGS.parent / folder)


OmegaConf.register_new_resolver("in_clone", in_clone, replace=True)  # of configs/; here, so that Slurm's jobs have it


def compose_config(name: str, overrides: Sequence[str], with_hydra: bool = False) -> DictConfig:
    """What Hydra makes of configs/<name>.yaml and overrides, its own node included if asked for. Raises UserError."""
    register()
    try:
        with contextlib.ExitStack() as stack:
            if not GlobalHydra.instance().is_initialized():
                stack.enter_context(initialize_config_dir(str(CONFIGS), version_base="1.3"))
            return compose(name, list(overrides), return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise UserError(explain(error)) from error
    except (AssertionError, AttributeError, TypeError, ValueError) as error:  # Hydra did not foresee this input
        shown = " ".join(overrides)[:200]
        null = next((word for word in overrides if word.startswith("augment.") and "NoneType" in str(error)), None)
        if null:
            raise UserError(f"{null[:200]}: there is no augmentation to change; choose one, augment=...") from error
        raise UserError(f"{shown}: cannot be composed ({_one_line(error)})") from error


def compose_experiment(experiment: str, *overrides: str) -> Config:
    """The checked config of `python train.py experiment=...`; a run to fine-tune need not exist. Raises
    UserError where it cannot be composed."""
    words = [f"experiment={experiment}", "init_from=null", "init_new=[]", *overrides]
    return named(to_config(compose_config("train", words)), words)


def explain(error: Exception) -> str:
    """One line on what Hydra or OmegaConf found wrong with a config."""
    causes: list[BaseException] = [error]
    while earlier := causes[-1].__cause__ or (None if causes[-1].__suppress_context__ else causes[-1].__context__):
        causes.append(earlier)
    for cause in reversed(causes):
        key = getattr(cause, "full_key", None)
        if key and isinstance(cause, ConfigAttributeError | ConfigKeyError):
            return _explain_unknown(key, getattr(cause, "object_type", None), str(error))
        if key:
            problem = first_line(cause)
            return f"{key}: {'must have a value, and not null' if problem.endswith('is not Optional') else problem}"
    if found := re.match(r"schema/(model|data)/", getattr(error, "missing_cfg_file", None) or ""):
        registry = {"model": "MODELS of plstm/models/registry.py", "data": "TASKS of plstm/tasks/__init__.py"}
        return f"{error.missing_cfg_file}: a file of configs/{found[1]} names it; add it to {registry[found[1]]}"
    if "submitit" in str(error):
        return "hydra/launcher: this one needs the Slurm plugin; install it: make setup EXTRA=slurm"
    return _one_line(error)


def _explain_unknown(key: str, schema: Any, message: str) -> str:
    """One line on a key that is not in `schema`, the dataclass of its group in this run; message: Hydra's, which begins
    with the config file that sets the key, if one does."""
    parent = key.rpartition(".")[0]
    names = [field.name for field in fields(schema)] if is_dataclass(schema) else []
    own = [f"{parent}.{name}".lstrip(".") for name in names if name != "_target_"]
    hint = did_you_mean(key, own)
    file = re.match(r"In '((\w+)/\S+)'", message)
    what = f"{file[1]} sets {key}" if file else key[:200]
    chosen = {"model": "model", "data": "data", "hydra.launcher": "hydra/launcher"}.get(parent)
    groups = dict.fromkeys(group for group in (chosen, file and file[2]) if group)
    if groups:
        hint += f"{' or' if hint else ';'} choose another {' or '.join(f'{group}=...' for group in groups)}"
    return f"{what}: no key of this run's {chosen or parent or 'config'}{hint}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]  # it may quote all that was typed


def schema(task: Any, family: Any) -> DictConfig:
    """The typed defaults of a task's runs with a family of models. Raises UserError where there is none of the name."""
    for key, name, known in (("task", task, TASKS), ("model.family", family, MODELS)):
        if not isinstance(name, str) or name not in known:
            raise UserError(f"{key}={name!r}: choose one of {', '.join(known)}; data=... and model=... set it")
    return OmegaConf.structured(Config(task=task, model=MODELS[family].config(), data=TASKS[task].data_schema()))


def to_config(node: DictConfig) -> Config:
    """The checked dataclasses of a composed Hydra config, or one read back; interpolations are resolved, and keys that
    follow from the data filled in."""
    task, family = (
        OmegaConf.select(node, key, default=usual) for key, usual in (("task", "arrow"), ("model.family", "vision"))
    )
    if task in TASKS and family in MODELS:
        _check_inputs(task, family)  # first, as the other model's keys may refer to keys of other data
    try:
        config = OmegaConf.to_object(OmegaConf.merge(schema(task, family), _resolved(_with_data(node, task))))
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    check(config)
    config.paths = PathsConfig(in_clone(config.paths.runs), in_clone(config.paths.results))
    return config


def _with_data(node: DictConfig, task: str) -> DictConfig:
    """A config with the keys of `data` that the task reads from its data, where they are missing or, in a record from
    before there was such a key, absent."""
    data = OmegaConf.select(node, "data")
    if task not in TASKS or not isinstance(data, DictConfig):
        return node
    keys = (field.name for field in fields(TASKS[task].data_schema) if field.default is MISSING)
    missing = {key for key in keys if key not in data or OmegaConf.is_missing(data, key)}
    inferred = TASKS[task].infer_data(data) if missing else {}
    return OmegaConf.merge(node, {"data": {key: value for key, value in inferred.items() if key in missing}})


def read_yaml(path: Path) -> Any:
    """What a YAML file of anybody's holds. Raises OSError, and UserError where it is no YAML, larger or deeper than a
    config, or has an alias, a few of which could stand for gigabytes."""
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    depth = 0
    try:
        for event in yaml.parse(content):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if len(content) > MOST_BYTES or depth > MOST_DEPTH or isinstance(event, yaml.AliasEvent):
                raise UserError(f"over {MOST_BYTES:,} bytes, nested over {MOST_DEPTH} deep, or with an alias (*)")
        return OmegaConf.to_container(OmegaConf.load(io.BytesIO(content)))
    except (OSError, ValueError, TypeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(_one_line(error)) from error


def from_file(plain: Any) -> Config:
    """The checked config of a run that was read from a file, which may be anybody's, without where its data lie.
    Raises UserError where it has an interpolation or a missing value, which could read this machine; a run's own file
    has none."""
    if found := re.search(r"\$\{[^}]*}?|'\?\?\?'", str(plain)):
        raise UserError(f"{found[0]} would be filled in from this machine; write the value itself")
    if isinstance(plain, dict) and isinstance(plain.get("data"), dict):
        plain = plain | {"data": {key: value for key, value in plain["data"].items() if key not in ("root", "path")}}
    return to_config(OmegaConf.create(plain))


def to_eval_config(node: DictConfig) -> EvalConfig:
    """The checked dataclass of what `eval.py` is given. Raises UserError naming the key."""
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(EvalConfig), _resolved(node)))
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    check_limits(config)
    config.paths = PathsConfig(in_clone(config.paths.runs), in_clone(config.paths.results))
    return config


def _resolved(node: DictConfig) -> dict[str, Any]:
    """A node's values with interpolations filled in, so that the schema's types hold for these, too."""
    if missing := sorted(OmegaConf.missing_keys(node)):
        raise UserError(f"{missing[0]}: give a value, {missing[0]}=...")
    return OmegaConf.to_container(node, resolve=True)
