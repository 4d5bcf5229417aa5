"""The command line of train.py and eval.py: Hydra with a typed schema, and errors of one line."""

import contextlib
import errno
import functools
import itertools
import os
import re
import string
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from plstm.config import Config
from plstm.errors import DownloadError, UserError, command_line, printable
from plstm.runs.compose import compose_config, explain, register, to_config, to_eval_config
from plstm.runs.identity import named
from plstm.runs.local import local_settings
from plstm.runs.overrides import choices, each_word, groups, parse_overrides
from plstm.training.environment import keep_programs

EXIT_BAD_INPUT = 2
OF_SWEEPS = re.compile(r"hydra[/.](launcher|sweeper)\b")  # Hydra's keys that a single run has no use for


class JobFailed(UserError):
    """A job of a sweep failed, and its message is printed. Hydra notes an exception, but no exit, and goes on."""


def run_entry(main: Callable[[], Any], schema: type) -> None:
    """Runs a Hydra main function whose config has a schema, `Config` or `EvalConfig`. Bad input ends it with one line
    and exit status 2, before any job of a sweep has started."""
    register()
    _print_of_first_job.cache_clear()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra would print several lines of its own and exit
    with command_line("the program continues without it"), one_line_errors():
        sys.argv[1:] = as_choices([quote_ids(word) for word in sys.argv[1:]])
        local_settings()
        sys.argv += check_command(sys.argv[1:], schema)
        main()


def check_command(words: Sequence[str], schema: type) -> list[str]:
    """Raises UserError for words that start no run, or a sweep of which one job has a bad config. Returns the words
    that Hydra would leave out, see `check_jobs`."""
    parser = get_args_parser()
    parser.allow_abbrev = False
    parser.error = _refuse
    flags = parser.parse_args(words)
    if flags.experimental_rerun:
        raise UserError("--experimental-rerun: reads a pickle, which can run anything; experiments: experiment=<name>")
    one_of = {"--run": flags.run, "-m": flags.multirun, "--cfg": flags.cfg, "--info": flags.info}
    if len(given := [flag for flag, value in one_of.items() if value]) > 1:
        raise UserError(f"{given[0]} and {given[1]} do not go together; give one of them")
    if flags.resolve and not flags.cfg:
        raise UserError("--resolve: goes with --cfg job alone")
    if flags.help:
        print(help_text(_entry(schema)))
        raise SystemExit(0)
    if flags.hydra_help or flags.shell_completion or flags.info:
        return []
    if flags.config_dir or flags.config_name or flags.config_path:  # what lies elsewhere Hydra checks alone
        return []
    overrides = parse_overrides(flags.overrides, schema)
    if flags.cfg:
        compose_config(_entry(schema), flags.overrides)  # which Hydra then shows, with errors of many lines
        return []
    left_out = check_jobs(overrides, schema, flags.multirun)
    chosen = {override.key_or_group for override in overrides}
    if schema is Config and not chosen & {"experiment", "model", "data", "debug"}:
        raise UserError("experiment: choose one, such as experiment=arrow/plstm; python train.py --help lists them")
    return left_out


def help_text(entry: str) -> str:
    """The help of configs/<entry>.yaml with the choices of each group, for which Hydra would take seconds."""
    template = compose_config(entry, [], with_hydra=True).hydra.help.template
    listed = (f"{group}: {', '.join(choices(group))}" for group in groups())
    wrapped = (textwrap.fill(line, 118, subsequent_indent="    ", break_on_hyphens=False) for line in listed)
    return string.Template(template).substitute(APP_CONFIG_GROUPS="\n".join(wrapped))


def _refuse(message: str) -> NoReturn:
    raise UserError(f"{message}; write flags such as -m first, then key=value without dashes")


def check_jobs(overrides: Sequence[Override], schema: type, multirun: bool) -> list[str]:
    """Composes and checks the configs of all runs that a command starts; Hydra itself would only compose them.

    Returns what an experiment sweeps over by itself where several are named, which Hydra then does not read."""
    swept: list[str] = []
    name = _entry(schema)
    words = [each_word(override) for override in overrides]
    hydra = compose_config(name, [choices[0] for choices in words], with_hydra=True).hydra
    many = [override for override in overrides if override.is_sweep_override()]
    several = [each_word(override) for override in many if override.key_or_group == "experiment"]
    sweeps_itself = hydra.mode == RunMode.MULTIRUN and not several  # an experiment may say so, and what it sweeps over
    if multirun or sweeps_itself:
        typed = [override.key_or_group for override in overrides]
        swept = [f"{key}={values}" for key, values in (hydra.sweeper.params or {}).items() if key not in typed]
        words += [each_word(override) for override in parse_overrides(swept, schema)]
    elif many:
        line = many[0].input_line
        key, _, values = line.partition("=")
        both = f"both at once: {key}=[{values}]" if key == "variant" else "quote text with commas twice, 'key=\"a,b\"'"
        raise UserError(f"{line}: several values take -m, first; {both}")
    elif of_sweeps := [word.input_line for word in overrides if OF_SWEEPS.match(word.key_or_group)]:
        raise UserError(f"{of_sweeps[0]}: takes -m, first; without it the run starts here and now")
    jobs = list(itertools.product(*words))
    for job in jobs:
        try:
            node = compose_config(name, job)
            named(to_config(node), job) if schema is Config else to_eval_config(node)
        except UserError as error:
            if len(jobs) == 1:
                raise
            raise UserError(f"{' '.join(job)}: {error}; no job was started") from error
    if not several:
        return []
    for (experiment,) in itertools.product(*several):
        own = compose_config(name, [experiment], with_hydra=True).hydra.sweeper.params
        if own != hydra.sweeper.params:
            raise UserError(f"{experiment}: sweeps over other keys than the first experiment; start them one by one")
    return swept


def _entry(schema: type) -> str:
    """The file of configs that train.py or eval.py starts with."""
    return "train" if schema is Config else "eval"


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Around an entry, and the job that Hydra runs: bad input or an unwritable file ends it with one line and status 2.
    Also sets where compiled programs are kept, as a Slurm job starts here."""
    keep_programs()
    try:
        yield
    except JobFailed:
        _fail("jobs of this sweep failed, each reason with a line above")
    except UserError as error:
        _fail(str(error), ends_sweep=isinstance(error, DownloadError))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        _fail(explain(error))
    except OSError as error:
        if not error.filename and error.errno != errno.ENOSPC:
            raise
        _fail(f"{error.filename or 'a file'}: {error.strerror}")


def _fail(message: str, ends_sweep: bool = False) -> NoReturn:
    message = printable(message)  # which may quote what was typed
    if jax.distributed.is_initialized():
        print(f"error: process {jax.process_index()}: {message}", file=sys.stderr, flush=True)
        os._exit(EXIT_BAD_INPUT)  # an orderly end would wait for the other processes, and they for this one
    if _is_job() and not ends_sweep:
        _print_of_first_job(message)
        _release(sys.exception())
        raise JobFailed(message)
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(EXIT_BAD_INPUT)


def _release(error: BaseException | None) -> None:
    """Frees what a failed job held, as the next one may need its memory: Hydra keeps the exception until the end."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@functools.cache
def _print_of_first_job(message: str) -> None:
    job = printable(" ".join(HydraConfig.get().overrides.task))
    print(f"error: {job}: {message}", file=sys.stderr, flush=True)


def _is_job() -> bool:
    """Whether this is a job of a sweep in this process."""
    if not HydraConfig.initialized():
        return False
    hydra = HydraConfig.get()
    return hydra.mode == RunMode.MULTIRUN and hydra.launcher._target_.endswith(".BasicLauncher")


def as_choices(words: Sequence[str]) -> list[str]:
    """The words; with -m, those that set keys of `data`, `model` or `augment` become sweeps over one value. Before the
    jobs Hydra composes what is not swept: where several experiments are swept, a config without these keys."""
    if not {"-m", "--multirun"} & {*words}:
        return list(words)
    return [re.sub(r"^(\+*(?:data|model|augment)\.[^=]+)=(?!\w+\()(.+)$", r"\1=choice(\2)", word) for word in words]


def quote_ids(word: str) -> str:
    """An override that names runs, with quotes around ids that Hydra would take for numbers, such as 12e456."""
    if not word.startswith(("run=", "init_from=", "data.teacher=")):
        return word
    return re.sub(r"(?<=[=,])\d+e\d+(?=,|$)", r'"\g<0>"', word)
