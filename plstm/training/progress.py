"""What a run shows while it trains: a live bar in a terminal, plain lines in a log file, with averaged metrics."""

import math
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

from plstm.training.steps import StepMetrics

STEPS_IN_FLIGHT = 2  # how far the host may run ahead: enough to keep a device busy, few enough to stop soon
BAR_WIDTH = 16  # characters
LONGEST_TIME = "0:00:00"
COMPILING = "compiling the training step"
MOST_WAITING = 0.2  # share of the training time; more is reported, once ...
LONG_ENOUGH = 60.0  # ... and after so many seconds of training
EVERY_SECONDS = 30.0  # between two plain lines at least, but for that of the last step


class Progress(Bar):
    """Shows steps, values and the time left, live or in plain lines; `unit` is the plural name of an example."""

    def __init__(
        self,
        total: int,
        start: int,
        name: str,
        unit: str,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total = total
        self._name = name
        self._unit = unit
        self._time_left = TimeRemainingColumn()
        self._next_line = -math.inf
        label = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        # `show` leaves out what does not fit; this is for terminals that become narrower.
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        text = TextColumn("{task.fields[text]}", markup=False, table_column=rest)
        columns = (label, BarColumn(BAR_WIDTH), text, self._time_left)
        # The rate is measured from the first update on; the steps before it include compilation.
        hidden = not console.is_terminal or console.is_dumb_terminal
        super().__init__(
            *columns, console=console, disable=hidden, get_time=clock, speed_estimate_period=math.inf, expand=True
        )
        self.add_task(name, total=total, completed=start, text=COMPILING)
        if hidden and start < total:
            print_plain(console, f"{name}: {COMPILING}")

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Shows that `step` steps are done, and the values; a terminal shows as many as its width takes, in order."""
        (task,) = self.tasks
        shown = [f"{step:,}/{self._total:,}"]
        for name, value in values.items():
            if name == "examples_per_second":
                shown.append(f"{value:,.0f} {self._unit}/s")
            else:
                shown.append(f"{name} {value:{'.2f' if name == 'epoch' else '.4g'}}")
        width = self.console.width - len(f"{self._name} {LONGEST_TIME} ") - BAR_WIDTH - 1
        while not self.disable and len(shown) > 1 and len("  ".join(shown)) > width:
            shown.pop()
        text = "  ".join(shown)
        self.update(task.id, completed=step, text=text)
        if self.disable and (self.get_time() >= self._next_line or step >= self._total):
            self._next_line = self.get_time() + EVERY_SECONDS
            print_plain(self.console, f"{self._name}: {text}  eta {self._time_left.render(task)}")


def banner(title: str, rows: list[tuple[str, str]], console: Console) -> None:
    """Prints names and values in two columns; long values are folded."""
    indent = max(len(name) for name, _ in rows) + 4
    lines = [title]
    for name, value in rows:
        width = max(console.width - indent, 20)
        first, *more = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False)
        lines += [f"  {name}".ljust(indent) + first, *(" " * indent + line for line in more)]
    print_plain(console, "\n".join(lines))


def print_plain(console: Console, text: str) -> None:
    """Prints a line as it is: above the bar in a terminal."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


class MetricAverager:
    """Averages metrics over steps; with its `state`, JSON, a resumed run logs the same as one never stopped."""

    def __init__(self, state: dict[str, Any] | None = None):
        self._sums = dict(state or {})  # name -> [sum, count]
        self._pending: list[StepMetrics] = []
        self._clock: float | None = None  # starts when the first step has finished, so it leaves out compilation
        self._timed_steps = 0
        self._waiting = 0.0  # seconds since the first step
        self._training = 0.0  # likewise
        self._reported = False

    def fetch(self, batches: Iterator[Any]) -> Any:
        """The next batch. Counts the time as waiting where the device has finished all steps before it is there."""
        start = time.monotonic()
        batch = next(batches)
        if self._clock is not None and all(leaf.is_ready() for leaf in jax.tree.leaves(self._pending[-1:])):
            self._waiting += time.monotonic() - start
        return batch

    def waited(self) -> float | None:
        """The share of the training time spent waiting for batches, up to the last `close`; None unless it is too high,
        and after the first time."""
        if self._reported or self._training < LONG_ENOUGH or self._waiting <= MOST_WAITING * self._training:
            return None
        self._reported = True
        return self._waiting / self._training

    def add(self, metrics: StepMetrics) -> None:
        """Adds one step, whose metrics may still be being computed; waits until at most STEPS_IN_FLIGHT are."""
        self._pending.append(metrics)
        if self._clock is None:
            jax.block_until_ready(metrics)
            self.restart_clock()
            return
        self._timed_steps += 1
        if len(self._pending) > STEPS_IN_FLIGHT:
            jax.block_until_ready(self._pending[-1 - STEPS_IN_FLIGHT])

    def restart_clock(self) -> None:
        """Leaves out of the speed the time since the last step, of an evaluation or a save."""
        self._clock = time.monotonic()
        self._timed_steps = 0

    def state(self) -> dict[str, Any]:
        self._drain()
        return dict(self._sums)

    def first_not_finite(self, names: tuple[str, ...]) -> str | None:
        """The first of these metrics that was not finite, in the steps since the last `state` or `close`."""
        steps = jax.device_get(self._pending)
        values = [{name: total for name, (total, _) in step.averaged.items()} | step.latest for step in steps]
        return next((name for step in values for name in names if not math.isfinite(step[name])), None)

    def close(self, examples_per_step: float) -> dict[str, float]:
        """Returns the metrics of the steps since the last call, and "examples_per_second" where it is known."""
        latest = self._drain()
        values = {name: total / count if count else math.nan for name, (total, count) in self._sums.items()} | latest
        self._sums = {}
        if self._clock is not None and self._timed_steps:
            seconds = time.monotonic() - self._clock
            values["examples_per_second"] = self._timed_steps * examples_per_step / seconds
            self._training += seconds
        self.restart_clock()
        return values

    def _drain(self) -> dict[str, float]:
        """Adds the pending steps to the sums; returns the latest values."""
        steps = jax.device_get(self._pending)
        self._pending = []
        for step in steps:
            for name, pair in step.averaged.items():
                before = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = [old + float(new) for old, new in zip(before, pair, strict=True)]
        return {name: float(value) for name, value in steps[-1].latest.items()} if steps else {}
