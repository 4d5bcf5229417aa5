"""Images in a tree of class folders (the ImageFolder layout), to evaluate on what is no TFDS data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.imagenet.source import synsets
from plstm.errors import UserError

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")


class FolderSource(Sequence):
    """Item i: {"image": the file's bytes, "label": int, "file_name": path under the folder}, sorted by path.

    classes: the name of each label.
    """

    def __init__(self, folder: Path, files: list[tuple[str, int]], classes: list[str]):
        self._folder, self._files, self.classes = folder, files, classes

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        name, label = self._files[index]
        return {"image": (self._folder / name).read_bytes(), "label": label, "file_name": name}


def folder_source(path: str | os.PathLike, known: Sequence[str] | None = None) -> FolderSource:
    """The images under path/<class>/, at any depth, by their suffix; hidden files are left out.

    Labels number the class folders in sorted order. Where all of them have names of ImageNet's 1,000 classes, such as
    n01440764, they are ImageNet's labels, also where some classes are missing. Where `known` has the names of a model's
    classes, folders must be named so, or by their numbers, and labels are places in it.

    Raises UserError where there is no such folder, no class folder or no image, or a folder's class is not known.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of images")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UserError(f"{folder}: has no class folders; images must lie in {folder}/<class>/")
    classes = _classes(names) if known is None else list(known)
    label = {name: number for number, name in enumerate(classes)}
    if known is not None:
        label = {str(number): number for number in range(len(classes))} | label
        for name in names:
            if name not in label:
                few = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
                raise UserError(f"{folder / name}: the model has no such class; it has {few} (or numbers from 0)")
    files = [(str(file.relative_to(folder)), label[name]) for name in names for file in _images(folder / name)]
    if not files:
        raise UserError(f"{folder}: no images in its class folders ({', '.join(SUFFIXES)})")
    return FolderSource(folder, files, classes)


def _classes(names: list[str]) -> list[str]:
    is_imagenet = all(name.startswith("n") and name[1:].isdigit() for name in names) and set(names) <= set(synsets())
    return synsets() if is_imagenet else names


def _images(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return sorted(path for path in found if not path.name.startswith("."))
