"""SIGTERM and SIGINT as a request to stop at the next step, so that nothing is lost."""

from __future__ import annotations

import signal


class Interrupt:
    """A context manager within which the first SIGTERM or SIGINT sets `signal_number`; a second SIGINT ends it."""

    def __init__(self):
        self.signal_number: int | None = None
        self._previous = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, _frame) -> None:
        self.signal_number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
