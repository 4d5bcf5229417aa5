"""What a Hydra sweep prints at its end: means over runs that are to be read together, such as the folds of a seed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback

from plstm.results.records import PRIMARY_METRIC, Record, value_at


class SweepSummary(Callback):
    """Collects the records that the jobs return; `over` are the swept keys, such as data.fold, to average over."""

    def __init__(self, over: Sequence[str], split: str = "test", metric: str = PRIMARY_METRIC) -> None:
        self.over, self.split, self.metric = tuple(over), split, metric
        self.records: list[Record] = []

    def on_job_end(self, config: Any, job_return: JobReturn, **kwargs: Any) -> None:
        if job_return.status is JobStatus.COMPLETED and isinstance(job_return.return_value, Record):
            self.records.append(job_return.return_value)

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        for line in summarise(self.records, self.over, self.split, self.metric):
            print(line, flush=True)


def summarise(records: Iterable[Record], over: Sequence[str], split: str, metric: str = PRIMARY_METRIC) -> list[str]:
    """A line for each group of several runs that differ in exactly the keys `over`: means ± sample deviations."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(_without(record.config, over), []).append(record)
    return [_describe(runs, over, split, metric) for runs in groups.values() if len(runs) > 1]


def _without(config: dict[str, Any], keys: Sequence[str]) -> str:
    config = json.loads(json.dumps(config))
    for key in keys:
        group, _, leaf = key.rpartition(".")
        (value_at(config, group, {}) if group else config).pop(leaf, None)
    return json.dumps(config, sort_keys=True)


def _describe(runs: list[Record], over: Sequence[str], split: str, metric: str) -> str:
    shown = ("experiment=", "seed=", "data.name=", *(f"{key}=" for key in over))
    name = value_at(runs[0].config, "data.name")
    what = [runs[0].experiment, *[name] * bool(name), f"seed {runs[0].seed}"]
    what += [override for override in runs[0].overrides if not override.startswith(shown)]
    figures = []
    for at, words in (("best", "the best validation epoch"), ("last", "the last")):
        values = [(run.metrics[at] or {}).get(split, {}).get(metric) for run in runs]
        if None not in values:
            figures.append(f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f} at {words}")
    return f"{', '.join(what)}: {split} {metric} over {len(runs)} runs {', '.join(figures) or 'unknown'}"
