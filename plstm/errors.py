"""The exception that means: the user can fix this, and the message says how."""

import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NoReturn

Rule = tuple[str, bool, str]  # a key, whether it holds, what else to give


class UserError(Exception):
    """Bad input or a bad environment; its text is one line that names the key or path and what to do.

    The command-line entries print it without a traceback and exit with status 2.
    """


class ReadError(UserError):
    """Data that cannot be read, where what was computed so far is good: a training saves before it ends."""


def first_line(error: Exception) -> str:
    """What an error says, for a message of one line."""
    text = getattr(error, "strerror", None) or str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def printable(text: str) -> str:
    """Text on one line that does nothing to a terminal: other characters are escaped, such as \\x1b."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def first_problem(error: Any, what: str = "field") -> str:
    """The first of a pydantic error's: "field metrics.last: Input should be a valid dictionary"."""
    problem = error.errors()[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    message = problem["msg"].removeprefix("Value error, ")
    return f"{what} {place}: {message}" if place else message


def require(config: Any, *rules: Rule, prefix: str = "") -> None:
    """Raises UserError naming the key, after `prefix`, of the first rule that does not hold."""
    for key, holds, words in rules:
        if not holds:
            raise UserError(f"{prefix}{key}={attrgetter(key)(config)}: {words}")


def one_of(config: Any, **choices: tuple[str, ...]) -> list[Rule]:
    return [(key, getattr(config, key) in few, f"choose one of {', '.join(few)}") for key, few in choices.items()]


def positive(config: Any, *keys: str, most: int) -> list[Rule]:
    return [(key, 1 <= getattr(config, key) <= most, f"must be at least 1 and at most {most}") for key in keys]


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the status that a script's `main` returns; a UserError ends it with one line and 2."""
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
