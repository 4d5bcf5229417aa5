"""ImageNet-1k (ILSVRC 2012) as TFDS prepares it, read at random access as the images' own bytes; without TensorFlow.

    make data-imagenet MANUAL=/path/to/tars      # once; see scripts/prepare_imagenet.py
    source = load_source("train")                # source[i]: {"image": bytes, "label": 0 to 999, "file_name"}

Labels are places in the sorted list of the 1,000 WordNet ids, as everywhere. Our splits: `val`, 10,000 training images
held out to choose models and learning rates by; `train`, the others; `test`, the 50,000 official validation images.

Also mosaics drawn when read.
"""

import functools
import io
import json
import os
import resource
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from data.tfds import TfdsSource, quiet_tfds
from plstm.errors import UserError, damage_named
from plstm.files import data_root

NAME = "imagenet2012"
TRAIN_TAR = "ILSVRC2012_img_train.tar"
VAL_TAR = "ILSVRC2012_img_val.tar"
SPLITS = {"train": "train", "val": "train", "test": "validation"}  # ours -> TFDS's
HELD_OUT = 10_000


@functools.cache
def synsets(file: str = "labels.txt") -> Sequence[str]:
    """The WordNet ids of the 1,000 classes, such as n01440764, in the order of the labels; in validation_labels.txt
    those of the 50,000 official validation images, in the order of their names."""
    return tuple(tfds.core.tfds_path(f"datasets/imagenet2012/{file}").read_text().split())


def class_words() -> dict[str, str]:
    """The words of each WordNet id, such as {"n01440764": "tench, Tinca tinca", ...}."""
    from tensorflow_datasets.datasets.siscore.labels import IMAGENET_LABELS_LIST  # in the order of the labels

    return dict(zip(synsets(), IMAGENET_LABELS_LIST, strict=True))


def load_source(split: str, root: str | None = None, held_out: int = HELD_OUT, most: int | None = None) -> Sequence:
    """Random access to a split: picklable, {"image": the file's bytes (JPEG, one PNG), "label": int, "file_name": str}.

    held_out: images of `val`, but no more than a tenth of a small set, and at least one. They are the first of
    `numpy.random.RandomState(2012).permutation(training images)`, places in TFDS's stored order, which depends on the
    file names alone. most: only the first so many images. Raises UserError where there are none, or damaged ones.
    """
    if split not in SPLITS:
        raise UserError(f"data.split={split}: no such split; choose from {', '.join(SPLITS)}")
    folder = data_root(root) / NAME
    build = f"make data-imagenet MANUAL=/path/to/tars{f' DATA={shlex.quote(root)}' if root else ''}"
    versions = sorted(path.parent for path in folder.glob("[0-9]*/dataset_info.json"))
    if not versions:
        raise UserError(f"{folder}: no ImageNet there; prepare it from the official tars: {build}")
    _refuse_foreign_features(versions[-1] / "features.json")
    with damage_named(versions[-1], f"prepare it again: {build}"):
        builder = tfds.builder_from_directory(versions[-1])
    if SPLITS[split] not in builder.info.splits:
        raise UserError(f"{versions[-1]}: has no {SPLITS[split]} images; delete it, then: {build}")
    _allow_many_files()
    try:
        source = builder.as_data_source(SPLITS[split], decoders={"image": tfds.decode.SkipDecoding()})
    except NotImplementedError as error:
        raise UserError(f"{versions[-1]}: not array_record files; prepare another data folder: {build}") from error
    positions = np.arange(len(source), dtype=np.int32)
    if split != "test":
        count = min(held_out, max(len(source) // 10, 1))
        order = np.random.RandomState(2012).permutation(positions)
        positions = np.sort(order[:count] if split == "val" else order[count:])
    if not len(positions):
        raise UserError(f"data.split={split}: has no images with data.held_out={held_out}")
    return _ImageNet(source, positions[:most], versions[-1], "prepare it again")


def _refuse_foreign_features(path: Path) -> None:
    """TFDS imports the module of every class that `features.json` names; only its own classes are let through."""

    def check(node: dict[str, Any]) -> None:
        for name in (node[key] for key in ("pythonClassName", "type") if key in node):
            if not str(name).startswith("tensorflow_datasets.core.features."):
                raise UserError(f"{path}: names a class {name!r} that is not of TFDS; prepare the data again")

    try:
        json.loads(path.read_text(encoding="utf-8"), object_hook=check)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); prepare the data again") from error


class _ImageNet(TfdsSource):
    def __getitem__(self, index: int) -> dict[str, Any]:
        example = super().__getitem__(index)
        return example | {"label": int(example["label"]), "file_name": example["file_name"].decode()}


def _allow_many_files() -> None:
    """Lets this process, and those it starts, open as many files as the system allows: TFDS keeps 1,024 open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1:] * 2)


def prepare(tars: Path, root: str | None = None) -> Path:
    """Runs TFDS's `imagenet2012` builder on the official tars, into array_record files; returns their folder. The
    builder needs TensorFlow to open files and to rewrite as RGB JPEG 22 images in CMYK and one PNG. Here plain Python
    opens them, and those images keep their bytes. Data that TensorFlow prepared are read just as well."""
    from tensorflow_datasets.core import shuffle
    from tensorflow_datasets.core.download import extractor
    from tensorflow_datasets.datasets.imagenet2012 import imagenet2012_dataset_builder as module
    from tensorflow_datasets.datasets.imagenet2012 import imagenet_common as common

    files = SimpleNamespace(GFile=open, exists=os.path.exists, remove=os.remove)
    tf = SimpleNamespace(io=SimpleNamespace(gfile=files), errors=SimpleNamespace(ResourceExhaustedError=()))
    _allow_many_files()
    builder = tfds.builder(NAME, data_dir=data_root(root), file_format="array_record")
    swaps = [(part, "tf", tf) for part in (module, shuffle, extractor, common)]
    swaps += [(module, "CMYK_IMAGES", []), (module, "PNG_IMAGES", [])]
    with quiet_tfds() as stack:
        for part, name, value in swaps:
            stack.callback(setattr, part, name, getattr(part, name))  # at the end
            setattr(part, name, value)
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=tars))
    return Path(builder.data_path)


@dataclass(eq=False, repr=False)
class MosaicSource(Sequence):
    """Item i: {"image": a JPEG's bytes, "label": int, "file_name": str}, a function of the split and i alone. A class
    is a blurred mosaic of 4 x 4 colours, seen through noise. The ten classes have the labels 0, 100, ..., 900."""

    split: str
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = index % 10
        file = io.BytesIO()
        rng = np.random.default_rng((list(SPLITS).index(self.split), index))
        colours = np.random.default_rng(number).uniform(40, 215, (4, 4, 3)) + rng.normal(0, 15, (4, 4, 3))
        mosaic = Image.fromarray(colours.clip(0, 255).astype(np.uint8))
        mosaic.resize((80, 64), Image.Resampling.BICUBIC).save(file, "JPEG")
        return {"image": file.getvalue(), "label": number * 100, "file_name": f"{self.split}-{index}.jpg"}
