"""Signals as a request to stop after the current step, so that nothing is lost."""

import os
import signal
import threading
from typing import Self

STOPS = (signal.SIGTERM, signal.SIGINT)


class Interrupt:
    """A context manager within which SIGTERM and SIGINT stop a run, with one line and exit status 128 + their number.

    They stop it at once, even during a compilation, but after `wait_for_saving` the first of them sets `signal_number`,
    and a second SIGINT ends the run. SIGUSR2 sets it, too, if something handles it: submitit has Slurm send it when a
    job's time is nearly up, and queues the job again when the signal is raised once more, after saving.
    """

    def __init__(self):
        self.signal_number: int | None = None
        self._at_once, self._message = True, "nothing to save yet"
        self._leaving = threading.Lock()

    def __enter__(self) -> Self:
        handlers = {number: signal.getsignal(number) for number in (*STOPS, signal.SIGUSR2)}
        self._before = {n: handler for n, handler in handlers.items() if n in STOPS or callable(handler)}
        for number in self._before:
            signal.signal(number, self._request)
        # Python calls handlers only when the main thread returns from C++; a thread reads the signal's number at once.
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writer)  # which ends the thread
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait_for_saving(self) -> None:
        """There is something to save."""
        self._at_once = False

    def leave_at_once(self, message: str) -> None:
        """Everything is on disk: a signal, also one that came before, ends the process with a line on `message`."""
        self._at_once, self._message = True, message
        self._leave(self.signal_number)

    def _request(self, number: int, _frame) -> None:
        self.signal_number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _watch(self, reader: int) -> None:
        while number := os.read(reader, 1):
            self._leave(number[0])
        os.close(reader)

    def _leave(self, number: int | None) -> None:
        if self._at_once and number in STOPS:
            self._leaving.acquire()  # one line, whichever thread comes first
            print(f"stopped by signal {number}, {self._message}", flush=True)
            os._exit(128 + number)  # the main thread may be busy, and the files are whole at any moment
