"""What a run shows while it trains: a live bar in a terminal, plain lines in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text


class Progress:
    """Shows the steps, the latest values and the time left; use it as a context manager.

    In a terminal this is one live bar. Elsewhere it is a plain line for the first update, the last step, and in between
    at most one every `every_seconds`.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        description: str = "",
        unit: str = "examples",
        every_seconds: float = 30.0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """start_step: where a resumed run starts. unit: plural name of an example. A quiet console shows nothing."""
        self._total, self._unit, self._every = total_steps, unit, every_seconds
        self._console, self._clock = console or Console(), clock
        self._first: tuple[int, float] | None = None  # step and time of the first update; the rate is measured from it
        self._next_line = 0.0
        self._is_live = _is_live(self._console)
        name, values = (TextColumn(f"{{task.{part}}}", markup=False) for part in ("description", "fields[text]"))
        self._bar = RichProgress(name, BarColumn(), values, console=self._console, disable=not self._is_live)
        text = f"step {start_step:,}/{total_steps:,}"
        self._task = self._bar.add_task(description, total=total_steps, completed=start_step, text=text)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Shows that `step` steps are done, and any values, "epoch" and "examples_per_second" among them."""
        now = self._clock()
        if self._first is None:
            # The steps before the first update include compilation, so they say nothing about the time left.
            self._first, self._next_line = (step, now), now
        parts = [self._format(name, value) for name, value in values.items()]
        text = "  ".join([f"step {step:,}/{self._total:,}", *parts, f"eta {self._time_left(step, now)}"])
        if self._is_live:
            self._bar.update(self._task, completed=step, text=text)
        elif now >= self._next_line or step >= self._total:
            self._next_line = now + self._every
            self.message(text)

    def message(self, text: str) -> None:
        """Prints a line of its own: above the bar in a terminal."""
        _print_plain(self._console, text)

    def _format(self, name: str, value: float) -> str:
        if name == "examples_per_second":
            return f"{value:,.0f} {self._unit}/s"
        return f"{name} {value:.2f}" if name == "epoch" else f"{name} {value:.4g}"

    def _time_left(self, step: int, now: float) -> str:
        first_step, first_time = self._first
        if step >= self._total:
            return "00:00:00"
        if step <= first_step:
            return "--:--:--"
        seconds = round((now - first_time) / (step - first_step) * (self._total - step))
        return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def banner(title: str, rows: list[tuple[str, str]], console: Console | None = None) -> None:
    """Prints what is about to run: a panel in a terminal, aligned plain lines elsewhere."""
    console = console or Console()
    if _is_live(console):
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name, style="bold"), Text(value))
        console.print(Panel(table, title=Text(title), title_align="left", expand=False))
    else:
        width = max((len(name) for name, _ in rows), default=0)
        _print_plain(console, "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)]))


def _is_live(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _print_plain(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
