"""Limits of a config's keys, declared at the field and checked in one place.

    @dataclass
    class OptimConfig:
        name: Annotated[str, OneOf("adamw", "lamb")] = "adamw"
        peak_lr: Annotated[float, Gt(0)] = 1e-4

    check_limits(OptimConfig(peak_lr=0.0), "optim.")  # UserError: optim.peak_lr=0.0: must be positive

Ge, Gt, Le, Interval and MinLen come from annotated-types. A limit outside the brackets of a list holds for the list,
one inside them for each entry. Values must have Python's own types, which JSON takes, and not NumPy's. Rules that join
several keys are functions; see `plstm.errors.require`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Le, MinLen

from plstm.errors import UserError

MAX_SIZE = 2**16  # of a dimension; a larger one is a typing error
FLOAT32_MIN = 1e-37  # magnitudes, a little rounded
FLOAT32_MAX = 1e38
ID_DIGITS = 12  # hexadecimal ones, of a run's id, and of a file's in place of it

Size = Annotated[int, Interval(ge=1, le=MAX_SIZE)]
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]  # 0 included
Workers = Annotated[int, Interval(ge=0, le=1024)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Root = Annotated[str, MinLen(1)]  # of data sets
Rate = Annotated[float, Interval(ge=0, lt=1)]
Share = Annotated[float, Interval(ge=0, le=1)]


class OneOf(tuple[Any, ...]):
    """The values that a key may have: OneOf("adamw", "lamb")."""

    __slots__ = ()

    def __new__(cls, *choices: Any) -> "OneOf":
        return super().__new__(cls, choices)


@dataclass(frozen=True)
class Matches:
    """Text that matches the whole of a regular expression; `description` is what the error says it must be."""

    pattern: str
    description: str


Folder = Annotated[str, MinLen(1), Matches("[^~].*", "a path without ~, which is not expanded")]


@dataclass(frozen=True)
class OnlyWith:
    """The key stays at its default unless another key of its group is one of `values`, or a list that has one."""

    key: str
    values: tuple[str, ...]


# By type: what an error calls it, and what passes.
TYPES: dict[Any, tuple[str, Any]] = {
    bool: ("a bool", bool),
    int: ("an int", int),
    float: ("a number", (float, int)),
    str: ("a str", str),
    list: ("a list", (list, tuple)),
}


def check_limits(config: Any, prefix: str = "") -> None:
    """Raises UserError naming the first key of a dataclass, after `prefix`, whose value is not allowed.

    Fields that are dataclasses are groups of keys, and checked as well.
    """
    hints = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        key = f"{prefix}{field.name}"
        value = getattr(config, field.name)
        if is_dataclass(value):
            check_limits(value, f"{key}.")
            continue
        for problem in _problems(value, hints[field.name]):
            shown = repr(value) if isinstance(value, str) and not value.isprintable() else value
            raise UserError(f"{key}={shown}: {problem}")
        for limit in _limits(hints[field.name])[0]:
            if isinstance(limit, OnlyWith) and value != field.default and not _is_met(limit, config):
                raise UserError(f"{key}={value}: only {prefix}{limit.key}={' or '.join(limit.values)} has it")


def _limits(hint: Any) -> tuple[tuple[Any, ...], Any]:
    """The limits of a type, None in a union aside, and the type without them."""
    if NoneType in get_args(hint):
        (hint,) = (member for member in get_args(hint) if member is not NoneType)
    return (hint.__metadata__, hint.__origin__) if get_origin(hint) is Annotated else ((), hint)


def _problems(value: Any, hint: Any) -> Iterator[str]:
    """What is wrong with a value, or with the entries of a list."""
    if value is None and NoneType in get_args(hint):
        return
    limits, kind = _limits(hint)
    name, types = TYPES.get(get_origin(kind) or kind, ("", object))
    if not isinstance(value, types) or (isinstance(value, bool) and kind in (int, float)):
        yield f"must be {name}, not {type(value).__name__}"
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _problems(part, (*get_args(kind), Any)[0])
    elif isinstance(value, float) and not (value == 0 or FLOAT32_MIN <= abs(value) <= FLOAT32_MAX):
        yield "must be a number that float32 holds, 0 or from 1e-37 to 1e38"
    elif isinstance(value, int) and abs(value) >= 2**31:
        yield "must be under 2^31"
    elif isinstance(value, str) and not value.isprintable():
        yield "must be printable text of one line"
    for limit in limits:
        if problem := _problem(value, limit):
            yield problem


def _problem(value: Any, limit: Any) -> str | None:
    match limit:
        case Ge(ge=least):
            return None if value >= least else f"must be at least {least}"
        case Le(le=most):
            return None if value <= most else f"must be at most {most}"
        case Gt(gt=bound):
            return None if value > bound else f"must be {'positive' if bound == 0 else f'above {bound}'}"
        case Interval(ge=least, le=None, lt=bound):
            return None if least <= value < bound else f"must be in [{least}, {bound})"
        case Interval(ge=least, le=most):
            return None if least <= value <= most else f"must be in [{least}, {most}]"
        case MinLen():
            return None if len(value) >= limit.min_length else "must not be empty"
        case OneOf():
            known = ", ".join(str(choice).lower() if isinstance(choice, bool) else choice for choice in limit)
            return None if value in limit else f"choose one of {known}"
        case Matches():
            return None if re.fullmatch(limit.pattern, value) else f"must be {limit.description}"
        case OnlyWith():
            return None  # of two keys, see `check_limits`
    raise TypeError(f"{limit!r}: no limit that is checked here")


def _is_met(limit: OnlyWith, config: Any) -> bool:
    found = getattr(config, limit.key)
    return any(value in limit.values for value in ([found] if isinstance(found, str) else found))
