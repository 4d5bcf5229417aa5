"""What a run carries from session to session beside its arrays: how far it is, what it has measured, and where."""

import dataclasses
import math
import statistics
from dataclasses import field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from annotated_types import Len
from pydantic import ConfigDict, Field, FiniteFloat, GetPydanticSchema, NonNegativeInt, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from plstm.config import LoopConfig
from plstm.errors import UserError, first_problem
from plstm.training.environment import Environment
from plstm.training.tracking import named_values

Found = dict[str, dict[str, int | float]]  # split -> metric -> value
Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")]


def _like(schema: Any) -> GetPydanticSchema:
    """What is checked of a dictionary; mypy does not know `extra_items`."""
    return GetPydanticSchema(lambda _, handler: handler(schema))


class Best(TypedDict, extra_items=dict[str, int | float]):  # type: ignore[call-arg]
    step: NonNegativeInt  # of the best evaluation; beside it by split its metrics


class EnvironmentSince(TypedDict):
    since: NonNegativeInt  # the step at which a process with another environment took the run over
    environment: Environment


class Line(TypedDict, extra_items=int | float | None):  # type: ignore[call-arg]
    step: NonNegativeInt
    epoch: float
    split: str


@dataclass(config=ConfigDict(strict=True))
class RunState:
    """The JSON part of a checkpoint."""

    steps: NonNegativeInt  # the last one: as planned, or earlier where loop.stop_at was reached
    sizes: dict[str, NonNegativeInt]  # of the model, see `Task.sizes`
    class_names: list[str]
    step: NonNegativeInt = 0  # taken
    evaluated: NonNegativeInt = 0  # the last step at which the run was evaluated
    best: Annotated[dict[str, Any], _like(Best)] | None = None
    final: Found | None = None  # of loop.final_splits at the run's end
    seconds: FiniteFloat = 0.0  # of all sessions, up to the last checkpoint
    started: Time = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    sessions: list[Annotated[dict[str, Any], _like(EnvironmentSince)]] = field(default_factory=list)
    averages: dict[str, Annotated[list[float], Len(2, 2)]] = field(default_factory=dict)  # `MetricAverager.state`
    lines: list[Annotated[dict[str, Any], _like(Line)]] = field(default_factory=list)

    @classmethod
    def from_json(cls, saved: dict[str, Any], folder: Path) -> Self:
        """What `to_json` gave. Raises UserError naming the run's folder and the field that is missing or wrong."""
        values: dict[str, Any] = {each.name: saved.get(each.name) for each in dataclasses.fields(cls)}
        try:
            return cls(**values)
        except ValidationError as error:
            why = f"its checkpoints are damaged or of other code ({first_problem(error)})"
            raise UserError(f"{folder}: {why}; remove the folder to train the run anew") from error

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
        values = found[loop.best_split][metric], self.best.get(loop.best_split, {}).get(metric, -math.inf)
        new, old = (-math.inf if math.isnan(value) else value for value in values)
        return new > old or (new == old and loop.best_tie == "latest")

    @property
    def environment(self) -> dict[str, Any]:
        """Of the session under way."""
        return self.sessions[-1]["environment"]

    @property
    def earlier(self) -> list[dict[str, Any]]:
        """The environments of earlier sessions, each {"until": its last step, **environment}."""
        return [{"until": after["since"], **session["environment"]} for session, after in pairwise(self.sessions)]
