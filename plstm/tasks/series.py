"""Forecasting time series: train on synthetic ones, test on the real sets of `data.series`, which no training sees.

A training batch is a dictionary of NumPy arrays, values float32 [rows, data.points] and visible bool [rows, patches],
see `data.series.bank.Rows`. The model forecasts each patch from those before it. An evaluation batch, a row a window:

    values float32, known bool [rows, context]  the standardised end of the context, see `standardised_end`
    label float32, due bool [rows, horizon]     what follows, standardised alike, and whether it is known and scored
    loc, scale float32 [rows]                   value = loc + scale x standardised value
    mase_scale float32 [rows]                   scale over the seasonal error of the whole context; 0 where that is none
    size float32 [rows]                         the sum of the label's magnitudes
    group int32 [rows]                          the number of the window's set
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from flax import nnx
from omegaconf import MISSING

from data.series.bank import digest, draw_rows, load_bank, toy_sets
from data.series.folder import folder_digest, load_test, load_train
from data.series.packages import load_sets
from data.series.scoring import (
    HORIZONS,
    MEDIAN,
    Scores,
    SeriesSet,
    mean_ratios,
    naive_scores,
    pinball,
    seasonal_error,
)
from plstm.config import Config
from plstm.errors import UserError, require
from plstm.limits import Folder, Natural, OneOf, OnlyWith
from plstm.models.series import standardised_end
from plstm.tasks.base import MachineData
from plstm.tasks.streams import StreamTask, by_group, layer_kinds, row_batches
from plstm.training.steps import Batch, Metrics, Split

HORIZON = max(HORIZONS.values())
BATCH = 128  # windows of an evaluation batch


@dataclass
class SeriesData(MachineData):
    # Real sets of `test`; toy: three made-up ones; folder: one's own sets, and series to train on instead of the bank.
    name: Annotated[str, OneOf("packages", "toy", "folder")] = "packages"
    path: Annotated[Folder, OnlyWith("name", ("folder",))] | None = None  # of the folder, see data.series.folder
    # Synthetic series to train on.
    bank: Annotated[int, Interval(ge=1, le=1_000_000), OnlyWith("name", ("packages", "toy"))] = 10_000
    bank_seed: Annotated[Natural, OnlyWith("name", ("packages", "toy"))] = 0
    bank_points: Annotated[int, Interval(ge=HORIZON + 2, le=2**14)] = 640  # of each, also of `val`'s
    points: int = 576  # points of a training row
    eval_rows: Annotated[int, Interval(ge=1, le=4096)] = 256  # synthetic series of `val`, whose ends are forecast
    eval_seed: Natural = 1001  # of these
    digest: str = MISSING  # of a folder's series, from which it follows; otherwise empty


class SeriesTask(StreamTask):
    """Metrics of a split: loss, the mean pinball loss of standardised values; mase and wql (see `data.series.scoring`),
    geometric means over the sets of the ratio to the seasonal naive's, also by group; skill, 1 - wql; and mase@<set>,
    wql@<set> as they are. `val` is one set, whose season is not known."""

    data_schema = SeriesData
    unused_keys = ("workers",)
    inputs = "series"
    splits = ("val", "test")
    unit = "windows"
    primary_metric = "skill"
    losses = ("pinball",)

    @classmethod
    def check(cls, config: Config) -> None:
        model = config.model
        data = config.data
        most = data.bank_points
        fits = data.points % model.patch == 0 and model.patch < data.points <= most
        what = f"must be a multiple of model.patch={model.patch}, at least two of them and at most {most}"
        other = data.name == "folder" or data.eval_seed != data.bank_seed
        require(
            config,
            ("data.points", fits, what),
            ("data.eval_seed", other, "must differ from data.bank_seed"),
        )

    @classmethod
    def infer_data(cls, data: Any) -> Mapping[str, Any]:
        return {"digest": folder_digest(data.path) if data.name == "folder" else ""}

    @classmethod
    def name_parts(cls, config: Config) -> tuple[str, ...]:
        return (layer_kinds(config),)

    # ------------------------------------------------------------------ data
    @functools.cached_property
    def own_series(self) -> str:
        """The folder of one's own series. Raises UserError where it is not the run's."""
        self.check_data()
        return self.config.data.path

    @functools.cached_property
    def bank(self) -> np.ndarray:
        data = self.config.data
        if data.name != "folder":
            return load_bank(data.root, data.bank_seed, data.bank, data.bank_points)
        bank = load_train(self.own_series)
        if (points := bank.shape[1]) != data.bank_points:
            what = f"the series of data.path={data.path} have {points} points; set it to that, data.points to no more"
            raise UserError(f"data.bank_points={data.bank_points}: {what}")
        return bank

    @functools.cached_property
    def sets(self) -> list[SeriesSet]:
        data = self.config.data
        if data.name == "folder":
            return load_test(self.own_series)
        return toy_sets() if data.name == "toy" else load_sets(data.root)

    def describe_data(self) -> str:
        data = self.config.data
        windows = sum(len(each.series) * each.windows for each in self.sets)
        kind = "" if data.name == "folder" else "synthetic "
        bank = f"{len(self.bank):,} {kind}series ({digest(self.bank)[:8]}) train"
        return f"{bank}; {windows:,} windows of {len(self.sets)} sets test"

    def draw_batch(self, step: int) -> Batch:
        config = self.config
        rng = self.train_rng(step)
        patch = config.model.patch
        return draw_rows(self.bank, rng, config.optim.batch_size, config.data.points // patch, patch)._asdict()

    def split(self, name: str) -> "SeriesSplit":
        data = self.config.data
        sets = self.sets
        if name == "val":
            held_out = list(load_bank(data.root, data.eval_seed, data.eval_rows, data.bank_points).astype(np.float64))
            sets = [SeriesSet("synthetic", "", held_out, 1, HORIZON)]
        return SeriesSplit(sets, self.config.model.context)

    # ------------------------------------------------------------------ model
    def logits(self, model: Any, batch: Batch) -> jax.Array:
        """Quantiles of the standardised values, float32 [rows, 9, horizon]."""
        return model.ahead(batch["values"], batch["known"], HORIZON)

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The mean pinball loss of every patch after the first visible one, hidden or not."""
        values = batch["values"]
        visible = batch["visible"]
        patch = values.shape[1] // visible.shape[1]
        known = jnp.repeat(visible, patch, axis=1)
        forecast = model(values[:, :-patch], known[:, :-patch], key=key)
        targets = values.reshape(*visible.shape, patch)[:, 1:]
        due = jnp.cumsum(visible, axis=1)[:, :-1] > 0
        losses = pinball(targets, forecast).mean((-2, -1))
        total = (losses * due).sum()
        count = due.sum(dtype=jnp.float32)
        return total / jnp.maximum(count, 1), {"loss": (total, count)}

    def metrics(self, model: nnx.Module, batch: Batch) -> Metrics:
        forecast = self.logits(model, batch)
        due = batch["due"] & batch["mask"][:, None]
        losses = (pinball(batch["label"], forecast).mean(-2) * due).sum(-1)
        errors = (jnp.abs(batch["label"] - forecast[:, MEDIAN]) * due).sum(-1)
        points = due.sum(-1, dtype=jnp.float32)
        sums = {
            "mase@": (errors * batch["mase_scale"], points * (batch["mase_scale"] > 0)),
            "wql@": (2 * losses * batch["scale"], batch["size"] * batch["mask"]),
        }
        found = {name: by_group(*pair, batch, len(self.sets)) for name, pair in sums.items()}
        return found | {"loss": (losses.sum(), points.sum())}


@dataclass
class SeriesSplit(Split):
    """The windows of some sets, and how they are scored; see `plstm.training.steps.Split`."""

    sets: Sequence[SeriesSet]
    context: int  # points that the model sees

    @property
    def lengths(self) -> list[str]:
        """The sets' names, after the @ of a metric."""
        return [each.name for each in self.sets]

    def __len__(self) -> int:
        return sum(len(each.series) * each.windows for each in self.sets)

    @functools.cached_property
    def windows(self) -> Batch:
        """All windows as one batch."""
        rows = [
            window_row(*pair, each.season, self.context) | {"group": np.int32(number)}
            for number, each in enumerate(self.sets)
            for pair in each.pairs()
        ]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    @functools.cached_property
    def naive(self) -> dict[str, Scores]:
        """The seasonal naive's scores by set."""
        return {each.name: naive_scores(each) for each in self.sets}

    def batches(self, batch_size: int) -> Iterator[Batch]:
        yield from row_batches(self.windows, BATCH)

    def summarise(self, means: Mapping[str, float]) -> dict[str, float]:
        """Adds the means over sets to the means of metrics over examples."""
        found = dict(means)
        for name in Scores._fields:
            ours = {each.name: means[f"{name}@{each.name}"] for each in self.sets}
            naive = {each: getattr(scores, name) for each, scores in self.naive.items()}
            ratios = mean_ratios(self.sets, ours, naive)
            found |= {f"{name}_{group}" if group else name: value for group, value in ratios.items()}
        return found | {"skill": 1 - found["wql"]}


def window_row(context: np.ndarray, label: np.ndarray, season: int, points: int) -> Batch:
    """One row of an evaluation batch but for its group; context and label float64."""
    values, known, loc, scale = standardised_end(context, points)
    due = np.isfinite(label)
    padding = (0, HORIZON - len(label))
    error = seasonal_error(context, season)
    return {
        "values": values,
        "known": known,
        "label": np.pad(np.where(due, (label - loc) / scale, 0), padding).astype(np.float32),
        "due": np.pad(due, padding),
        "loc": np.float32(loc),
        "scale": np.float32(scale),
        "mase_scale": np.float32(scale / error if error > 0 else 0),
        "size": np.float32(np.abs(label[due]).sum()),
    }
