"""Every key of the schema says what it means, in a comment on its line or on the line before."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass

import pytest

from data.augment.recipes import AugmentConfig
from plstm.config import Config, EvalConfig
from plstm.models import MODELS
from plstm.tasks import TASKS

SCHEMAS = [Config, EvalConfig, AugmentConfig, *(task.data_schema for task in TASKS.values())]
SCHEMAS += [family.config for family in MODELS.values()]


def groups(schema: type) -> Iterator[type]:
    yield schema
    for field in schema.__dataclass_fields__.values():
        if is_dataclass(field.type):
            yield from groups(field.type)


@pytest.mark.parametrize("schema", dict.fromkeys(group for schema in SCHEMAS for group in groups(schema)))
def test_every_key_has_a_comment(schema):
    source = textwrap.dedent(inspect.getsource(schema))
    lines = source.splitlines()
    keys = [node for node in ast.parse(source).body[0].body if isinstance(node, ast.AnnAssign)]
    assert keys
    for node in keys:
        is_group = is_dataclass(schema.__dataclass_fields__[node.target.id].type)  # the group says it of its own keys
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        assert is_group or "  # " in text or lines[node.lineno - 2].lstrip().startswith("# "), node.target.id
