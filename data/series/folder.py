"""A folder of one's own series, to train and test on instead of the synthetic bank and the packages':

train.npy                  numbers [series, points], none missing
test/NAME.FREQUENCY.csv    a line of names, then a column a series, oldest value first, such as test/sales.M.csv;
                           FREQUENCY is one of `SEASONS`, an empty cell is a gap
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import pandas as pd

from data.series.bank import MOST
from data.series.scoring import HORIZONS, SEASONS, SeriesSet, naive_scores, seasonal_error
from plstm.errors import UserError, damage_named, first_line
from plstm.preprocessing import standardise


def folder_digest(path: str | None) -> str:
    """SHA-256 of the folder's files, with their names, in their order: 16 hexadecimal digits. Raises UserError."""
    if path is None:
        raise UserError("data.path: name the folder of series, data.path=...")
    found = hashlib.sha256()
    file = folder = Path(path)
    try:
        for file in (folder / "train.npy", *sorted((folder / "test").glob("*.csv"))):
            found.update(os.fsencode(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n"))
    except OSError as error:
        raise UserError(f"data.path={path}: {file.name} cannot be read ({first_line(error)})") from error
    return found.hexdigest()[:16]


def load_train(path: str) -> np.ndarray:
    """The series of train.npy, standardised: float32 [series, points]. Raises UserError."""
    file = Path(path) / "train.npy"
    with damage_named(f"data.path={path}: train.npy", "save it with np.save"):
        series = np.asarray(np.load(file))
    is_numeric = series.ndim == 2 and len(series) and np.issubdtype(series.dtype, np.number)
    if not is_numeric or not np.isfinite(series).all():
        raise UserError(f"{file}: must have finite numbers [series, points], not {series.dtype} {list(series.shape)}")
    scaled = np.stack([standardise(row)[0] for row in series.astype(np.float64)])
    return scaled.clip(-MOST, MOST).astype(np.float32)


def load_test(path: str) -> list[SeriesSet]:
    """The sets of test/*.csv, by name. Raises UserError."""
    files = sorted((Path(path) / "test").glob("*.csv"))
    if not files:
        raise UserError(f"data.path={path}: has no test/NAME.FREQUENCY.csv")
    return [read_set(file) for file in files]


def read_set(file: Path) -> SeriesSet:
    """A CSV's set, whose name has the frequency, as others may differ in that alone. Raises UserError."""
    name, _, frequency = file.stem.rpartition(".")
    if not name or not name.isprintable() or frequency not in SEASONS:
        raise UserError(f"{file}: name it NAME.FREQUENCY.csv, with a frequency of {', '.join(SEASONS)}")
    try:
        # Without a header, as lines with more cells than names would otherwise be taken for an index.
        table = pd.read_csv(file, header=None, skip_blank_lines=False, dtype=str)
        columns = table.iloc[1:].astype(np.float64).to_numpy().T
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not a table of numbers ({first_line(error)})") from error
    horizon = HORIZONS[frequency]
    series = [column[: 1 + np.flatnonzero(~np.isnan(column)).max(initial=-1)] for column in columns]
    if np.isinf(columns).any() or min(map(len, series), default=0) <= horizon:
        raise UserError(
            f"{file}: each column must have more than {horizon} values, the horizon of {frequency}, all finite"
        )
    found = SeriesSet(file.stem, frequency, series, SEASONS[frequency], horizon)
    if not _has_scores(found):
        why = "its values are 0 there, do not change before, or are those of a season before"
        raise UserError(f"{file}: no forecast of its last {horizon} values can be scored, as {why}")
    return found


def _has_scores(series: SeriesSet) -> bool:
    """Whether a model's scores can be divided by the seasonal naive's."""
    pairs = list(series.pairs())
    changes = any(seasonal_error(context, series.season) > 0 for context, _ in pairs)
    return changes and any(np.nansum(np.abs(label)) > 0 for _, label in pairs) and min(naive_scores(series)) > 0
