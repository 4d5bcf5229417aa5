"""Signals are requests; afterwards they mean what they meant before."""

import signal

import pytest

from plstm.training.processes import Interrupt
from tests.commands import begin, end


@pytest.fixture(autouse=True)
def heeded():
    """A hang-up counts, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_is_a_request_and_a_second_ctrl_c_ends_it(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupt() as interrupt:
        interrupt.save_before_leaving()
        assert interrupt.signal_number is None
        signal.raise_signal(number)
        assert interrupt.signal_number == number
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(number) is before


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert interrupt.signal_number is None
    finally:
        signal.signal(signal.SIGHUP, before)


NOTHING_TO_LOSE = """
import contextlib, hashlib, io, signal, sys
from plstm.training.processes import Interrupt
with Interrupt() as interrupt:
    if sys.argv[1] == "all saved":
        interrupt.save_before_leaving()
        signal.raise_signal(int(sys.argv[2]))
        assert interrupt.signal_number == int(sys.argv[2])
        interrupt.leave_at_once("saved")
    print("ready", flush=True)
    with contextlib.redirect_stdout(io.StringIO()):  # as while TFDS prepares images
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C without a look at signals, like a compilation
"""


@pytest.mark.parametrize(("when", "said"), [("at the start", "nothing to save yet"), ("all saved", "saved")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_with_nothing_to_lose_it_ends_the_process_at_once(when, said, number):
    process = begin("-c", NOTHING_TO_LOSE, when, int(number))
    if when == "at the start":
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    assert end(process, 128 + number, seconds=30)[0] == f"stopped by signal {int(number)}, {said}\n"


def test_the_signal_of_a_launcher_is_its_own_again_after_saving_and_without_one_left_alone():
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    with Interrupt():
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    heard = []
    signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGUSR2)
            assert interrupt.signal_number == signal.SIGUSR2 and not heard
        signal.raise_signal(signal.SIGUSR2)
        assert heard == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
