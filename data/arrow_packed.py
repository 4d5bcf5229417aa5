"""Arrow pointing as training holds it: whole splits at one bit a pixel, each in a file that is memory-mapped."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.arrow_law import render, split_geometry, split_law
from data.arrow_variant import ArrowVariant
from data.files import data_root
from data.packed import PackedSplit, pack, packed_bytes
from plstm.errors import UserError

VERSION = "1.0.0"  # of the data set


def load_packed(variant: ArrowVariant, split: str, root: str | None = None, generate: bool = True) -> PackedSplit:
    """A whole split at one bit a pixel, read-only; the first call packs it into a file that later calls memory-map.

    What is packed are the images of the TFDS data set, which is generated where missing; without TFDS, the same images
    are drawn anew. A damaged file is packed again; where it cannot be kept (read-only folder, full disk) a warning
    says so. Raises UserError as `data.arrow_pointing.data_source` does, and for a damaged data set.
    """
    size, count = split_law(split, variant.law).size, variant.images(split)
    path = data_root(root) / "arrow_pointing_packed" / variant.name / VERSION / f"{split}.npy"
    flat = _read_packed(path, count, size)
    if flat is None:
        if importlib.util.find_spec("tensorflow_datasets"):
            from data.arrow_pointing import stored_images

            images = stored_images(variant, split, root, generate)
        elif generate:
            images = _drawn_images(variant, split)
        else:
            raise UserError(f"{path}: not there, and making it takes data.generate=true")
        flat = _pack_images(images, count, split, size)
        try:
            _save(path, flat)
        except OSError as error:
            message = f"{path}: cannot keep the packed images ({error.strerror}); every start packs them again"
            warnings.warn(message, stacklevel=2)
    return PackedSplit(*_views(flat, count, size), size)


def _drawn_images(variant: ArrowVariant, split: str) -> Iterator[tuple[np.ndarray, int]]:
    law = split_law(split, variant.law)
    for arrow in split_geometry(split, variant.law, variant.train_seed, variant.images(split)):
        yield render(arrow, law), arrow.label


def _views(flat: np.ndarray, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The bits [count, bytes an image] and labels [count] of a packed file's array, which a CRC-32 of 4 bytes ends."""
    row = packed_bytes(size)
    return flat[: count * row].reshape(count, row), flat[count * row : -4]


def _length(count: int, size: int) -> int:
    return count * (packed_bytes(size) + 1) + 4


def _checksum(flat: np.ndarray) -> np.ndarray:
    return np.frombuffer(zlib.crc32(flat[:-4]).to_bytes(4, "little"), np.uint8)


def _read_packed(path: Path, count: int, size: int) -> np.ndarray | None:
    """The packed file's array, or None where there is none or it is damaged."""
    try:
        flat = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    fits = flat.shape == (_length(count, size),) and flat.dtype == np.uint8
    return flat if fits and np.array_equal(flat[-4:], _checksum(flat)) else None


def _pack_images(images: Iterator[tuple[np.ndarray, int]], count: int, split: str, size: int) -> np.ndarray:
    flat = np.empty(_length(count, size), np.uint8)
    bits, labels = _views(flat, count, size)
    print(f"arrow pointing: packing {count:,} images of {split}", file=sys.stderr)
    for index, (image, label) in enumerate(tqdm(images, f"packing {split}", count, leave=False, disable=None)):
        bits[index], labels[index] = pack(image), label
    flat[-4:] = _checksum(flat)
    flat.flags.writeable = False
    return flat


def _save(path: Path, flat: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            np.save(file, flat, allow_pickle=False)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
