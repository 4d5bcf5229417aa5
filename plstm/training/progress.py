"""What a run shows while it trains: a live bar in a terminal, plain lines in a log file."""

import math
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

EVERY_SECONDS = 30.0  # a plain line comes at most so often, but for the last step


class Progress(Bar):
    """Shows steps, values and the time left, live or in plain lines; `unit` is the plural name of an example."""

    def __init__(
        self, total: int, start: int, name: str, unit: str, console: Console, clock: Callable = time.monotonic
    ):
        self._unit, self._time_left, self._next_line = unit, TimeRemainingColumn(), -math.inf
        label, text = (TextColumn(f"{{task.{part}}}", markup=False) for part in ("description", "fields[text]"))
        columns = (label, BarColumn(), text, self._time_left)
        # The rate is measured from the first update on; the steps before it include compilation.
        hidden, whole = not console.is_terminal or console.is_dumb_terminal, math.inf
        super().__init__(*columns, console=console, disable=hidden, get_time=clock, speed_estimate_period=whole)
        self.add_task(name, total=total, completed=start, text="")

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Shows that `step` steps are done, and any values, "epoch" and "examples_per_second" among them."""
        (task,) = self.tasks
        shown = [f"step {step:,}/{task.total:,}"]
        for name, value in values.items():
            is_speed, digits = name == "examples_per_second", ".2f" if name == "epoch" else ".4g"
            shown.append(f"{value:,.0f} {self._unit}/s" if is_speed else f"{name} {value:{digits}}")
        text = "  ".join(shown)
        self.update(task.id, completed=step, text=text)
        if self.disable and (self.get_time() >= self._next_line or step >= task.total):
            self._next_line = self.get_time() + EVERY_SECONDS
            print_plain(self.console, f"{text}  eta {self._time_left.render(task)}")


def banner(title: str, rows: list[tuple[str, str]], console: Console) -> None:
    """Prints what is about to run, in aligned lines."""
    width = max(len(name) for name, _ in rows)
    print_plain(console, "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)]))


def print_plain(console: Console, text: str) -> None:
    """Prints a line as it is: above the bar in a terminal."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
