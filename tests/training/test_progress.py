"""The plain and the live form of progress and banner."""

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


def make(total: int, console: Console, start: int = 0, clock: Clock | None = None) -> Progress:
    return Progress(total, start, "arrow [pLSTM]", "images", console, clock or Clock())


def test_plain_line_shows_step_values_and_time_left():
    console, clock = plain_console(), Clock()
    with make(3000, console, clock=clock) as progress:
        progress.update(1100, VALUES)
        clock.now += 30
        progress.update(1200, {"gate_norm": 0.000123456})
        progress.update(3000, {})
    # 100 steps took 30 seconds, so the other 1,800 take 540; the narrow console does not break the line.
    assert console.file.getvalue().splitlines() == [
        "step 1,100/3,000  epoch 1.54  loss 0.4123  accuracy 0.8111  3,210 images/s  eta -:--:--",
        "step 1,200/3,000  gate_norm 0.0001235  eta 0:09:00",
        "step 3,000/3,000  eta 0:00:00",
    ]


def test_plain_lines_come_at_most_every_so_often_and_for_the_last_step():
    console, clock = plain_console(), Clock()
    with make(100, console, start=10, clock=clock) as progress:
        for step in range(11, 101):
            progress.update(step, {"loss": 1.0})
            clock.now += 1.0
    steps = [line.split()[1] for line in console.file.getvalue().splitlines()]
    assert steps == ["11/100", "41/100", "71/100", "100/100"]


@pytest.mark.parametrize("make_console", [plain_console, live_console])
def test_messages_are_printed_as_they_are(make_console):
    console = make_console()
    text = "saved [bold] outputs/arrow/abc123/checkpoints/1200 :smile: and more text than a narrow line holds"
    with make(10, console) as progress:
        progress.message(text)
    assert text in console.file.getvalue()


def test_live_bar_shows_the_same_values_and_stops_on_errors():
    console = live_console()
    progress = make(3000, console, start=1000)
    with pytest.raises(RuntimeError), progress:
        progress.update(1200, VALUES)
        raise RuntimeError
    shown = console.file.getvalue()
    assert "arrow [pLSTM]" in shown
    assert "step 1,200/3,000  epoch 1.54  loss 0.4123  accuracy 0.8111  3,210 images/s" in shown
    # The cursor, hidden while the bar is live, is shown again.
    assert shown.rstrip().rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def test_quiet_console_shows_nothing():
    file = io.StringIO()
    console = Console(file=file, quiet=True)
    banner("title", [("devices", "1")], console)
    with make(2, console) as progress:
        progress.update(2, {})
        progress.message("text")
    assert file.getvalue() == ""


def test_banner_is_aligned_lines():
    console = plain_console()
    long = "128 = 1 device x 128 images, which is more than this console's width"
    rows = [("devices", "1 x cpu [0]"), ("global batch", long)]
    banner("arrow [s43]", rows, console)
    assert console.file.getvalue().splitlines() == [
        "arrow [s43]",
        "  devices       1 x cpu [0]",
        "  global batch  " + long,
    ]
