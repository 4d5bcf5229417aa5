"""Arrow pointing on disk: its TFDS builder, its preparation, random access, and whole splits at one bit a pixel."""

import dataclasses
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tqdm import tqdm

from data.arrow_pointing.geometry import DISTRIBUTIONS, LABELS, SPLITS, ArrowVariant, render
from data.loading import PackedSplit, pack, packed_bytes
from data.tfds import TfdsSource, quiet_tfds
from plstm.errors import ReadError, UserError, damage_named
from plstm.files import data_root, locked, write_errors, write_file

VERSION = "1.0.0"
IMAGES_A_MINUTE = 100_000
READ_AT_ONCE = 1000  # images
REBUILD = "delete that folder to have it built again"


class ArrowConfig(tfds.core.BuilderConfig):
    """An `ArrowVariant`, from its fields, as TFDS wants it."""

    def __init__(self, **fields: Any):
        self.variant = ArrowVariant(**fields)
        super().__init__(self.variant.name)


class ArrowPointing(tfds.core.GeneratorBasedBuilder):
    """Does the arrow point at the circle? Black on white, no anti-aliasing, labels balanced."""

    VERSION = tfds.core.Version(VERSION)
    BUILDER_CONFIGS = [
        ArrowConfig(train_seed=seed, distribution=distribution)
        for distribution in DISTRIBUTIONS
        for seed in range(43, 48)
    ]

    def __init__(self, *, file_format: str | None = None, **kwargs: Any):
        super().__init__(file_format=file_format or "array_record", **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        image = tfds.features.Image(shape=(None, None, 1), encoding_format="png")
        features = {"image": image, "label": tfds.features.ClassLabel(names=LABELS)}
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

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        variant = self.builder_config.variant
        for index, arrow in enumerate(variant.arrows(split)):
            yield index, {"image": Image.fromarray(render(arrow, variant.canvas(split))), **arrow._asdict()}


def _builder(variant: ArrowVariant, folder: Path) -> ArrowPointing:
    is_listed = variant.name in ArrowPointing.builder_configs  # TFDS takes its own configs by name alone
    config = variant.name if is_listed else ArrowConfig(**dataclasses.asdict(variant))
    with damage_named(folder / "arrow_pointing" / variant.name / VERSION, REBUILD):
        return ArrowPointing(config=config, data_dir=folder)


def prepare(variant: ArrowVariant, root: str | None = None, generate: bool = True) -> ArrowPointing:
    """The builder of `variant` with its data on disk, generated first where missing (about a minute for the paper's).

    A second process that asks for the same data waits for the first. Raises UserError for data that are missing with
    `generate` False, or cannot be written.
    """
    folder = data_root(root)
    with quiet_tfds():
        builder = _builder(variant, folder)
        if builder.is_prepared():
            return builder
        if not generate:
            raise UserError(f"{builder.data_path}: no data there; data.generate=true makes it, or see data.root")
        with write_errors(folder), locked(folder / f".arrow_pointing_{variant.name}.lock"):
            builder = _builder(variant, folder)  # another process may have prepared it meanwhile
            if not builder.is_prepared():
                images = sum(variant.images(split) for split in SPLITS)
                minutes = images / IMAGES_A_MINUTE
                took = f", about {minutes:,.0f} minutes" if minutes > 2 else ""
                print(f"arrow pointing: preparing {images:,} images{took}, in {builder.data_path}", file=sys.stderr)
                builder.download_and_prepare()
        if not builder.is_prepared():  # TFDS leaves a folder alone that exists without dataset_info.json
            raise UserError(f"{builder.data_path}: damaged data set (dataset_info.json is missing); {REBUILD}")
    return builder


def data_source(variant: ArrowVariant, split: str, root: str | None = None, generate: bool = True) -> TfdsSource:
    """Random access to a split, in the order of `variant.arrows`: "image" uint8 [S, S, 1] (0 or 255), `Arrow`'s fields.

    Raises UserError as `prepare` does, for an unknown split, and where images are missing or damaged.
    """
    positions = np.arange(variant.images(split))
    builder = prepare(variant, root, generate)
    return TfdsSource(builder.as_data_source(split), positions, builder.data_path, REBUILD)


def load_packed(variant: ArrowVariant, split: str, root: str | None = None, generate: bool = True) -> PackedSplit:
    """A whole split at one bit a pixel, read-only; the first call packs it into a file, which later calls read.

    A damaged file is packed again; where it cannot be kept a warning says so. Errors: those of `data_source`.
    """
    count = variant.images(split)
    size = variant.canvas(split).size
    path = data_root(root) / "arrow_pointing_packed" / variant.name / VERSION / f"{split}.npz"
    arrays = _read(path, count, size)
    if arrays is None:
        arrays = bits, labels = _pack(data_source(variant, split, root, generate), size, split)
        try:
            write_file(path, lambda file: np.savez(file, bits=bits, labels=labels))
        except OSError as error:
            why = f"cannot keep the packed images ({error.strerror}); every start packs them again"
            warnings.warn(f"{path}: {why}", stacklevel=2)
    for array in arrays:
        array.flags.writeable = False
    return PackedSplit(*arrays, size)


def _read(path: Path, count: int, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Bits and labels in a packed file, whose checksums NumPy compares; None where there are none, or damaged ones."""
    try:
        with damage_named(path, "it is packed again"), np.load(path) as file:
            bits = file["bits"]
            labels = file["labels"]
    except ReadError:
        return None
    fits = bits.shape == (count, packed_bytes(size)) and labels.shape == (count,)
    return (bits, labels) if fits and bits.dtype == labels.dtype == np.uint8 else None


def _pack(source: TfdsSource, size: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    count = len(source)
    print(f"arrow pointing: packing {count:,} images of {split}", file=sys.stderr)
    bits = np.empty((count, packed_bytes(size)), np.uint8)
    labels = np.empty(count, np.uint8)
    with quiet_tfds():
        for start in tqdm(range(0, count, READ_AT_ONCE), f"packing {split}", leave=False, disable=None):
            rows = slice(start, min(start + READ_AT_ONCE, count))
            examples = source.part(rows.start, rows.stop)
            bits[rows] = pack(np.stack([example["image"][..., 0] for example in examples]))
            labels[rows] = [example["label"] for example in examples]
    return bits, labels
