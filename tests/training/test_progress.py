"""The plain and the live form of progress and banner."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from plstm.training.progress import Progress, banner

VALUES = {"epoch": 1.5378, "loss": 0.4123, "accuracy": 0.8111, "examples_per_second": 3210.4}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def live_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=140, legacy_windows=False, _environ={"TERM": "xterm"})


def test_plain_line_shows_step_values_and_time_left():
    console, clock = plain_console(), Clock()
    with Progress(3000, unit="images", console=console, clock=clock) as progress:
        progress.update(1100, VALUES)
        clock.now += 30
        progress.update(1200, VALUES)
    # 100 steps took 30 seconds, so the other 1,800 take 540; the narrow console does not break the line.
    assert console.file.getvalue().splitlines() == [
        "step 1,100/3,000  epoch 1.54  loss 0.4123  accuracy 0.8111  3,210 images/s  eta --:--:--",
        "step 1,200/3,000  epoch 1.54  loss 0.4123  accuracy 0.8111  3,210 images/s  eta 00:09:00",
    ]


def test_plain_lines_come_at_most_every_so_often_and_for_the_last_step():
    console, clock = plain_console(), Clock()
    with Progress(100, start_step=10, every_seconds=30, console=console, clock=clock) as progress:
        for step in range(11, 101):
            progress.update(step, {"loss": 1.0})
            clock.now += 1.0
    steps = [line.split()[1] for line in console.file.getvalue().splitlines()]
    assert steps == ["11/100", "41/100", "71/100", "100/100"]


def test_any_value_is_shown_and_the_time_left_in_hours():
    console, clock = plain_console(), Clock()
    progress = Progress(1_000_000, every_seconds=0, console=console, clock=clock)
    progress.update(0, {})
    clock.now += 3600
    progress.update(10_000, {"gate_norm": 0.000123456})
    progress.update(1_000_000, {})
    assert console.file.getvalue().splitlines()[1:] == [
        "step 10,000/1,000,000  gate_norm 0.0001235  eta 99:00:00",
        "step 1,000,000/1,000,000  eta 00:00:00",
    ]


@pytest.mark.parametrize("make_console", [plain_console, live_console])
def test_messages_are_printed_as_they_are(make_console):
    console = make_console()
    text = "saved [bold] outputs/arrow/abc123/checkpoints/1200 :smile: and more text than a narrow line holds"
    with Progress(10, console=console) as progress:
        progress.message(text)
    assert text in console.file.getvalue()


def test_live_bar_shows_the_same_values_and_stops_on_errors():
    console = live_console()
    progress = Progress(3000, 1000, "arrow [pLSTM]", unit="graphs", console=console, clock=Clock())
    with pytest.raises(RuntimeError), progress:
        progress.update(1200, VALUES)
        raise RuntimeError
    shown = console.file.getvalue()
    assert "arrow [pLSTM]" in shown
    assert "step 1,200/3,000  epoch 1.54  loss 0.4123  accuracy 0.8111  3,210 graphs/s" in shown
    # The cursor, hidden while the bar is live, is shown again.
    assert shown.rstrip().rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def test_quiet_console_shows_nothing():
    file = io.StringIO()
    console = Console(file=file, quiet=True)
    banner("title", [("devices", "1")], console)
    with Progress(2, console=console) as progress:
        progress.update(2, {})
        progress.message("text")
    assert file.getvalue() == ""


def test_banner_is_aligned_lines_or_a_panel():
    console = plain_console()
    long = "128 = 1 device x 128 images, which is more than this console's width"
    rows = [("devices", "1 x cpu [0]"), ("global batch", long)]
    banner("arrow [s43]", rows, console)
    assert console.file.getvalue().splitlines() == [
        "arrow [s43]",
        "  devices       1 x cpu [0]",
        "  global batch  " + long,
    ]
    console = live_console()
    banner("arrow [s43]", rows, console)
    shown = console.file.getvalue()
    assert "arrow [s43]" in shown and "1 x cpu [0]" in shown and "╭" in shown
