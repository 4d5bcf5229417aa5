"""Images that need no preparation: trees of class folders (the ImageFolder layout), and mosaics drawn when read."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data.imagenet.source import SPLITS, synsets
from plstm.errors import UserError

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")


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
    images = [path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file() and path.name[0] != "."]
    if not images:
        raise UserError(f"{folder}: no images in its class folders ({', '.join(SUFFIXES)})")
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
        number, file = index % 10, io.BytesIO()
        rng = np.random.default_rng((list(SPLITS).index(self.split), index))
        colours = np.random.default_rng(number).uniform(40, 215, (4, 4, 3)) + rng.normal(0, 15, (4, 4, 3))
        mosaic = Image.fromarray(colours.clip(0, 255).astype(np.uint8))
        mosaic.resize((80, 64), Image.Resampling.BICUBIC).save(file, "JPEG")
        return {"image": file.getvalue(), "label": number * 100, "file_name": f"{self.split}-{index}.jpg"}
