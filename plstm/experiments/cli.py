"""How the entries talk to the user: Hydra with the typed schema, errors in one line that name the nearest valid key."""

from __future__ import annotations

import difflib
import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jax
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from plstm.errors import UserError
from plstm.experiments.config import Config, EvalConfig, run_id, task_schema
from plstm.experiments.initial import initial_id
from plstm.tasks import TASKS

EXIT_BAD_INPUT = 2


def register() -> None:
    """Makes the schemas and the `run_id` resolver known to Hydra; needed before a config is composed."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=Config)
    store.store(name="eval_schema", node=EvalConfig)
    for name, task in TASKS.items():  # the defaults lists of configs/data and configs/model begin with these
        store.store(group="schema/data", name=name, node=task.data_schema)
        store.store(group="schema/model", name=task.model_schema.__name__, node=task.model_schema)
    OmegaConf.register_new_resolver("run_id", lambda *, _root_: _resolved_id(_root_), replace=True)


def _resolved_id(root: DictConfig) -> str:
    node = OmegaConf.masked_copy(root, [key for key in root if key != "hydra"])
    plain = OmegaConf.to_container(node, resolve=True)
    if plain["init_from"] is not None:
        plain["init_from"] = initial_id(plain["init_from"], Path(plain["paths"]["runs"]))
    return run_id(plain)


def task(schema: type) -> Callable[[Callable[[DictConfig], Any]], Callable[[DictConfig], Any]]:
    """Decorates what Hydra runs: bad input, or a file that cannot be written, ends it with one line and status 2."""

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[DictConfig], Any]:
        @functools.wraps(function)
        def run(node: DictConfig) -> Any:
            try:
                return function(node)
            except UserError as error:
                _fail(str(error))
            except OmegaConfBaseException as error:
                _fail(_explain(error, schema))
            except OSError as error:
                if not error.filename:
                    raise
                _fail(f"{error.filename}: {error.strerror}")

        return run

    return decorate


def run_entry(main: Callable[[], Any], schema: type) -> None:
    """Runs a Hydra main function; a config that cannot be composed ends it with one clear line and exit status 2."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through, so that they are worded here
    if jax.config.jax_compilation_cache_dir is None:  # a resumed or repeated run starts without compiling again
        jax.config.update("jax_compilation_cache_dir", str(Path("~/.cache/plstm/jax").expanduser()))
    try:
        main()
    except (HydraException, OmegaConfBaseException) as error:
        _fail(_explain(error, schema))
    except OSError as error:  # the run's folder
        if not error.filename:
            raise
        _fail(f"{error.filename}: {error.strerror}; choose another paths.runs")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(EXIT_BAD_INPUT)


def _explain(error: Exception, schema: type) -> str:
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__
    text = "\n".join(str(link) for link in chain)
    if told := re.search("UserError raised while resolving interpolation: (.*)", text):
        return told[1]
    if unknown := re.search(r"[Kk]ey '([^']+)' (?:is not in struct|not in '\w+')(?:[\s\S]*?full_key: (\S+))?", text):
        key = unknown[2] or unknown[1]
        return f"{key}: there is no such key{_nearest(key, _known_keys(schema))}"
    if option := re.search(r"Could not (?:find|load) '([^']+)'", text):
        group, _, name = option[1].partition("/")
        options = _options(group, text)
        listed = ", ".join(options) or "none"
        return f"{group}={name}: there is no such choice{_nearest(name, options)}; there are {listed}"
    if value := re.search(r"(Value '.*' .*)[\s\S]*?full_key: (\S+)", text):
        return f"{value[2]}: {value[1]}"
    if missing := re.search(r"[Mm]issing mandatory value: (\S+)", text):
        return f"{missing[1]}: give a value, {missing[1]}=..."
    return " ".join(str(chain[0]).split())


def _options(group: str, text: str) -> list[str]:
    """The choices of a group, also in folders of it, which Hydra's message (`text`) does not list."""
    folders = [Path(folder, group) for folder in re.findall(r"path=file://(\S+)", text)]
    paths = [path.relative_to(folder) for folder in folders for path in folder.rglob("*.yaml")]
    return sorted(str(path.with_suffix("")) for path in paths)


def _nearest(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if not close:  # a key typed under the wrong group: compare the last parts
        leaves = {choice.rpartition(".")[2]: choice for choice in choices}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(word.rpartition(".")[2], list(leaves), n=1)]
    return f"; did you mean {close[0]}?" if close else ""


def _known_keys(schema: type) -> list[str]:
    """The dotted keys of a schema; those of a training run are of all tasks."""
    plain = [task_schema(task) for task in TASKS] if schema is Config else [OmegaConf.structured(schema)]
    return list(dict.fromkeys(key for node in plain for key in _dotted_keys(node)))


def _dotted_keys(node: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for name in node:
        keys.append(f"{prefix}{name}")
        child = None if OmegaConf.is_missing(node, name) else node[name]
        keys += _dotted_keys(child, f"{prefix}{name}.") if isinstance(child, DictConfig) else []
    return keys
