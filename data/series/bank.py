"""Synthetic series to train on, after KernelSynth and TiRex: a bank drawn once from a seed, and rows made from it."""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState
from scipy.linalg import toeplitz
from scipy.signal import lfilter

from data.series.scoring import HORIZONS, SEASONS, SeriesSet
from plstm.errors import UserError, damage_named
from plstm.files import data_root, locked, write_errors, write_file
from plstm.preprocessing import standardise

DRAWS = 8  # series of one Gaussian process
SHARES = (0.72, 0.25, 0.03)  # of Gaussian processes, autoregressions, chaotic maps and flows
LENGTH = 640  # usual points of a series
PERIODS = (4, 7, 10, 12, 24, 30, 48, 52, 96, 168)
MOST = 10.0  # standardised values are cut off there


# ---------------------------------------------------------------------- the bank
def load_bank(root: str | None, seed: int, count: int, length: int = LENGTH) -> np.ndarray:
    """float32 [count, length], drawn (10,000 of 640 points take a minute or two) and kept in the data root unless it is
    there."""
    own = "" if length == LENGTH else f"-{length}"
    path = data_root(root) / f"series-bank-{seed}-{count}{own}.npy"
    if not path.is_file():
        with write_errors(path), locked(path.with_name(".series-bank.lock")):
            if not path.is_file():  # another process may have drawn it meanwhile
                write_file(path, lambda file: np.save(file, draw_bank(seed, count, length)))
    remedy = "delete it to draw it again"
    with open(path, "rb") as file, damage_named(path, remedy):
        bank = np.lib.format.read_array(file)
    if bank.shape != (count, length) or bank.dtype != np.float32:
        raise UserError(f"{path}: damaged; {remedy}")
    return bank


def digest(bank: np.ndarray) -> str:
    """SHA-256. Another processor, or number of threads, rounds some values otherwise: another digest."""
    return hashlib.sha256(np.ascontiguousarray(bank).tobytes()).hexdigest()


def draw_bank(seed: int, count: int, length: int = LENGTH) -> np.ndarray:
    """Standardised series, float32 [count, length], in random order."""
    rng = RandomState(seed)
    kinds = (gaussian_process, autoregression, chaos)
    series = []
    for kind, share in zip(kinds, np.ceil(np.multiply(SHARES, count)), strict=True):
        own: list[np.ndarray] = []
        while len(own) < share:
            own += [values for values in kind(rng, length) if np.isfinite(values).all() and values.std() > 1e-6]
        series += own[: int(share)]
    bank = np.stack([standardise(series[number])[0] for number in rng.permutation(len(series))[:count]])
    return bank.clip(-MOST, MOST).astype(np.float32)


def gaussian_process(rng: RandomState, length: int) -> np.ndarray:
    """Draws [8, length] of a process whose kernel joins 1 to 5 drawn ones by + and x."""
    kernel = _kernel(rng, length)
    for _ in range(rng.randint(5)):
        other = _kernel(rng, length)
        kernel = kernel + other if rng.randint(2) else kernel * other
    factor = np.linalg.cholesky(kernel / np.mean(np.diag(kernel)) + 1e-6 * np.eye(length))
    return rng.standard_normal((DRAWS, length)) @ factor.T


def _kernel(rng: RandomState, length: int) -> np.ndarray:
    """[length, length], positive semi-definite, of points in [0, 1]."""
    x = np.arange(length) / length
    kind = rng.randint(7)
    if kind < 3:  # periodic: of any period, or twice of a calendar's
        period = np.exp(rng.uniform(np.log(4), np.log(length / 2))) if kind == 0 else rng.choice(PERIODS)
        of_lag = np.exp(-2 * np.square(np.sin(np.pi * length * x / period) / rng.choice((0.5, 1.0, 2.0))))
    elif kind == 3:
        of_lag = np.exp(-0.5 * np.square(x / rng.choice((0.02, 0.1, 1.0, 10.0))))
    elif kind == 4:
        alpha = rng.choice((0.1, 1.0, 10.0))
        of_lag = (1 + np.square(x) / (2 * alpha)) ** -alpha
    elif kind == 5:
        return np.square(rng.choice((0.0, 1.0, 10.0))) + x[:, None] * x
    else:
        of_lag = rng.choice((0.01, 0.1, 1.0)) * (x == 0)
    return toeplitz(of_lag)


def autoregression(rng: RandomState, length: int) -> np.ndarray:
    """[1, length]: order 1 to 3, stable, one in three integrated, with a season or without, and half with a break."""
    polynomial = np.ones(1)
    for reflection in rng.uniform(-0.95, 0.95, rng.randint(1, 4)):  # Levinson's steps keep it stable
        longer = np.append(polynomial, 0.0)
        polynomial = longer + reflection * longer[::-1]
    values = lfilter([1.0], polynomial, rng.standard_normal(length + 100))[100:]
    values = np.cumsum(values) if rng.randint(3) == 0 else values
    values = values / (values.std() + 1e-9)
    period = rng.randint(4, 169)
    season = np.resize(rng.standard_normal(period), length)
    values = values + rng.choice((0.0, 0.5, 1.0, 3.0)) * season
    level = rng.standard_normal() * 2 * rng.randint(2)
    return (values + level * (np.arange(length) >= rng.randint(length)))[None]


def chaos(rng: RandomState, length: int) -> np.ndarray:
    """[1, length] of a logistic map, or a coordinate of Lorenz's flow."""
    values = np.empty(length)
    if rng.randint(2):
        x = rng.uniform(0.1, 0.9)
        rate = rng.uniform(3.6, 4.0)
        for t in range(length):
            values[t] = x = rate * x * (1 - x)
        return values[None]
    point = rng.uniform(-10, 10, 3) + (0, 0, 25)
    every = rng.randint(2, 11)
    axis = rng.randint(3)
    for t in range(length * every):
        x, y, z = point
        point = point + 0.01 * np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
        values[t // every] = point[axis]
    return values[None]


def toy_sets() -> list[SeriesSet]:
    """Three small sets, for tests and debug=smoke: a day's shape with noise, daily noise, and months, one with gaps."""
    rng = RandomState(9)
    time = np.arange(600)
    hours = [np.sin(2 * np.pi * time / 24 + phase) + 0.3 * rng.standard_normal(600) for phase in (0, 2)]
    months = 5 + np.sin(2 * np.pi * time[:150] / 12) + 0.01 * time[:150]
    with_gaps = np.where(rng.rand(150) < 0.1, np.nan, 100 * months)
    frequencies = {"hours": "H", "days": "D", "months": "M"}
    series = {"hours": hours, "days": list(autoregression(rng, LENGTH)), "months": [months, with_gaps]}
    return [
        SeriesSet(name, frequency, series[name], SEASONS[frequency], HORIZONS[frequency])
        for name, frequency in frequencies.items()
    ]


# ---------------------------------------------------------------------- rows
class Rows(NamedTuple):
    values: np.ndarray  # float32 [rows, patches x patch], standardised by the visible ones
    visible: np.ndarray  # bool [rows, patches]: whether the model sees the patch


def draw_rows(bank: np.ndarray, rng: RandomState, rows: int, patches: int, patch: int) -> Rows:
    """Training rows: crops of one to three series mixed, changed, and hidden in part."""
    points = patches * patch
    crops = np.empty((rows, 3, points))
    for row, part in np.ndindex(rows, 3):
        series = bank[rng.randint(len(bank))]
        first = rng.randint(bank.shape[1] - points + 1)
        crops[row, part] = series[first : first + points]
    mixed = np.where(rng.rand(rows) < 0.5, 1, rng.randint(2, 4, rows))
    weights = rng.gamma(1.5, size=(rows, 3)) * (np.arange(3) < mixed[:, None])
    weights *= rng.choice((-1, 1), (rows, 1)) / weights.sum(1, keepdims=True)
    values = np.einsum("rk,rkt->rt", weights, crops)
    for row in values:
        _change(rng, row)
    visible = _visible(rng, rows, patches)
    seen = np.where(np.repeat(visible, patch, axis=1), values, np.nan)
    scaled = [(row - loc) / scale for row, (_, loc, scale) in zip(values, map(standardise, seen), strict=True)]
    return Rows(np.clip(scaled, -MOST, MOST).astype(np.float32), visible)


def _change(rng: RandomState, row: np.ndarray) -> None:
    """Changes a row in place: half of them in amplitude, three of ten cut off at a quantile, one of ten with spikes."""
    points = len(row)
    chances = rng.rand(3)
    if chances[0] < 0.5:
        places = np.sort(rng.randint(0, points, rng.randint(1, 4)))
        row *= np.interp(np.arange(points), [0, *places, points - 1], rng.uniform(0.25, 1.75, len(places) + 2))
    if chances[1] < 0.3:
        bound = np.quantile(row, rng.uniform(0.05, 0.95))
        np.copyto(row, np.maximum(row, bound) if rng.randint(2) else np.minimum(row, bound))
    if chances[2] < 0.1:
        period = rng.randint(8, 169)
        row[rng.randint(period) :: period] += rng.choice((-1, 1)) * rng.uniform(1, 4) * (row.std() + 1e-6)


def _visible(rng: RandomState, rows: int, patches: int) -> np.ndarray:
    """bool [rows, patches]: runs of 1 to 5 patches, which may join, are hidden, on average up to half of all; of every
    second row also the first ones, up to all but five, as those of a short series are."""
    length = rng.randint(1, 6, (rows, patches))
    share = rng.uniform(0, 0.5, (rows, 1))
    starts = rng.rand(rows, patches) < share / length
    visible = np.ones((rows, patches), bool)
    for shift in range(5):
        visible[:, shift:] &= ~(starts & (length > shift))[:, : max(patches - shift, 0)]
    first = rng.randint(0, max(patches - 4, 1), rows) * (rng.rand(rows) < 0.5)
    return visible & (np.arange(patches) >= first[:, None])
