"""Signals as a request to stop at the next step, so that nothing is lost."""

from __future__ import annotations

import os
import signal
import threading

STOPS = (signal.SIGTERM, signal.SIGINT)


class Interrupt:
    """A context manager within which SIGTERM and SIGINT stop a run, with a line and exit status 128 + their number.

    While there is nothing to save, they do so at once, also in the midst of a compilation. After `wait_for_saving` the
    first of them sets `signal_number`, and a second SIGINT ends the run; after `leave_at_once` it is as at the start.

    SIGUSR2 sets `signal_number`, too, where someone waits for it: submitit has Slurm send it when a job's time is
    nearly up, and queues the job again when the signal is raised once more, after saving.
    """

    def __init__(self):
        self.signal_number: int | None = None
        self._at_once, self._message = True, "nothing to save yet"
        self._previous = {}
        self._leaving = threading.Lock()

    def __enter__(self) -> Interrupt:
        awaited = callable(signal.getsignal(signal.SIGUSR2))
        for number in (*STOPS, *([signal.SIGUSR2] if awaited else [])):
            self._previous[number] = signal.signal(number, self._request)
        # Python calls handlers when the main thread is back from C++; a thread reads of the signal right away.
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writer)  # which ends the thread
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def wait_for_saving(self) -> None:
        """From now on there is something to lose."""
        self._at_once = False

    def leave_at_once(self, message: str) -> None:
        """All is on disk. Ends the process here where a signal has come; `message` then follows in the line."""
        self._at_once, self._message = True, message
        if self.signal_number in STOPS:
            self._leave(self.signal_number)

    def _request(self, number: int, _frame) -> None:
        self.signal_number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _watch(self, reader: int) -> None:
        while number := os.read(reader, 1):
            if self._at_once and number[0] in STOPS:
                self._leave(number[0])
        os.close(reader)

    def _leave(self, number: int) -> None:
        self._leaving.acquire()  # one line, whichever thread comes first
        print(f"stopped by signal {number}, {self._message}", flush=True)
        os._exit(128 + number)  # the main thread may be busy, and every file is good at any moment
