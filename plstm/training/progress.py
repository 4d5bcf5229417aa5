"""What a run shows while it trains: a live bar in a terminal, plain lines in a log file."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

EVERY_SECONDS = 30.0  # a plain line comes at most so often, but for the last step


class Progress:
    """Shows the steps, the latest values and the time left, in a live bar or in plain lines; a context manager.

    `unit` is the plural name of an example.
    """

    def __init__(
        self,
        total: int,
        start: int,
        name: str,
        unit: str,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._unit, self._console, self._clock = total, unit, console, clock
        label, text = (TextColumn(f"{{task.{part}}}", markup=False) for part in ("description", "fields[text]"))
        self._time_left, self._next_line = TimeRemainingColumn(), -math.inf
        columns = (label, BarColumn(), text, self._time_left)
        # The rate is measured from the first update on; the steps before it include compilation.
        hidden, whole = not console.is_terminal or console.is_dumb_terminal, math.inf
        self._bar = Bar(*columns, console=console, disable=hidden, get_time=clock, speed_estimate_period=whole)
        self._task = self._bar.add_task(name, total=total, completed=start, text="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Shows that `step` steps are done, and any values, "epoch" and "examples_per_second" among them."""
        text = "  ".join([f"step {step:,}/{self._total:,}", *(self._format(*value) for value in values.items())])
        self._bar.update(self._task, completed=step, text=text)
        if self._bar.disable and (self._clock() >= self._next_line or step >= self._total):
            self._next_line = self._clock() + EVERY_SECONDS
            self.message(f"{text}  eta {self._time_left.render(self._bar.tasks[0])}")

    def message(self, text: str) -> None:
        """Prints a line of its own: above the bar in a terminal."""
        _print_plain(self._console, text)

    def _format(self, name: str, value: float) -> str:
        if name == "examples_per_second":
            return f"{value:,.0f} {self._unit}/s"
        return f"{name} {value:.2f}" if name == "epoch" else f"{name} {value:.4g}"


def banner(title: str, rows: list[tuple[str, str]], console: Console) -> None:
    """Prints what is about to run, in aligned lines."""
    width = max(len(name) for name, _ in rows)
    _print_plain(console, "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)]))


def _print_plain(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
