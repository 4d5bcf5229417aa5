"""Whatever stands on the command line, train.py starts or says in one line why not: nothing deeper ever speaks up."""

# ruff: noqa: SIM905 (a line of words is shorter than a list of them)

import copy
import json
import math
from pathlib import Path

import jax
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from plstm.config import Config, EvalConfig
from plstm.errors import UserError, printable
from plstm.runs import compose as configs
from plstm.runs import identity
from plstm.runs.compose import compose_config, to_config
from plstm.runs.finetuning import initial_id
from plstm.runs.overrides import choices, known_keys, parse_overrides
from plstm.tasks import TASKS
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import learning_rate_schedule

SMALL = ["debug=smoke", "model.dim=16", "model.heads=2"]
STARTS = {
    "arrow": ["experiment=arrow/plstm", *SMALL],
    "vit": ["experiment=arrow/vit", *SMALL],
    "imagenet": ["experiment=imagenet/vit", *SMALL, "data=imagenet_held_out"],
}
KEYS = known_keys(Config)
GROUPS = {group: choices(group) for group in ("model", "data", "augment", "optim", "experiment", "debug")}
GOOD = "0 1 2 3 4 8 12 16 24 32 48 64 96 128 256 0.0 0.1 0.25 0.5 1.0 2.5 1e-3 1e-8 null true false".split()
NUMBERS = "-1 -0.0 1e-320 1e39 1e308 1e400 2147483648 18446744073709551616 nan inf -inf NaN 1_000 0x10".split()
NAMES = "adamw lamb val test train last best arrow imagenet P D attention zeros float16 device auto rand-m9".split()
NAMES += "offline deit3 none plstm_t arrow/vit smoke graph a,b None ??? /nowhere ~/x 0123456789ab 12e456".split()
ODD = ["", "''", "' '", "ä", "箭头", "'a b'", "../../x", "/", "~", "'x\ny'", "'a\\tb'", "\udcff", "x" * 300, "'"]
ODD += ["'${seed}'", "${no.such}", "${oc.env:HOME}", "${run_id:}", "[", "{", "a=b", "{a: 1}", "{}", "[]", "[null]"]
ODD += ["[[1]]", "choice(1,2)", "range(3)", "'nan'", "0.0.0", "@", "$x"]
SPLITS = "[val] [val,test] [test] [val,val_ext,test,test_ext] [] [val,val] val [train]"
WORDS = {
    "model.modes": "[P] [D] [P,D] [D,P] [attention] [P,P] [attention,P] [] [P,D,P]",
    "model.gates": "released printed",
    "model.gate_init": "zeros normal",
    "model.pooling": "corners class_token",
    "model.norm": "rmsnorm layernorm",
    "model.dtype": "float32 bfloat16",
    "model.transition_dtype": "float32 bfloat16",
    "model.method": "auto parallel hierarchical chunkwise recurrent fused",
    "data.name": "arrow_pointing imagenet2012 mosaics",
    "data.distribution": "paper balanced",
    "augment.auto_augment": "null three_augment rand-m9-mstd0.5-inc1 rand-m9 rand-m99 rand-x ''",
    "optim.name": "adamw lamb",
    "optim.loss": "cross_entropy binary_cross_entropy",
    "loop.eval_splits": SPLITS,
    "loop.final_splits": SPLITS,
    "loop.best_split": "null val test train",
    "logger.mode": "disabled offline online auto",
}


def values() -> st.SearchStrategy[str]:
    numbers, names, odd = (st.sampled_from(texts) for texts in (GOOD + NUMBERS, NAMES, ODD))
    lists = st.lists(st.one_of(numbers, names), min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
    return st.one_of(numbers, numbers, names, odd, lists, st.integers().map(str), st.floats().map(repr))


def likely(key: str) -> st.SearchStrategy[str]:
    """An override with a value of about the kind that the key has."""
    texts = GROUPS[key] if key in GROUPS else WORDS[key].split() if key in WORDS else GOOD
    return st.sampled_from(texts).map(lambda text: f"{key}={text}")


def command_lines() -> st.SearchStrategy[tuple[str, list[str]]]:
    """A start of `STARTS`, and one to three overrides."""
    known, group, letters = (st.sampled_from(texts) for texts in (KEYS, sorted(GROUPS), "abcdefgxyz_."))
    misspelt = st.builds(lambda key, n, letter: key[:n] + letter + key[n + 1 :], known, st.integers(0, 9), letters)
    keys = st.one_of(known, known, known, known, group, misspelt)
    marks = st.sampled_from(["", "", "", "", "", "+", "++"])
    anything = st.builds("{}{}={}".format, marks, keys, values()) | keys.map("~{}".format)
    close = st.sampled_from([*KEYS, *GROUPS]).flatmap(likely)
    overrides = st.lists(st.one_of(anything, close, close), min_size=1, max_size=3)
    return st.tuples(st.sampled_from(sorted(STARTS)), overrides)


def outcome(start: str, overrides: list[str], folder: Path) -> Config | str:
    """As train.py does it: a config that starts, or why not. Any other error than ours comes through."""
    own = [f"paths.runs={folder}/runs", f"paths.results={folder}/results", "logger.mode=disabled"]
    try:
        words = [*STARTS[start], *own, *overrides]
        parse_overrides(words)
        config = to_config(compose_config("train", words))
        if config.init_from is not None:
            initial_id(config.init_from, Path(config.paths.runs))
        parts(config)
    except UserError as error:
        return str(error)
    return config


def parts(config: Config) -> None:
    """What is not traced: the layout, the steps, the schedule, the seeds, the data set's variant, the record."""
    layout, task = Layout(make_mesh(config.optim.batch_size, config.mesh.fsdp)), TASKS[config.task](config)
    plan = task.plan()
    schedule = learning_rate_schedule(config.optim, plan.steps, plan.warmup_steps)
    assert all(math.isfinite(float(schedule(step))) for step in (0, plan.warmup_steps, plan.steps - 1))
    jax.random.fold_in(jax.random.key(config.seed), 0)
    assert task.describe_data()
    if config.task == "arrow":
        task.variant  # noqa: B018 (it checks the sizes)
    elif config.data.name == "mosaics":
        assert all(len(task.split(name)) for name in config.loop.final_splits)
        task.batches(layout)
    json.dumps(identity.identity(identity.plain_config(config)), allow_nan=False, ensure_ascii=False).encode()
    assert len(identity.run_id(config)) == 12


def assert_one_line(line: str, keys: list[str]) -> None:
    """Short, and naming one of the keys."""
    assert line.strip() and len(line) <= 600
    line = printable(line)  # as it is shown
    assert any(key and key in line for key in keys), line


def assert_taken(overrides: list[str], config: Config) -> None:
    parsed = OverridesParser.create().parse_overrides(overrides)
    assert not any(override.is_delete() for override in parsed)
    for key, value in {override.key_or_group: override.value() for override in parsed}.items():
        if key in KEYS and key not in GROUPS and not isinstance(value, dict | list) and "${" not in str(value):
            taken = OmegaConf.select(OmegaConf.create(identity.plain_config(config)), key)
            assert same(value, taken), f"{key}={value!r} was taken as {taken!r}"


def same(given, taken) -> bool:
    """Whether a value of the command line is what the config has, in its own type."""
    if isinstance(taken, bool):
        return taken == (str(given).lower() in ("true", "yes", "on", "y", "1") or (type(given) is int and given != 0))
    if given is None or taken is None:
        return given is taken or str(given).lower() in ("null", "none", "")
    try:
        return type(taken)(given) == taken
    except (TypeError, ValueError):
        return str(given) == str(taken)


@pytest.fixture
def try_out(composed, tmp_path_factory):
    """Function of (start, overrides): asserts that these start or are refused in one line."""

    def try_out(case):
        start, overrides = case
        found = outcome(start, overrides, tmp_path_factory.getbasetemp())
        event("refused" if isinstance(found, str) else "starts")
        if isinstance(found, str):  # one choice may break another key's bounds
            assert_one_line(found, [*KEYS, *(text.lstrip("+~").partition("=")[0] for text in overrides)])
        else:
            assert_taken(overrides, found)

    return try_out


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(command_lines())
@example(("imagenet", ["+seed=" + "x" * 300]))
def test_any_command_line_starts_or_is_refused_in_one_line(try_out, case):
    try_out(case)


@pytest.mark.slow
@settings(max_examples=2000, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@given(command_lines())
def test_thousands_of_command_lines_start_or_are_refused_in_one_line(try_out, case):
    try_out(case)


PYTHON = [0, 7, -1, 2**31, 10**30, 0.5, 1e-320, 1e30, float("inf"), float("nan"), None, True, "", "x", "ä/箭", "a\nb"]
PYTHON += ["\udcff", "../../x", "x" * 300, [1], ["x"], [], [None], {}, {"a": 1}, "???", "${seed}", "${no.such}"]


def refusal(node, key: str, value, checked) -> str | None:
    """The one line that refuses a value, None where it is taken."""
    changed = copy.deepcopy(node)
    try:
        OmegaConf.update(changed, key, value, merge=False)
        checked(changed)
    except UserError as error:
        return str(error)
    except OmegaConfBaseException as error:
        return configs.explain(error)
    return None


@pytest.mark.parametrize(("start", "every"), [("arrow", 9), pytest.param("imagenet", 1, marks=pytest.mark.slow)])
def test_odd_values_of_every_key(composed, start, every):
    node, taken = composed(*STARTS[start], "logger.mode=disabled"), 0
    for number, key in enumerate(key for key in KEYS if OmegaConf.select(node, key) is not None):
        for value in PYTHON[number % every :: every]:
            line = refusal(node, key, value, lambda changed: parts(to_config(changed)))
            taken += line is None
            if line is None:
                assert value != "???", key
            else:
                assert_one_line(line, [*KEYS, "Merge error"])
    assert taken > 10


def test_odd_values_of_every_key_of_an_evaluation():
    node = OmegaConf.structured(EvalConfig)
    for key in known_keys(EvalConfig):
        for value in PYTHON:
            line = refusal(node, key, value, configs.to_eval_config)
            if line is not None:
                assert_one_line(line, [key.split(".")[0]])
