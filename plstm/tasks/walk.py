"""A walk on a grid (`data.walk`): the product of group elements along it. A task of ours, in none of the papers.

A batch is a dictionary of NumPy arrays: cells int8 [rows, side, side, 3], label int32 [rows]. Models see a cell as an
image's pixel of order + 3 channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from flax import nnx
from numpy.random import RandomState
from omegaconf import MISSING

from data.walk import GROUPS, answer, draw_lengths, draw_walks, longest
from plstm.config import Config
from plstm.errors import UserError, require
from plstm.limits import Natural, OneOf
from plstm.models import VisionConfig
from plstm.tasks.base import MachineData, classification_metrics, mean_loss
from plstm.tasks.streams import StreamTask, by_length
from plstm.training.steps import Batch, Metrics


@dataclass
class WalkData(MachineData):
    name: Annotated[str, OneOf(*GROUPS)] = "s3"  # the group, see data.walk
    side: Annotated[int, Interval(ge=4, le=64)] = 6  # cells a side in training; `test_ext` has twice that
    channels: int = MISSING  # of a cell, and ...
    classes: int = MISSING  # ... answers; those of the group unless set
    eval_rows: Annotated[int, Interval(ge=1, le=2**20)] = 512  # of each length
    eval_seed: Natural = 1001  # of all rows to evaluate on, the same for all runs


class WalkTask(StreamTask):
    """Training has walks of `draw_lengths`, evaluations those of `lengths`; a split's accuracy is their mean."""

    data_schema = WalkData
    inputs = "images"
    splits = ("val", "test", "test_ext")

    @classmethod
    def check(cls, config: Config) -> None:
        data = config.data
        model = config.model
        facts = cls.infer_data(data)
        follow = "follows the data; leave it out"
        require(
            config,
            ("model.family", isinstance(model, VisionConfig), "is not for this task; choose vision"),
            *((f"data.{key}", getattr(data, key) == fact, f"the group has {fact}") for key, fact in facts.items()),
            *((f"model.{key}", getattr(model, key, fact) == fact, follow) for key, fact in facts.items()),
            ("model.image_size", model.image_size == data.side, follow),
        )
        replace(model, image_size=2 * data.side).check()

    @classmethod
    def infer_data(cls, data: Any) -> Mapping[str, Any]:
        if data.name not in GROUPS:
            raise UserError(f"data.name={data.name}: choose one of {', '.join(GROUPS)}")
        order = len(GROUPS[data.name])
        return {"channels": order + 3, "classes": order}

    # ------------------------------------------------------------------ data
    def describe_data(self) -> str:
        data = self.config.data
        return f"walks on {data.side} x {data.side} cells, elements of {data.name}"

    def side_of(self, split: str) -> int:
        return self.config.data.side * (2 if split == "test_ext" else 1)

    def lengths(self, split: str) -> Sequence[int]:
        side = self.config.data.side
        return sorted({side // 2, side, longest(side), longest(self.side_of(split))})

    def draw_batch(self, step: int) -> Batch:
        rng = self.train_rng(step)
        side = self.config.data.side
        return self._batch(rng, side, draw_lengths(rng, side, self.config.optim.batch_size))

    def draw_at(self, split: str, length: int) -> Batch:
        rng = self.eval_rng(split, length)
        return self._batch(rng, self.side_of(split), np.full(self.config.data.eval_rows, length))

    def _batch(self, rng: RandomState, side: int, lengths: np.ndarray) -> Batch:
        name = self.config.data.name
        cells = draw_walks(rng, name, side, lengths)
        return {"cells": cells, "label": answer(name, cells)}

    # ------------------------------------------------------------------ model
    def logits(self, model: nnx.Module, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """float32 [rows, classes]."""
        element, arrow, start = jnp.moveaxis(jnp.asarray(batch["cells"], jnp.int32), -1, 0)
        kinds = [jax.nn.one_hot(element, self.config.data.classes), jax.nn.one_hot(arrow, 2), start[..., None]]
        return model(jnp.concatenate(kinds, axis=-1), key=key)

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        metrics = classification_metrics(self.logits(model, batch, key), batch["label"])
        return mean_loss(metrics), metrics

    def metrics(self, model: nnx.Module, batch: Batch) -> Metrics:
        found = classification_metrics(self.logits(model, batch), batch["label"], batch["mask"])
        groups = len(self.lengths("test_ext"))
        return found | {"accuracy@": by_length(found["accuracy"], batch, groups)}
