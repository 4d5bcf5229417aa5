"""ImageNet-1k (ILSVRC 2012) as TFDS prepares it, read at random access as the images' own bytes; without TensorFlow.

    make data-imagenet MANUAL=/path/to/tars      # once; see scripts/prepare_imagenet.py
    source = load_source("train")                # source[i]: {"image": bytes, "label": 0 to 999, "file_name"}

Labels are places in the sorted list of the 1,000 WordNet ids, as everywhere. Our splits: `val`, 10,000 training images
held out to choose models and learning rates by; `train`, the others; `test`, the 50,000 official validation images.

Also trees of class folders (the ImageFolder layout), and mosaics drawn when read.
"""

import io
import json
import os
import resource
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from data.tfds import TfdsSource, damage_named, quiet_tfds
from plstm.errors import UserError
from plstm.files import data_root

NAME = "imagenet2012"
TRAIN_TAR = "ILSVRC2012_img_train.tar"
VAL_TAR = "ILSVRC2012_img_val.tar"
SPLITS = {"train": "train", "val": "train", "test": "validation"}  # ours -> TFDS's
HELD_OUT = 10_000
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")


def synsets(file: str = "labels.txt") -> list[str]:
    """The WordNet ids of the 1,000 classes, such as n01440764, in the order of the labels; in validation_labels.txt
    those of the 50,000 official validation images, in the order of their names."""
    return tfds.core.tfds_path(f"datasets/imagenet2012/{file}").read_text().split()


def class_words() -> dict[str, str]:
    """The words of each WordNet id, such as {"n01440764": "tench, Tinca tinca", ...}."""
    from tensorflow_datasets.datasets.siscore.labels import IMAGENET_LABELS_LIST  # in the order of the labels

    return dict(zip(synsets(), IMAGENET_LABELS_LIST, strict=True))


def load_source(split: str, root: str | None = None, held_out: int = HELD_OUT, most: int | None = None) -> Sequence:
    """Random access to a split: picklable, {"image": the file's bytes (JPEG, one PNG), "label": int, "file_name": str}.

    held_out: images of `val`; of a small set at most a tenth, but one. They are the first of
    `numpy.random.RandomState(2012).permutation(training images)`, places in TFDS's stored order, which depends on the
    file names alone. most: only the first so many images. Raises UserError where there are none, or damaged ones.
    """
    if split not in SPLITS:
        raise UserError(f"data.split={split}: no such split; choose from {', '.join(SPLITS)}")
    folder = data_root(root) / NAME
    build = f"make data-imagenet MANUAL=/path/to/tars{f' DATA={root}' if root else ''}"
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
class FolderSource(Sequence):
    """Item i: {"image": the file's bytes, "label": int, "file_name": path under the folder}, sorted by path."""

    folder: Path
    files: list[tuple[str, int]]  # path under the folder, and label
    classes: list[str]  # the name of each label

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        name, label = self.files[index]
        return {"image": (self.folder / name).read_bytes(), "label": label, "file_name": name}


def folder_source(path: str | os.PathLike, known: Sequence[str] | None = None) -> FolderSource:
    """The images under path/<class>/, at any depth, by their suffix; hidden files are left out.

    Labels number the class folders in sorted order, or are ImageNet's where all have names such as n01440764, or are
    places in `known`, a model's classes, by whose names or numbers folders must be named. Raises UserError where there
    is no such folder, class folder, image, or class.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of images")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UserError(f"{folder}: has no class folders; images must lie in {folder}/<class>/")
    classes = list(known or (synsets() if set(names) <= set(synsets()) else names))
    label = {str(number): number for number in range(len(classes))} if known else {}
    label |= {name: number for number, name in enumerate(classes)}
    if unknown := [name for name in names if name not in label]:
        few = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
        raise UserError(f"{folder / unknown[0]}: the model has no such class; it has {few} (or numbers from 0)")
    paths = [path for name in names for path in sorted((folder / name).rglob("*"))]
    paths = [path for path in paths if path.is_file() and path.name[0] != "."]
    images = [path for path in paths if path.suffix.lower() in SUFFIXES]
    if not images:
        raise UserError(f"{folder}: no images in its class folders ({', '.join(SUFFIXES)})")
    if skipped := sorted({path.suffix.lower() for path in paths} - set(SUFFIXES)):
        others = ", ".join(suffix or "no suffix" for suffix in skipped)
        warnings.warn(f"{folder}: files with {others} are left out; images have {', '.join(SUFFIXES)}", stacklevel=2)
    files = [(str(path), label[path.parts[0]]) for path in (image.relative_to(folder) for image in images)]
    return FolderSource(folder, files, classes)


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
