"""What a Hydra sweep prints at its end: means over runs that are to be read together, such as the folds of a seed."""

import copy
import json
import statistics
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback

from plstm.runs.identity import drop
from plstm.studies.records import PRIMARY_METRIC, Record, value_at


class SweepSummary(Callback):
    """A line for each group of several jobs that differ in exactly the keys `over`: means ± sample deviations."""

    def __init__(self, over: Sequence[str]) -> None:
        self.over = tuple(over)
        self.groups: dict[str, list[Record]] = {}  # by all of the config but the keys `over`

    def on_job_end(self, config: Any, job_return: JobReturn, **kwargs: Any) -> None:
        if job_return.status is JobStatus.COMPLETED and isinstance(record := job_return.return_value, Record):
            rest = copy.deepcopy(record.config)
            for key in self.over:
                drop(rest, key)
            self.groups.setdefault(json.dumps(rest, sort_keys=True), []).append(record)

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        for runs in (runs for runs in self.groups.values() if len(runs) > 1):
            name = value_at(runs[0].config, "data.name")
            what = [runs[0].experiment, *[name] * bool(name), f"seed {runs[0].seed}"]
            shown = ("experiment=", "seed=", "data.name=", *(f"{key}=" for key in self.over))
            what += [override for override in runs[0].overrides if not override.startswith(shown)]
            found = []
            for at, words in (("best", "the best epoch"), ("last", "the last")):
                values = [run.metric("test", at=at) for run in runs]
                if None not in values:
                    found.append(f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f} at {words}")
            over = f"test {PRIMARY_METRIC} over {len(runs)} runs"
            print(f"{', '.join(what)}: {over} {', '.join(found) or 'unknown'}", flush=True)
