"""Folders of pictures, <folder>/<class>/<picture>: to evaluate a model on them, or to train one on one's own.

    source = folder_source("/pictures")      # source[i]: {"image": a file's bytes, "label": int, "file_name"}
    pictures = read_pictures("/pictures")    # pictures.train and pictures.val, and what tells them from other data

Pictures may lie at any depth in a class folder. Linked files and folders count, hidden ones do not.
"""

import functools
import hashlib
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data.decoding import CorruptImage, decode
from data.imagenet.source import synsets
from plstm.errors import ReadError, UserError, first_line
from plstm.files import core_count, files_below

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
HELD_OUT = 0.1  # share of each class's pictures
SPLITS = ("train", "val")
TOY = Path(__file__).with_name("TOY")  # twenty drawn pictures, which debug=smoke takes


# ---------------------------------------------------------------------- one folder
@dataclass(eq=False, repr=False)
class FolderSource(Sequence):
    """Item i: {"image": the file's bytes, "label": int, "file_name": its path}, sorted by path."""

    folder: Path
    files: list[tuple[str, int]]  # path under the folder, and label
    classes: list[str]  # the name of each label

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        name, label = self.files[index]
        path = self.folder / name
        try:
            return {"image": path.read_bytes(), "label": label, "file_name": str(path)}
        except OSError as error:
            raise ReadError(f"{path}: cannot be read ({first_line(error)}); repair or remove it") from error


def folder_source(path: str | os.PathLike, known: Sequence[str] | None = None) -> FolderSource:
    """The images under path/<class>/, at any depth, by their suffix.

    Labels number the class folders in sorted order, or are ImageNet's where all have names such as n01440764, or are
    places in `known`, a model's classes, by whose names or numbers folders must be named. Raises UserError where there
    is no such folder, class folder, image, or class.
    """
    folder = Path(path)
    names = class_folders(folder)
    classes = list(known or (synsets() if set(names) <= set(synsets()) else names))
    label = {str(number): number for number in range(len(classes))} if known else {}
    label |= {name: number for number, name in enumerate(classes)}
    if unknown := [name for name in names if name not in label]:
        few = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
        raise UserError(f"{folder / unknown[0]}: the model has no such class; it has {few} (or numbers from 0)")
    files = []
    skipped = set()
    for name in names:
        for file in files_below(folder / name):
            if file.suffix.lower() in SUFFIXES:
                files.append((str(file.relative_to(folder)), label[name]))
            else:
                skipped.add(file.suffix.lower() or "no suffix")
    if not files:
        raise UserError(f"{folder}: no images in its class folders ({', '.join(SUFFIXES)})")
    if skipped:
        others = ", ".join(sorted(skipped))
        warnings.warn(f"{folder}: files with {others} are left out; images have {', '.join(SUFFIXES)}", stacklevel=2)
    return FolderSource(folder, files, classes)


def class_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted. Raises UserError where there are none, or their names no text."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of images")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UserError(f"{folder}: has no class folders; images must lie in {folder}/<class>/")
    if unprintable := [name for name in names if not name.isprintable()]:
        raise UserError(f"{folder}: the name of its class folder {ascii(unprintable[0])} is not text; rename it")
    return names


# ---------------------------------------------------------------------- to train on
@dataclass(frozen=True)
class Pictures:
    """The pictures of a folder to train on."""

    train: FolderSource
    val: FolderSource
    digest: str  # 12 hexadecimal digits: of the path, under its split's folder, and size in bytes of every picture


@functools.lru_cache(maxsize=4)  # a command asks several times: its checks, its run
def read_pictures(path: str, held_out: float | None = None) -> Pictures:
    """The pictures of path/train/<class>/ and path/val/<class>/.

    Without val/, a share `held_out` (`HELD_OUT` unless given) of each class's training pictures becomes `val`, chosen
    by a hash of their paths under the training folder: the same on every machine, and nearly the same after some are
    added. Without train/, the folder itself is the training folder. Raises UserError where there is no such folder, it
    has fewer than two classes, a class without a picture that can be decoded, or a folder whose role is unclear.
    """
    folder = Path(os.path.expanduser(path))
    train_folder, val_folder = _split_folders(folder)
    classes = class_folders(train_folder)
    if len(classes) == 1:
        raise UserError(f"{train_folder}: has one class, {classes[0]}; a classifier needs two class folders or more")
    train = folder_source(train_folder, classes)
    _check_classes(train)
    if val_folder is None:
        train, val = _hold_out(train, held_out or HELD_OUT)
    else:
        if held_out is not None:
            raise UserError(f"data.held_out={held_out:g}: {val_folder} has the pictures to evaluate on; leave it out")
        if unknown := sorted({*class_folders(val_folder)} - {*classes}):
            raise UserError(f"{val_folder / unknown[0]}: {train_folder} has no such class; rename or remove it")
        val = folder_source(val_folder, classes)
    return Pictures(train, val, _digest(train, val))


def _split_folders(folder: Path) -> tuple[Path, Path | None]:
    """The folders of the classes to train on and to evaluate on."""
    names = class_folders(folder)
    others = [name for name in names if name not in (*SPLITS, "test")]
    if "train" not in names or (others and not any(entry.is_dir() for entry in os.scandir(folder / "train"))):
        return folder, None  # in the second case train is a class, as in a set of vehicles
    if others:
        what = "beside train/ with class folders only val/ and test/ have a meaning; rename or move it"
        raise UserError(f"{folder / others[0]}: {what}")
    return folder / "train", folder / "val" if "val" in names else None


def _by_class(source: FolderSource) -> list[list[int]]:
    """The places of each class's pictures."""
    places: list[list[int]] = [[] for _ in source.classes]
    for place, (_, label) in enumerate(source.files):
        places[label].append(place)
    return places


def _check_classes(source: FolderSource) -> None:
    """Raises UserError for a class without a picture that can be decoded. Of most it decodes the first one alone."""

    def is_good(place: int) -> bool:
        try:
            decode(source[place]["image"])
        except CorruptImage:
            return False
        return True

    def check(name: str, places: list[int]) -> None:
        if not any(map(is_good, places)):
            found = f"none of its {len(places):,} pictures can be decoded" if places else "has no pictures"
            raise UserError(f"{source.folder / name}: {found}; add some, or remove the folder")

    with ThreadPoolExecutor(core_count()) as threads:
        list(threads.map(check, source.classes, _by_class(source)))


def _hold_out(source: FolderSource, share: float) -> tuple[FolderSource, FolderSource]:
    """The pictures to train on and those of `val`, at least one of each class in both."""

    def order(place: int) -> bytes:
        return hashlib.sha256(os.fsencode(source.files[place][0])).digest()

    chosen: set[int] = set()
    for name, places in zip(source.classes, _by_class(source), strict=True):
        if len(places) == 1:
            raise UserError(f"{source.folder / name}: has one picture, and one is held out; add some, or a folder val/")
        count = min(max(round(share * len(places)), 1), len(places) - 1)
        chosen.update(sorted(places, key=order)[:count])
    train = [file for place, file in enumerate(source.files) if place not in chosen]
    val = [file for place, file in enumerate(source.files) if place in chosen]
    return replace(source, files=train), replace(source, files=val)


def _digest(train: FolderSource, val: FolderSource) -> str:
    digest = hashlib.sha256()
    for split, source in zip(SPLITS, (train, val), strict=True):
        for name, _ in source.files:
            size = (source.folder / name).stat().st_size
            digest.update(os.fsencode(f"{split}/{name}\0{size}\0"))
    return digest.hexdigest()[:12]
