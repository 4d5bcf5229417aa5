"""How rows of a study differ set by set: ratios of errors of runs of the same seeds, which have the same batches."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from plstm.studies.definitions import Differences, TableDefinition
from plstm.studies.sweeps import Cell

CAPTION = """Ratios of errors: under 1, the model has the smaller ones. In brackets the 95% interval of a bootstrap over
the sets, which leaves out how much runs of other seeds would differ."""
DRAWS = 10_000  # of the bootstrap over sets


class Difference(NamedTuple):
    """A line of differences.csv."""

    row: str
    against: str
    metric: str
    ratio: float  # geometric mean over sets and shared seeds: under 1, the row has the smaller errors
    low: float  # 95% interval of a bootstrap over the sets
    high: float
    better: int  # sets on which the row has the smaller errors
    sets: int
    seeds: int


def render_differences(table: TableDefinition, cells: Sequence[Cell]) -> dict[str, str]:
    """differences.md and differences.csv; nothing while no two rows share a seed."""
    asked = table.differences
    found = [*_differences(asked, {cell.row.name: cell for cell in cells})] if asked else []
    if not found:
        return {}
    frame = pd.DataFrame(found)
    numbers = frame.map(lambda value: f"{value:.9g}" if isinstance(value, float) else value)
    head = ["Model", "Against", *(f"{metric.upper()}, ratio | Better on" for metric in asked.metrics), "Seeds"]
    lines = [head, ["---"] * (2 * len(asked.metrics) + 3)]
    for (row, against), part in frame.groupby(["row", "against"], sort=False):
        cells_of = [f"{d.ratio:.3f} [{d.low:.3f}, {d.high:.3f}] | {d.better} of {d.sets}" for d in part.itertuples()]
        lines.append([row, against, *cells_of, str(part["seeds"].iloc[0])])
    text = f"# {table.title}: differences\n\n{CAPTION}\n\n"
    text += "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    return {"differences.md": text, "differences.csv": numbers.to_csv(index=False, lineterminator="\n")}


def _differences(asked: Differences, cells: dict[str, Cell]) -> Iterator[Difference]:
    for against, *others in asked.groups:
        for row in others:
            ours, theirs = (
                {run.seed: run.metrics["last"][asked.split] for run in cells[n].runs} for n in (row, against)
            )
            seeds = sorted(ours.keys() & theirs.keys())
            for metric in asked.metrics if seeds else ():
                names = [name for name in ours[seeds[0]] if name.startswith(f"{metric}@")]
                names = [name for name in names if name.partition("@")[2] not in asked.leave_out]
                logs = np.mean([[np.log(ours[s][name] / theirs[s][name]) for name in names] for s in seeds], axis=0)
                yield Difference(row, against, metric, *_interval(logs), int((logs < 0).sum()), len(names), len(seeds))


def _interval(logs: np.ndarray) -> tuple[float, float, float]:
    """The exponential of the mean, and its 95% interval."""
    drawn = np.random.RandomState(0).randint(0, len(logs), (DRAWS, len(logs)))
    low, high = np.quantile(logs[drawn].mean(1), (0.025, 0.975))
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))
