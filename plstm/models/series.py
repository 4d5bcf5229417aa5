"""Models that forecast a time series: patches of values and mask, blocks of `plstm.models.sequence`, quantiles.

    model = plstm.load("model.safetensors")
    quantiles = model.forecast(context, 24)  # context [T], NaN where a value is missing -> [9, 24]

The plan is TiRex's (arXiv 2505.23719), smaller.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from flax import nnx

from plstm.errors import UserError, require
from plstm.models.sequence import Blocks, SequenceConfig
from plstm.nn.layers import linear, uniform_within
from plstm.preprocessing import standardise

QUANTILES = 9  # 0.1, 0.2, ... 0.9
LARGEST = 1e150  # value of a series: its square is finite


@dataclass
class SeriesConfig(SequenceConfig):
    """The whole architecture; `configs/model/series/*.yaml` hold the models of arXiv 2606.12364, pLSTM and a
    Transformer."""

    family: str = "series"  # of plstm.models.MODELS
    patch: Annotated[int, Interval(ge=1, le=512)] = 16  # points that become a token
    context: Annotated[int, Interval(ge=1, le=2**16)] = 512  # points that a forecast sees at most

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        super().check()
        require(
            self,
            ("context", self.context % self.patch == 0, f"must be a multiple of model.patch={self.patch}"),
            prefix="model.",
        )


class ResidualMap(nnx.Module):
    """A ReLU MLP beside a linear map. Biases start uniform within 1 / sqrt(inputs), as in TiRex's code: of 0, a hidden
    patch would be a token of zeros, at which each norm multiplies the gradient by 300."""

    def __init__(self, dim_in: int, width: int, dim_out: int, rngs: nnx.Rngs):
        def make(inputs: int, outputs: int) -> nnx.Linear:
            return linear(inputs, outputs, bias_init=uniform_within(inputs**-0.5), rngs=rngs)

        self.up = make(dim_in, width)
        self.down = make(width, dim_out)
        self.skip = make(dim_in, dim_out)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.relu(self.up(x))) + self.skip(x)


class SeriesModel(Blocks):
    """Patches -> tokens -> quantiles of the next patch."""

    def __init__(self, config: SeriesConfig, _: Mapping[str, int], rngs: nnx.Rngs):
        self.patch = config.patch
        self.context = config.context
        self.embed = ResidualMap(2 * config.patch, config.dim, config.dim, rngs)
        super().__init__(config, rngs)
        self.head = ResidualMap(config.dim, config.dim, QUANTILES * config.patch, rngs)

    def __call__(self, values: jax.Array, known: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Standardised values float32 [..., T], T a multiple of the patch, and whether each is known, bool [..., T]
        -> the next patch after each, float32 [..., T / patch, 9, patch]; a training pass is no different."""
        patches = (*values.shape[:-1], -1, self.patch)
        parts = (jnp.where(known, values, 0), known.astype(values.dtype))
        tokens = self.embed(jnp.concatenate([part.reshape(patches) for part in parts], axis=-1))
        found = self.head(self.run(tokens))
        return found.reshape(*found.shape[:-1], QUANTILES, self.patch)

    def ahead(self, values: jax.Array, known: jax.Array, horizon: int) -> jax.Array:
        """Contexts as for a call -> the next points, float32 [..., 9, horizon], quantiles in order. The model sees as
        many more patches as it needs, none of whose values are known."""
        patches = -(-horizon // self.patch)
        padding = (*((0, 0),) * (values.ndim - 1), (0, (patches - 1) * self.patch))
        found = self(jnp.pad(values, padding), jnp.pad(known, padding))[..., -patches:, :, :]
        points = jnp.moveaxis(found, -3, -2).reshape(*values.shape[:-1], QUANTILES, patches * self.patch)
        return jnp.sort(points[..., :horizon], axis=-2)

    def forecast(self, context: Any, horizon: int) -> np.ndarray:
        """The quantiles 0.1 to 0.9 of the `horizon` values after a series [T], NaN where one is missing: float64
        [9, horizon]. Of a longer series the model sees the end. UserError for a series or horizon without a forecast.

        Of the patches in training fewer than one in fifty is the sixth or later of a hidden run: longer horizons are
        hardly trained.
        """
        series = np.asarray(context, np.float64)
        if not 1 <= horizon <= self.context:
            raise UserError(f"horizon={horizon}: must be from 1 to {self.context}, the model's context")
        if series.ndim != 1 or (np.abs(series) > LARGEST).any():
            what = f"has shape {series.shape}" if series.ndim != 1 else f"has a value beyond {LARGEST:g}"
            raise UserError(f"context: {what}; give one series of finite numbers, NaN where one is missing")
        values, known, loc, scale = standardised_end(series, self.context)
        if not known.any():
            raise UserError(f"context: none of the last {self.context} values is known; give a series that has some")
        whole = -(-horizon // self.patch) * self.patch  # horizons of as many patches share a program
        found = _compiled(self, jnp.asarray(values), jnp.asarray(known), whole)
        return loc + scale * np.asarray(found, np.float64)[:, :horizon]


def standardised_end(series: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """The last points of a series [T], filled up at the start: standardised values float32 [points], whether each is
    known, bool [points], and loc and scale: value = loc + scale x standardised value."""
    end = series[-points:]
    scaled, loc, scale = standardise(end)
    known = np.isfinite(end)
    padding = (points - len(end), 0)
    return np.pad(np.where(known, scaled, 0), padding).astype(np.float32), np.pad(known, padding), loc, scale


_compiled = nnx.jit(SeriesModel.ahead, static_argnums=3)
