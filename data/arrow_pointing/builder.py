"""Arrow pointing as a TFDS data set: its builder, its preparation, and random access to it."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from data.arrow_pointing.geometry import LABELS, render
from data.arrow_pointing.splits import SMALL, SPLITS, ArrowVariant
from data.files import data_root, write_errors
from data.tfds import TfdsSource, quiet_tfds
from plstm.errors import UserError

VERSION = "1.0.0"
REBUILD = "delete that folder to have it built again"


class ArrowConfig(tfds.core.BuilderConfig):
    """An `ArrowVariant`, from its fields, as TFDS wants it."""

    def __init__(self, **fields: Any):
        self.variant = ArrowVariant(**fields)
        super().__init__(self.variant.name)


class ArrowPointing(tfds.core.GeneratorBasedBuilder):
    """Does the arrow point at the circle? Black on white, no anti-aliasing, labels balanced."""

    VERSION = tfds.core.Version(VERSION)
    code_path = tfds.core.Path(__file__)  # TFDS's own search needs importlib_resources, which it does not declare
    BUILDER_CONFIGS = [ArrowConfig(train_seed=seed, **fields) for fields in ({}, SMALL) for seed in range(43, 48)]

    def __init__(self, *, file_format: str | None = None, **kwargs: Any):
        super().__init__(file_format=file_format or "array_record", **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(None, None, 1), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=LABELS),
        }
        features |= {key: tfds.features.Scalar(np.int32) for key in ("length", "width")}
        features |= {key: tfds.features.Scalar(np.float32) for key in ("ax", "ay", "radius", "cx", "cy", "phi")}
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            homepage="https://arxiv.org/abs/2506.11997",
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # the stored order is that of the stream, so a split's hash can be checked
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        variant = self.builder_config.variant
        for index, arrow in enumerate(variant.arrows(split)):
            yield index, {"image": Image.fromarray(render(arrow, variant.canvas(split))), **arrow._asdict()}


def _builder(variant: ArrowVariant, folder: os.PathLike) -> ArrowPointing:
    is_listed = variant.name in ArrowPointing.builder_configs  # TFDS takes its own configs by name alone
    config = variant.name if is_listed else ArrowConfig(**dataclasses.asdict(variant))
    return ArrowPointing(config=config, data_dir=folder)


def prepare(variant: ArrowVariant, root: str | None = None, generate: bool = True) -> ArrowPointing:
    """The builder of `variant` with its data on disk, generated first where missing (about a minute for the paper's).

    A second process that asks for the same data waits for the first. Raises UserError when the data is missing and
    `generate` is False, and when it cannot be written.
    """
    folder = data_root(root)
    with quiet_tfds():
        builder = _builder(variant, folder)
        if builder.is_prepared():
            return builder
        if not generate:
            raise UserError(f"{builder.data_path}: no data there; build it with: {_build_command(variant, root)}")
        with write_errors(folder), open(folder / f".arrow_pointing_{variant.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            builder = _builder(variant, folder)  # another process may have prepared it meanwhile
            if not builder.is_prepared():
                images = sum(variant.images(split) for split in SPLITS)
                print(f"arrow pointing: preparing {images:,} images in {builder.data_path}", file=sys.stderr)
                builder.download_and_prepare()
        if not builder.is_prepared():  # TFDS leaves a folder alone that exists without dataset_info.json
            raise UserError(f"{builder.data_path}: damaged data set (dataset_info.json is missing); {REBUILD}")
    return builder


def _build_command(variant: ArrowVariant, root: str | None) -> str:
    words = ["python", "-m", "data.arrow_pointing", "build", "--seed", variant.train_seed]
    words += ["--size", variant.size, "--scale", variant.scale, "--train-images", variant.train_images]
    words += ["--eval-images", variant.eval_images] if variant.eval_images else []
    words += ["--root", root] if root else []
    return shlex.join(str(word) for word in words)


def data_source(
    variant: ArrowVariant, split: str, root: str | None = None, generate: bool = True
) -> Sequence[dict[str, Any]]:
    """Random access to a split: item i has "image" uint8 [S, S, 1] (0 or 255), "label", and `Arrow`'s other fields.

    Order and pixels are those of `variant.arrows`. Raises UserError as `prepare` does, for an unknown split, and where
    images are missing or damaged.
    """
    count = variant.images(split)
    builder = prepare(variant, root, generate)
    source = builder.as_data_source(split)
    if len(source) != count:
        raise UserError(
            f"{builder.data_path}: damaged data set ({split} has {len(source)} images, not {count}); {REBUILD}"
        )
    return TfdsSource(source, np.arange(count), builder.data_path, REBUILD)
