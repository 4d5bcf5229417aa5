"""The commands list, sample and answer of data that are drawn: `python -m data.languages sample parity_check`."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.random import RandomState

from plstm.errors import UserError

MOST = {"length": 2048, "count": 10_000, "seed": 2**31 - 1}  # of what is sampled
# A character a token, for `Sampler.accepts`: more than any task has.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz" + "".join(map(chr, range(0x100, 0x180)))


@dataclass(frozen=True)
class Sampler:
    """A distribution over token rows of one length, and the answer to each row."""

    name: str
    vocabulary: int
    draw: Callable[[RandomState, int, int], np.ndarray]  # (rng, T, rows) -> tokens int8 [rows, T]
    answer: Callable[[np.ndarray], np.ndarray]  # tokens [rows, T] -> classes int8 [rows, L], -1 for none
    accepts: Callable[[str], Any]  # whether the task has a row, given as a character of DIGITS a token
    shortest: int = field(default=1, kw_only=True)  # T of which the task has rows


class Parser(argparse.ArgumentParser):
    """Ends bad arguments with one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the arguments)")


def run_commands(prog: str, description: str, tasks: Mapping[str, Sampler], describe: Callable[[Any], str]) -> None:
    """Runs the command line of a module of tasks; UserError for bad arguments."""
    parser = Parser(prog=f"python -m {prog}", description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the tasks")
    sample = commands.add_parser("sample", help="draw rows and print: tokens -> answer")
    answer = commands.add_parser("answer", help="print the answer to one row")
    for command in (sample, answer):
        command.add_argument("task", metavar="TASK")
    answer.add_argument("tokens", metavar="TOKEN", nargs="+")
    for option, usual, what in (("length", 10, "tokens of a row"), ("count", 5, "rows"), ("seed", 0, "of the draw")):
        sample.add_argument(f"--{option}", type=int, default=usual, help=f"{what} ({usual})")
    arguments = parser.parse_args()
    if arguments.command == "list":
        width = max(map(len, tasks))
        print("\n".join(f"{name:{width}}  {describe(task)}" for name, task in tasks.items()))
        return
    if arguments.task not in tasks:
        raise UserError(f"task {arguments.task}: choose one of {', '.join(tasks)}")
    task = tasks[arguments.task]
    if arguments.command == "answer":
        print(_text(task.answer(parse_row(task, arguments.tokens))[0]))
        return
    for option, most in MOST.items():
        least = {"length": task.shortest, "count": 1, "seed": 0}[option]
        value = getattr(arguments, option)
        if not least <= value <= most:
            raise UserError(f"--{option} {value}: must be from {least} to {most}")
    rows = task.draw(RandomState(arguments.seed), arguments.length, arguments.count)
    for row, classes in zip(rows, task.answer(rows), strict=True):
        print(_text(row), "->", _text(classes))


def parse_row(task: Sampler, tokens: Sequence[str]) -> np.ndarray:
    """Tokens as typed -> int8 [1, T]; UserError for a token or a row that the task does not have."""
    for token in tokens:
        if not token.isdecimal() or len(token) > 9 or int(token) >= task.vocabulary:
            raise UserError(f"token {token}: the tokens of {task.name} are 0 to {task.vocabulary - 1}")
    numbers = [int(token) for token in tokens]
    if not task.accepts("".join(DIGITS[number] for number in numbers)):
        raise UserError(f"tokens {' '.join(tokens)}: {task.name} has no such row of length {len(tokens)}")
    return np.array([numbers], np.int8)


def _text(row: np.ndarray) -> str:
    return " ".join("-" if token < 0 else str(token) for token in row.tolist())
