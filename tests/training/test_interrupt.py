"""Signals are requests; afterwards they mean what they meant before."""

from __future__ import annotations

import signal

import pytest

from plstm.training.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_request(number):
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        assert interrupt.signal_number is None
        signal.raise_signal(number)
        assert interrupt.signal_number == number
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_ends_it():
    with pytest.raises(KeyboardInterrupt), Interrupt():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_the_signal_of_a_launcher_is_its_own_again_after_saving(monkeypatch):
    heard = []
    previous = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGUSR2)
            assert interrupt.signal_number == signal.SIGUSR2 and not heard
        signal.raise_signal(signal.SIGUSR2)
        assert heard == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, previous)


def test_without_a_launcher_that_signal_is_left_alone():
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    with Interrupt():
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
