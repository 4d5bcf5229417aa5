"""The arrow-pointing data set (arXiv 2506.11997, Section 4.1) as a TFDS builder, and its loading; no TensorFlow needed.

    python -m data.arrow_pointing build --seed 43             # prepare; also: hash, sheet; see --help
    tfds.data_source("arrow_pointing/seed43", data_dir=...)   # after `import data.arrow_pointing`

Files are array_record, which TFDS writes and reads without TensorFlow. Where TensorFlow is installed there are also

    tfds build data/arrow_pointing.py --config seed43 --data_dir ...    # it imports apache-beam and mlcroissant, too
    tfds.load("arrow_pointing/seed43", data_dir=<a folder of its own>, builder_kwargs={"file_format": "tfrecord"})
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from PIL import Image

from data.arrow_law import LABELS, SPLITS, render, split_geometry, split_law
from data.arrow_packed import VERSION
from data.arrow_variant import SMALL, ArrowVariant
from data.files import data_root, told_by_path
from plstm.errors import UserError


@dataclasses.dataclass(eq=False)
class ArrowConfig(tfds.core.BuilderConfig):
    """An `ArrowVariant` as TFDS wants it; `arrow_config` makes it."""

    name: str = dataclasses.field(default="", init=False)  # always tells the other fields
    train_seed: int = ArrowVariant.train_seed
    size: int = ArrowVariant.size
    scale: float = ArrowVariant.scale
    train_images: int = ArrowVariant.train_images
    eval_images: int | None = ArrowVariant.eval_images

    def __post_init__(self):
        self.name = self.variant.name

    def __reduce__(self):  # reading processes get the variant pickled, and TFDS wants named ones to be its own objects
        return arrow_config, (self.variant,)

    @property
    def variant(self) -> ArrowVariant:
        """The same without TFDS."""
        return ArrowVariant(**{field.name: getattr(self, field.name) for field in dataclasses.fields(ArrowVariant)})


def arrow_config(variant: ArrowVariant) -> ArrowConfig:
    """The TFDS config of a variant; a named one is always the same object."""
    named = {known.name: known for known in ArrowPointing.BUILDER_CONFIGS}
    return named.get(variant.name) or ArrowConfig(**dataclasses.asdict(variant))


class ArrowPointing(tfds.core.GeneratorBasedBuilder):
    """Does the arrow point at the circle? Black on white, no anti-aliasing, labels balanced."""

    VERSION = tfds.core.Version(VERSION)
    code_path = tfds.core.Path(__file__)  # TFDS's own search needs importlib_resources, which it does not declare
    BUILDER_CONFIGS = [ArrowConfig(train_seed=seed) for seed in range(43, 48)] + [
        ArrowConfig(train_seed=seed, **SMALL) for seed in range(43, 48)
    ]

    def __init__(self, *, file_format: str | None = None, **kwargs: Any):
        super().__init__(file_format=file_format or "array_record", **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        number = tfds.features.Scalar
        geometry = {"length": number(np.int32), "width": number(np.int32)}
        geometry |= {key: number(np.float32) for key in ("ax", "ay", "radius", "cx", "cy", "phi")}
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            homepage="https://arxiv.org/abs/2506.11997",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(None, None, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(names=LABELS),
                    **geometry,
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # the stored order is the law's, so a split's hash can be checked
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        variant = self.builder_config.variant
        law, count = split_law(split, variant.law), variant.images(split)
        for index, arrow in enumerate(split_geometry(split, variant.law, variant.train_seed, count)):
            yield index, {"image": Image.fromarray(render(arrow, law)), **arrow._asdict()}


def build_command(variant: ArrowVariant, root: str | None = None) -> str:
    """The shell command that prepares `variant`."""
    words = ["python", "-m", "data.arrow_pointing", "build", "--seed", variant.train_seed]
    words += ["--size", variant.size, "--scale", variant.scale, "--train-images", variant.train_images]
    words += ["--eval-images", variant.eval_images] if variant.eval_images else []
    words += ["--root", root] if root else []
    return shlex.join(str(word) for word in words)


def prepare(variant: ArrowVariant, root: str | None = None, generate: bool = True) -> ArrowPointing:
    """The builder of `variant` with its data on disk, generated first where missing (about a minute for the paper's).

    A second process that asks for the same data waits for the first. Raises UserError when the data is missing and
    `generate` is False, and when it cannot be written.
    """
    folder, config = data_root(root), arrow_config(variant)
    with quiet():
        builder = ArrowPointing(config=config, data_dir=folder)
        if builder.is_prepared():
            return builder
        if not generate:
            raise UserError(f"{builder.data_path}: no data there; build it with: {build_command(variant, root)}")
        with told_by_path(folder), open(folder / f".arrow_pointing_{config.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            builder = ArrowPointing(config=config, data_dir=folder)  # another process may have prepared it meanwhile
            if not builder.is_prepared():
                images = sum(variant.images(split) for split in SPLITS)
                print(f"arrow pointing: preparing {images:,} images in {builder.data_path}", file=sys.stderr)
                builder.download_and_prepare()
        if not builder.is_prepared():  # TFDS leaves a folder as it is that exists without what it needs
            raise _damaged(builder.data_path, "dataset_info.json is missing")
    return builder


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """TFDS without its notes on standard output, its hints, and progress bars where no terminal shows them."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)


def data_source(
    variant: ArrowVariant, split: str, root: str | None = None, generate: bool = True
) -> Sequence[dict[str, Any]]:
    """Random access to a split: item i has "image" uint8 [S, S, 1] (0 or 255), "label", and `Arrow`'s other fields.

    Order and pixels are those of the law. Raises UserError as `prepare` does, for an unknown split, and where images
    are missing.
    """
    count = variant.images(split)
    builder = prepare(variant, root, generate)
    source = builder.as_data_source(split)
    if len(source) != count:
        raise _damaged(builder.data_path, f"{split} has {len(source)} images, not {count}")
    return source


def _damaged(folder: os.PathLike, why: str) -> UserError:
    return UserError(f"{folder}: damaged data set ({why}); delete that folder to have it built again")


def stored_images(
    variant: ArrowVariant, split: str, root: str | None = None, generate: bool = True
) -> Iterator[tuple[np.ndarray, int]]:
    """Image, uint8 [S, S], and label of every example of `data_source`, in order; UserError where they are damaged."""
    source = data_source(variant, split, root, generate)

    def images():
        try:
            with quiet():
                for index in range(len(source)):
                    example = source[index]
                    yield example["image"][..., 0], example["label"]
        except (RuntimeError, OSError) as error:  # what array_record and Pillow make of a damaged file
            raise _damaged(source.dataset_info.data_dir, str(error)) from error

    return images()


def _build(args: argparse.Namespace) -> str:
    variant = ArrowVariant(args.seed, args.size, args.scale, args.train_images, args.eval_images)
    return str(prepare(variant, args.root).data_path)


if __name__ == "__main__":
    from data.arrow_cli import main

    # Handed over, as TFDS refuses a second import of this module under its real name.
    raise SystemExit(main(_build))
