"""What a Hydra sweep prints at its end: means over runs that are to be read together, such as the folds of a seed."""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback

from plstm.results.records import PRIMARY_METRIC, Record, value_at


class SweepSummary(Callback):
    """A line for each group of several jobs that differ in exactly the keys `over`: means ± sample deviations."""

    def __init__(self, over: Sequence[str], split: str = "test", metric: str = PRIMARY_METRIC) -> None:
        self.over, self.split, self.metric = tuple(over), split, metric
        self.records: list[Record] = []

    def on_job_end(self, config: Any, job_return: JobReturn, **kwargs: Any) -> None:
        if job_return.status is JobStatus.COMPLETED and isinstance(job_return.return_value, Record):
            self.records.append(job_return.return_value)

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        groups: dict[str, list[Record]] = {}
        for record in self.records:
            groups.setdefault(self._rest(record), []).append(record)
        for runs in groups.values():
            if len(runs) > 1:
                print(self._line(runs), flush=True)

    def _rest(self, record: Record) -> str:
        """All of the config but the keys `over`, as text."""
        config = json.loads(json.dumps(record.config))
        for key in self.over:
            group, _, leaf = key.rpartition(".")
            (value_at(config, group, {}) if group else config).pop(leaf, None)
        return json.dumps(config, sort_keys=True)

    def _line(self, runs: list[Record]) -> str:
        name = value_at(runs[0].config, "data.name")
        what = [runs[0].experiment, *[name] * bool(name), f"seed {runs[0].seed}"]
        shown = ("experiment=", "seed=", "data.name=", *(f"{key}=" for key in self.over))
        what += [override for override in runs[0].overrides if not override.startswith(shown)]
        figures = []
        for at, words in (("best", "the best epoch"), ("last", "the last")):
            values = [(run.metrics[at] or {}).get(self.split, {}).get(self.metric) for run in runs]
            if None not in values:
                figures.append(f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f} at {words}")
        figures = ", ".join(figures) or "unknown"
        return f"{', '.join(what)}: {self.split} {self.metric} over {len(runs)} runs {figures}"
