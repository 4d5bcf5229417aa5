"""The command line of train.py and eval.py: Hydra with the typed schema, and one-line errors with the nearest key."""

import contextlib
import difflib
import errno
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import jax
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from plstm.config import Config, EvalConfig
from plstm.errors import DownloadError, UserError, first_line, lasting_output, printable
from plstm.models import MODELS
from plstm.runs import small
from plstm.runs.compose import schema, to_config, to_eval_config
from plstm.tasks import TASKS
from plstm.training.environment import keep_programs

EXIT_BAD_INPUT = 2
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)  # for `explain`
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
LOCAL = CONFIGS / "local" / "default.yaml"
GLOBAL = re.compile(r"\s*#\s*@package\s+_global_\s*$", re.MULTILINE)  # without it Hydra puts the keys under `local`
LOCAL_KEYS = ("paths.", "logger.", "data.root.", "data.workers.")  # what that file may have


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


@contextlib.contextmanager
def one_line_errors(entry: type) -> Iterator[None]:
    """Around what Hydra runs with schema `entry`: bad input or an unwritable file ends it, one line and status 2."""
    keep_programs()
    try:
        yield
    except JobFailed:
        _fail(f"{len(JobFailed.all)} jobs of this sweep failed, each with a line above")
    except UserError as error:
        _fail(str(error), ends_sweep=isinstance(error, DownloadError))
    except CONFIG_ERRORS as error:
        _fail(explain(error, entry))
    except OSError as error:
        if not error.filename and error.errno != errno.ENOSPC:
            raise
        _fail(f"{error.filename or 'a file'}: {error.strerror}")
    except (AssertionError, RuntimeError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.endswith("xla_bridge.py"):  # where JAX looks for devices
            raise
        _fail(f"JAX_PLATFORMS={jax.config.jax_platforms}: JAX finds no such devices ({first_line(error)})")


def run_entry(main: Callable[[], Any], entry: type) -> None:
    """Runs a Hydra main function; a config that cannot be composed ends it with one line and exit status 2."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra would print its own words and exit
    with lasting_output("the program continues without it"), one_line_errors(entry):
        if any(word.startswith("--experimental-rerun") for word in sys.argv[1:]):
            raise UserError("--experimental-rerun: reads a pickle, which can run anything; repeat the command instead")
        local_settings()
        check = to_config if entry is Config else to_eval_config
        Sweeper.validate_batch_is_legal = lambda sweeper, batch: _check_jobs(sweeper, batch, check)
        for word in sys.argv[1:]:
            if word.startswith("--experiment=") or os.path.isfile(CONFIGS / "experiment" / f"{word}.yaml"):
                raise UserError(f"{word}: an experiment is named so: experiment={word.removeprefix('--experiment=')}")
        words = [quote_ids(word) for word in sys.argv[1:]]
        sys.argv[1:] = sorted(words, key=lambda word: word not in ("-m", "--multirun"))  # or Hydra would not read on
        check_overrides([word for word in sys.argv[1:] if "=" in word or word.startswith("~")])
        try:
            main()
        except (AssertionError, AttributeError, TypeError, ValueError) as error:
            if inspect.unwrap(main).__code__ in [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]:
                raise  # by a run, and not by Hydra before it
            raise UserError(uncomposable(error, sys.argv[1:])) from error


def uncomposable(error: Exception, words: list[str]) -> str:
    changed = [word for word in words if word.lstrip("+").startswith("augment.")]
    if changed and "NoneType" in str(error):
        return f"{changed[0][:200]}: there is no augmentation to change; choose one{_listed('augment')}"
    return f"{' '.join(words)[:200]}: cannot be composed ({_one_line(error)})"


def quote_ids(word: str) -> str:
    """An override of `run` or `init_from` with quotes around ids that Hydra would take for numbers, such as 12e456."""
    if not word.startswith(("run=", "init_from=")):
        return word
    return re.sub(r"(?<=[=,])\d+e\d+(?=,|$)", r'"\g<0>"', word)


def local_settings(path: Path = LOCAL) -> DictConfig:
    """A machine's own settings; UserError if they change what is computed: git does not see that file."""
    try:
        settings = OmegaConf.load(path) if path.is_file() else OmegaConf.create()
    except yaml.YAMLError as error:
        raise UserError(f"{path}: cannot be read ({_one_line(error)})") from error
    if not isinstance(settings, DictConfig):
        raise UserError(f"{path}: write keys and their values, such as paths: {{runs: /data/runs}}")
    if settings and not GLOBAL.match(path.read_text(encoding="utf-8")):
        raise UserError(f"{path}: must begin with the line # @package _global_")
    for key in _dotted_keys(settings):
        if not any(f"{key}.".startswith(known) or known.startswith(f"{key}.") for known in LOCAL_KEYS):
            raise UserError(f"{path}: {key} has no place there, only paths, logger, data.root and data.workers have")
        if key.startswith("paths.") and (folder := str(OmegaConf.select(settings, key))).startswith("~"):
            raise UserError(f"{path}: {key}={folder}: give a path without ~, which is not expanded")
    return settings


def check_overrides(overrides: list[str]) -> None:
    """Raises UserError for a word of the command line that Hydra would stumble over, or pass over in silence."""
    for word in overrides:
        if word.startswith("-"):
            continue
        try:
            (override,) = OverridesParser.create().parse_overrides([word])
        except HydraException as error:
            why = _one_line(error)[:120]
            hint = "quote a value with special characters twice, 'key=\"value\"'"
            raise UserError(f"{word[:200]}: cannot be read ({why}); {hint}") from error
        key, value = override.key_or_group, None if override.is_delete() else override.value()
        if override.is_delete() and not key.startswith("hydra"):
            raise UserError(f"{word}: nothing can be taken away; set {key} to the value that it should have")
        names = value if isinstance(value, list) else [] if value is None else [value]
        good = all(isinstance(name, str | Sweep) for name in names)
        if key and (CONFIGS / key).is_dir() and ("${" in word or not good):
            raise UserError(f"{word[:200]}: there is no such choice{_listed(key)}")


def check_machine_keys(overrides: list[str], config: Config) -> None:
    """Raises UserError where the command line sets what has no effect on this run; a machine's settings may."""
    typed = {override.lstrip("+").partition("=")[0] for override in overrides}
    for key in TASKS[config.task].unused_keys:
        if f"data.{key}" in typed:
            raise UserError(f"data.{key}: task {config.task} has no use for it; leave it out")
    if "data.workers" in typed and getattr(config.data, "placement", None) == "device":
        raise UserError("data.workers: no effect while the images lie on the device; add data.placement=stream")


def _choices(group: str) -> list[str]:
    return sorted(str(path.relative_to(CONFIGS / group))[:-5] for path in (CONFIGS / group).rglob("*.yaml"))


def _listed(group: str) -> str:
    names = _choices(group)
    few = f"there are {', '.join(names) or 'none'}"
    return f"; they are the files of configs/{group}" if len(names) > 20 else f"; {few}"


class JobFailed(UserError):
    """A job of a sweep failed. As Hydra notes an exception of a job, but not an exit, the next one starts."""

    all: ClassVar[list[str]] = []


def _check_jobs(sweeper: Any, batch: Sequence[Sequence[str]], check: Callable[[DictConfig], Any]) -> None:
    """Checks the configs of all jobs before the first starts; Hydra itself only composes them."""
    for words in batch:
        node = sweeper.hydra_context.config_loader.load_sweep_config(sweeper.config, list(words))
        with open_dict(node):
            del node["hydra"]
        try:
            check(node)
        except UserError as error:
            raise UserError(f"{' '.join(words)}: {error}; no job was started") from error


def _is_job() -> bool:
    """Whether this is a job of a sweep in this process."""
    if not HydraConfig.initialized():
        return False
    hydra = HydraConfig.get()
    return hydra.mode == RunMode.MULTIRUN and hydra.launcher._target_.endswith(".BasicLauncher")


def _fail(message: str, ends_sweep: bool = False) -> NoReturn:
    message = printable(message)  # which may quote what was typed
    if not jax.distributed.is_initialized():
        if _is_job() and not ends_sweep:
            job = printable(" ".join(HydraConfig.get().overrides.task))
            print(f"error: {job}: {message}", file=sys.stderr, flush=True)
            JobFailed.all.append(message)
            raise JobFailed(f"{job}: {message}")
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT)
    print(f"error: process {jax.process_index()}: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_BAD_INPUT)  # an orderly end would wait for the other processes, and they for this one


def explain(error: Exception, entry: type) -> str:
    """One line on what Hydra or OmegaConf found wrong with a config; `entry` is its schema."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = "\n".join(map(str, chain))
    if unknown := re.search(r"[Kk]ey '([^']+)' (?:is not in struct|not in '\w+')(?:[\s\S]*?full_key: (\S+))?", text):
        key = unknown[2] or unknown[1]
        if (whole := re.search(r"Could not override '([^']+)'", text)) and whole[1].startswith(f"{key}."):
            key = whole[1]  # what was typed, of which only the first part was looked for
        key = key[:200]
        if key in known_keys(entry):
            return f"{key}: not a key of this run's data or model; choose other data=... or model=..."
        return f"{key}: there is no such key{_nearest(key, known_keys(entry))}"
    if inner := re.search(r"Could not override '([^'/]+)/([^']+)'. No match", text):
        return f"{inner[1]}/{inner[2]}: choose by {inner[1]}={inner[2]}/<name>"
    if option := re.search(r"Could not (?:find|load) '([^']+)'", text):
        if option[1].startswith("hydra/launcher/submitit"):
            return "hydra/launcher: this one needs the Slurm plugin; install it: make setup EXTRA=slurm"
        group, _, name = option[1].partition("/")
        nearest = _nearest(name, _choices(group))
        return f"{group}={name[:200]}: there is no such choice{nearest}{_listed(group)}"
    if group := re.search(r"Merge error: (\w+) is not a subclass of (\w+)", text):
        key = _groups(entry).get(group[2], group[2])
        return f"{key}: is a group of keys and cannot be a value ({group[1]}); set its keys, {key}.<key>=..."
    if value := re.search(r"([^\n]+)\n\s*full_key: (\S+)", text):
        why = "must have a value, and not null" if value[1].endswith("is not Optional") else value[1].strip()
        return f"{value[2]}: {why}"
    return _one_line(error)


def _one_line(error: Exception) -> str:
    """What Hydra says, which may quote all that was typed."""
    return " ".join(str(error).split())[:300]


def _nearest(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if not close:  # a key typed under the wrong group: compare the last parts
        leaves = {choice.rpartition(".")[2]: choice for choice in choices}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(word.rpartition(".")[2], list(leaves), n=1)]
    return f"; did you mean {close[0]}?" if close else ""


def known_keys(entry: type) -> list[str]:
    """The dotted keys of a schema; those of a training run are of all tasks and families of models."""
    return list(dict.fromkeys(key for node in _schema_nodes(entry) for key in _dotted_keys(node)))


def _groups(entry: type) -> dict[str, str]:
    groups = {"AugmentConfig": "augment"}  # null in a schema
    for node in _schema_nodes(entry):
        groups |= {OmegaConf.get_type(node, key).__name__: key for key in node if isinstance(node[key], DictConfig)}
    return groups


def _schema_nodes(entry: type) -> list[DictConfig]:
    if entry is not Config:
        return [OmegaConf.structured(entry)]
    return [schema(task=task) for task in TASKS] + [schema(family=family) for family in MODELS]


def _dotted_keys(node: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for name in node:
        keys.append(f"{prefix}{name}")
        child = None if OmegaConf.is_missing(node, name) else node[name]
        keys += _dotted_keys(child, f"{prefix}{name}.") if isinstance(child, DictConfig) else []
    return keys
