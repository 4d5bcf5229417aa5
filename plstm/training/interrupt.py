"""Signals as a request to stop at the next step, so that nothing is lost."""

from __future__ import annotations

import signal


class Interrupt:
    """A context manager within which the first SIGTERM or SIGINT sets `signal_number`; a second SIGINT ends it.

    SIGUSR2 does so, too, where someone waits for it: submitit has Slurm send it when a job's time is nearly up, and
    queues the job again when the signal is raised once more, after saving.
    """

    def __init__(self):
        self.signal_number: int | None = None
        self._previous = {}

    def __enter__(self) -> Interrupt:
        awaited = callable(signal.getsignal(signal.SIGUSR2))
        for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGUSR2] if awaited else [])):
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, _frame) -> None:
        self.signal_number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
