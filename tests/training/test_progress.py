"""The plain and the live form of progress and banner."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from plstm.training.progress import Progress, banner, print_plain

VALUES = {"loss": 0.4123, "accuracy": 0.8111, "examples_per_second": 3210.4, "epoch": 1.5378}
SHOWN = "loss 0.4123  accuracy 0.8111  3,210 images/s  epoch 1.54"


def plain_console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=width)


def make(total: int, console: Console, start: int = 0, clock=lambda: 100.0) -> Progress:
    return Progress(total, start, "arrow [pLSTM]", "images", console, clock)


def test_plain_line_shows_steps_all_values_and_the_time_left():
    console, clock = plain_console(), SimpleNamespace(now=100.0)
    with make(3000, console, clock=lambda: clock.now) as progress:
        progress.show(1100, VALUES)
        clock.now += 30
        progress.show(1200, {"gate_norm": 0.000123456})
        progress.show(3000, {})
    # 100 steps took 30 seconds, so the other 1,800 take 540.
    assert console.file.getvalue().splitlines() == [
        "arrow [pLSTM]: compiling the training step",
        f"arrow [pLSTM]: 1,100/3,000  {SHOWN}  eta -:--:--",
        "arrow [pLSTM]: 1,200/3,000  gate_norm 0.0001235  eta 0:09:00",
        "arrow [pLSTM]: 3,000/3,000  eta 0:00:00",
    ]


def test_plain_lines_come_at_most_every_so_often_and_for_the_last_step():
    console, clock = plain_console(), SimpleNamespace(now=100.0)
    with make(100, console, start=10, clock=lambda: clock.now) as progress:
        for step in range(11, 101):
            progress.show(step, {"loss": 1.0})
            clock.now += 1.0
    steps = [line.split()[2] for line in console.file.getvalue().splitlines()[1:]]
    assert steps == ["11/100", "41/100", "71/100", "100/100"]


@pytest.mark.parametrize(("width", "values"), [(80, "loss 0.4123"), (140, SHOWN)])
def test_live_bar_shows_the_values_that_fit_and_stops_on_errors(width, values):
    live = dict(force_terminal=True, width=width, legacy_windows=False, _environ={"TERM": "xterm"})
    console, clock = Console(file=io.StringIO(), **live), SimpleNamespace(now=100.0)
    text = "saved [bold] outputs/checkpoints/1200 :smile: " + 9 * "more than a line holds "
    with pytest.raises(RuntimeError), make(3000, console, clock=lambda: clock.now) as progress:
        progress.refresh()
        assert "compiling the training step" in console.file.getvalue()
        progress.show(1100, VALUES)
        print_plain(console, text)
        clock.now += 30
        progress.show(1200, VALUES)
        progress.refresh()
        raise RuntimeError
    written = console.file.getvalue()
    # The cursor, hidden while the bar is live, is shown again.
    assert written.rstrip().rfind("\x1b[?25h") > written.rfind("\x1b[?25l") and text in written
    shown = Text.from_ansi(written).plain.splitlines()[-1]
    assert len(shown) <= width and shown.startswith("arrow [pLSTM] ━━━━━━") and shown.endswith(" 0:09:00")
    assert f"1,200/3,000  {values}" in shown and "…" not in shown


def test_banner_is_aligned_and_folded_and_a_quiet_console_shows_nothing():
    console, quiet = plain_console(40), Console(file=io.StringIO(), quiet=True)
    long = "128 = 1 device x 128 images, which is more than this console's width"
    for each in (console, quiet):
        banner("arrow [s43]", [("devices", "1 x cpu [0]"), ("global batch", long)], each)
    with make(2, quiet) as progress:
        progress.show(2, {})
    assert quiet.file.getvalue() == ""
    assert console.file.getvalue().splitlines() == [
        "arrow [s43]",
        "  devices       1 x cpu [0]",
        "  global batch  128 = 1 device x 128",
        "                images, which is more",
        "                than this console's",
        "                width",
    ]
