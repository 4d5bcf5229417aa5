"""The means of the training metrics between two log lines, and the speed over them."""

from __future__ import annotations

import math
import time
from typing import Any

import jax

STEPS_IN_FLIGHT = 2  # how far the host may run ahead: enough to keep a device busy, few enough to stop soon
AVERAGED = ("loss", "accuracy")


class Window:
    """Collects the metrics of steps; `close` gives the means of loss and accuracy and the last value of the others.

    Its `state` is JSON, so that a resumed run writes the same line as one that was never stopped.
    """

    def __init__(self, state: dict[str, Any] | None = None):
        self._sums = dict(state or {"steps": 0, **{name: 0.0 for name in AVERAGED}})
        self._pending: list[dict[str, jax.Array]] = []
        self._clock: float | None = None  # runs from the first finished step, so without compilation
        self._timed_steps = 0

    def add(self, metrics: dict[str, jax.Array]) -> None:
        """Takes the metrics of one step, scalars that may still be in the making."""
        self._pending.append(metrics)
        if self._clock is None:
            jax.block_until_ready(metrics)
            self.restart_clock()
        else:
            self._timed_steps += 1
            if len(self._pending) > STEPS_IN_FLIGHT:
                jax.block_until_ready(self._pending[-1 - STEPS_IN_FLIGHT])

    def restart_clock(self) -> None:
        """Leaves the time since the last step, and the steps before it, out of the speed."""
        self._clock, self._timed_steps = time.monotonic(), 0

    def state(self) -> dict[str, Any]:
        """The sums so far, as JSON."""
        self._drain()
        return dict(self._sums)

    def first_not_finite(self, names: tuple[str, ...]) -> str | None:
        """Which of these metrics was the first that was not finite, in the steps whose metrics are still to be used."""
        for metrics in jax.device_get(self._pending):
            for name in names:
                if not math.isfinite(metrics[name]):
                    return name
        return None

    def close(self, batch_size: int) -> dict[str, float]:
        """Returns the metrics of the steps since the last call, and images_per_second where it is known."""
        values = self._drain()
        values |= {name: self._sums[name] / self._sums["steps"] for name in AVERAGED}
        self._sums = {"steps": 0, **{name: 0.0 for name in AVERAGED}}
        if self._timed_steps:
            values["images_per_second"] = self._timed_steps * batch_size / (time.monotonic() - self._clock)
        self.restart_clock()
        return values

    def _drain(self) -> dict[str, float]:
        last = {}
        for last in jax.device_get(self._pending):
            self._sums["steps"] += 1
            for name in AVERAGED:
                self._sums[name] += float(last[name])
        self._pending = []
        return {name: float(value) for name, value in last.items()}
