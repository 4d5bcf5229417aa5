"""What a run carries from session to session beside its arrays: how far it is, what it has measured, and where."""

import dataclasses
import math
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from plstm.config import LoopConfig
from plstm.errors import UserError
from plstm.training.tracking import named_values

Found = dict[str, dict[str, float]]  # split -> metric -> value


@dataclass
class RunState:
    """The JSON part of a checkpoint. A session is one process's work on the run, from its start to its end."""

    steps: int  # the last one: as planned, or earlier where loop.stop_at was reached
    sizes: dict[str, int]  # of the model, see `Task.sizes`
    class_names: list[str]
    step: int = 0  # taken
    evaluated: int = 0  # the last step at which the run was evaluated
    best: dict[str, Any] | None = None  # {"step": n, split: {metric: value}} of the best evaluation
    final: Found | None = None  # of loop.final_splits at the run's end
    seconds: float = 0.0  # of all sessions, up to the last checkpoint
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    sessions: list[dict[str, Any]] = field(default_factory=list)  # {"since": step, "environment": ...} at each change
    averages: dict[str, Any] = field(default_factory=dict)  # `MetricAverager.state`
    lines: list[dict[str, Any]] = field(default_factory=list)  # of metrics.jsonl

    @classmethod
    def from_json(cls, saved: dict[str, Any], folder: Path) -> Self:
        """What `to_json` gave. Raises UserError naming the run's folder where other code has saved it."""
        names = {each.name for each in dataclasses.fields(cls)}
        if missing := sorted(names - saved.keys()):
            why = f"its checkpoints are of other code, without {missing[0]}"
            raise UserError(f"{folder}: {why}; remove the folder to train the run anew")
        return cls(**{name: saved[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """A copy of its own, as checkpoints are written in the background."""
        return vars(self) | {"sessions": [*self.sessions], "lines": [*self.lines]}

    def begin_session(self, environment: dict[str, Any]) -> None:
        if not self.sessions or self.environment != environment:
            self.sessions.append({"since": self.step, "environment": environment})

    def add_evaluation(self, found: Found, loop: LoopConfig, metric: str) -> None:
        """Notes an evaluation at this step: whether it is the best, and whether it ends the run."""
        self.evaluated = self.step
        if self._is_best(found, loop, metric):
            self.best = {"step": self.step, **found}
        reached = found.get(loop.eval_splits[0], {}).get(metric, -math.inf)
        if loop.stop_at is not None and reached >= loop.stop_at:
            self.steps = self.step

    def summary(self, metric: str) -> dict[str, float]:
        """W&B's summary of the run: the last value of each metric, those of `metric` at the end, speed and time."""
        values: dict[str, float] = {}
        for line in self.lines:
            values |= named_values(line)
        final = {f"final/{split}/{metric}": found[metric] for split, found in (self.final or {}).items()}
        speeds = [line["examples_per_second"] for line in self.lines if "examples_per_second" in line]
        speed = {"examples_per_second": statistics.median(speeds)} if speeds else {}
        return values | final | speed | {"wall_seconds": self.seconds}

    def _is_best(self, found: Found, loop: LoopConfig, metric: str) -> bool:
        """Ties are broken by loop.best_tie."""
        if loop.best_split is None or self.best is None:
            return loop.best_split is not None
        new = found[loop.best_split][metric]
        old = self.best[loop.best_split][metric]
        return new > old or (new == old and loop.best_tie == "latest")

    @property
    def environment(self) -> dict[str, Any]:
        """Of the session under way."""
        return self.sessions[-1]["environment"]

    @property
    def earlier(self) -> list[dict[str, Any]]:
        """The environments of earlier sessions, each {"until": its last step, **environment}."""
        return [{"until": after["since"], **session["environment"]} for session, after in pairwise(self.sessions)]
