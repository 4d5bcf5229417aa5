"""From a run's config to its images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from data.loading import DeviceBatches, StreamedBatches
from data.packed import PackedSplit
from plstm.experiments.config import Config


def load_split(config: Config, split: str) -> PackedSplit:
    """A whole split, packed, generated first where missing; errors are those of `data.arrow_pointing.load_packed`."""
    from data.arrow_pointing import load_packed

    return load_packed(_variant(config), split, config.data.root, config.data.generate)


def training_batches(config: Config, key: jax.Array, put: Callable[[Any], Any]) -> DeviceBatches | StreamedBatches:
    """The training images as endless batches in the order that `key` gives; `put` places arrays on the devices."""
    if config.data.placement == "device":
        return DeviceBatches(load_split(config, "train"), config.optim.batch_size, key, put)
    from data.arrow_pointing import data_source

    source = data_source(_variant(config), "train", config.data.root, config.data.generate)
    return StreamedBatches(source, config.optim.batch_size, key, config.data.workers, put)


def _variant(config: Config):
    from data.arrow_pointing import arrow_config

    data = config.data
    return arrow_config(data.train_seed, data.size, data.scale, data.train_images, data.eval_images)
