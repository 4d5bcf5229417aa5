"""Whatever stands on the command line, train.py starts or says in one line why not: nothing deeper ever speaks up."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from plstm.config import Config, EvalConfig, to_config, to_eval_config
from plstm.errors import UserError
from plstm.runs.cli import explain, known_keys
from tests.config.overrides import KEYS, STARTS, build, command_lines, fault, outcome, parts

ODD = [
    0,
    7,
    -1,
    2**31,
    10**30,
    0.5,
    1e-320,
    1e30,
    float("inf"),
    float("nan"),
    None,
    True,
    "",
    "x",
    "\u00e4/\u7bad",
    "a\nb",
]
ODD += ["\udcff", "../../x", "x" * 300, [1], ["x"], [], [None], {}, {"a": 1}, "???", "${seed}", "${no.such}"]
LONG = {"suppress_health_check": list(HealthCheck), "phases": [Phase.explicit, Phase.generate]}


@pytest.fixture
def try_out(composed, tmp_path_factory):
    """Function of (start, overrides) and `parts` or `build`: asserts that these start or are refused in one line."""

    def try_out(case, build):
        start, overrides = case
        found = outcome(start, overrides, tmp_path_factory.getbasetemp(), build)
        event("refused" if found.line else "starts")
        assert fault(overrides, found) is None

    return try_out


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(command_lines())
def test_any_command_line_starts_or_is_refused_in_one_line(try_out, case):
    try_out(case, parts)


@pytest.mark.slow
@settings(max_examples=2000, **LONG)
@given(command_lines())
def test_thousands_of_command_lines_start_or_are_refused_in_one_line(try_out, case):
    try_out(case, parts)


@pytest.mark.slow
@settings(max_examples=60, **LONG)
@given(command_lines())
def test_what_starts_traces_a_training_step(try_out, case):
    try_out(case, build)


def set_to(node, key: str, value, checked) -> str | None:
    """The one line that refuses a value, None where it is taken."""
    changed = copy.deepcopy(node)
    try:
        OmegaConf.update(changed, key, value, merge=False)
        checked(changed)
    except UserError as error:
        return str(error)
    except OmegaConfBaseException as error:
        return explain(error, Config)
    return None


@pytest.mark.parametrize("start", ["arrow", pytest.param("imagenet", marks=pytest.mark.slow)])
def test_odd_values_of_every_key(composed, start, request):
    node = composed(*STARTS[start], "logger.mode=disabled")
    whole = "slow" in [mark.name for mark in request.node.iter_markers()]
    taken = 0
    for number, key in enumerate(key for key in KEYS if OmegaConf.select(node, key) is not None):
        for value in ODD if whole else ODD[number % 9 :: 9]:
            line = set_to(node, key, value, lambda changed: parts(to_config(changed)))
            taken += line is None
            if line is not None:
                assert "\n" not in line and any(known in line for known in KEYS), (key, value, line)
            else:
                assert value != "???", key
    assert taken > 10


def test_odd_values_of_every_key_of_an_evaluation(composed):
    node = OmegaConf.structured(EvalConfig)
    for key in known_keys(EvalConfig):
        for value in ODD:
            line = set_to(node, key, value, to_eval_config)
            assert line is None or ("\n" not in line and key.split(".")[0] in line), (key, value, line)
