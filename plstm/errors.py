"""The exception that means: the user can fix this, and the message says how."""

import contextlib
import functools
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NoReturn

Rule = tuple[str, bool, str]  # a key, whether its value is good, what it must be


class UserError(Exception):
    """Bad input or a bad environment; its text is one line that names the key or path and what to do.

    The command-line entries print it without a traceback and exit with status 2.
    """


class ReadError(UserError):
    """Data that cannot be read, where what was computed so far is good: a training saves before it ends."""


class DownloadError(UserError):
    """Data that cannot be fetched: ends a whole sweep, whose other jobs would each try in vain."""


def first_line(error: Exception) -> str:
    """What an error says, for a message of one line."""
    text = getattr(error, "strerror", None) or str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


@functools.cache
def print_once(line: str) -> None:
    """Prints a line to standard error, unless this process has done so."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def damage_named(what: str | os.PathLike, remedy: str) -> Iterator[None]:
    """Makes a ReadError of any of the dozen errors of NumPy, TFDS, array_record, protobuf and Pillow for damaged
    files."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise ReadError(f"{what} cannot be read ({first_line(error)}); {remedy}") from error


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
    """Raises UserError naming the key, after `prefix`, of the first rule that is broken."""
    for key, is_good, problem in rules:
        if not is_good:
            raise UserError(f"{prefix}{key}={attrgetter(key)(config)}: {problem}")


class _Lasting:
    """A text stream that drops what cannot be written: its reader has gone, or its disk is full."""

    def __init__(self, stream: Any, note: str):
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115 (for a closed one)
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # also what is still in its buffer, and what C code writes
            os.close(nowhere)
            if self._note:
                print(f"standard output is lost ({first_line(error)}); {self._note}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def command_line(note: str = "") -> Iterator[None]:
    """Around a program. Printing never fails in it: when standard output is lost, a line on standard error says so,
    with `note`, and characters that an encoding lacks are escaped. A warning of ours takes one line, without its place
    in the source. Ctrl-C ends the process with one, and status 130."""
    usual = warnings.formatwarning

    def formatwarning(message, category, filename, lineno, line=None):
        if category is UserWarning:
            return f"warning: {printable(str(message))}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = formatwarning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # and not closed
            stream.reconfigure(errors="backslashreplace")
    with contextlib.redirect_stderr(_Lasting(sys.stderr, "")), contextlib.redirect_stdout(_Lasting(sys.stdout, note)):
        try:
            yield
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            raise SystemExit(130) from None
        finally:
            warnings.formatwarning = usual
            sys.stdout.flush()
            sys.stderr.flush()


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the status that a script's `main` returns; a UserError, or a file that cannot be read or
    written, ends it with one line and 2."""
    with command_line():
        try:
            sys.exit(main())
        except UserError as error:
            message = str(error)
        except OSError as error:
            if not error.filename:
                raise
            message = f"{error.filename}: {error.strerror}"
        print(f"error: {printable(message)}", file=sys.stderr)
        sys.exit(2)
