"""Whole splits of arrow pointing at one bit a pixel, as training holds them, kept in one file each."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.arrow_pointing.builder import VERSION, data_source
from data.arrow_pointing.splits import ArrowVariant
from data.files import data_root, write_file
from data.loading import PackedSplit, pack, packed_bytes
from data.tfds import quiet_tfds


def load_packed(variant: ArrowVariant, split: str, root: str | None = None, generate: bool = True) -> PackedSplit:
    """A whole split at one bit a pixel, read-only; the first call packs it into a file, which later calls read.

    The images are those of the TFDS data set, which is generated where missing. A damaged file is packed again; where
    it cannot be kept (read-only folder, full disk) a warning says so. Raises UserError as `builder.data_source` does,
    and for a damaged data set.
    """
    count, size = variant.images(split), variant.canvas(split).size
    path = data_root(root) / "arrow_pointing_packed" / variant.name / VERSION / f"{split}.npz"
    arrays = _read(path, count, size)
    if arrays is None:
        arrays = bits, labels = _pack(variant, split, root, generate)
        try:
            write_file(path, lambda file: np.savez(file, bits=bits, labels=labels))
        except OSError as error:
            message = f"{path}: cannot keep the packed images ({error.strerror}); every start packs them again"
            warnings.warn(message, stacklevel=2)
    for array in arrays:
        array.flags.writeable = False
    return PackedSplit(*arrays, size)


def _read(path: Path, count: int, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Bits and labels in a packed file, whose checksums NumPy compares; None where there are none, or damaged ones."""
    try:
        with np.load(path, allow_pickle=False) as file:
            bits, labels = file["bits"], file["labels"]
    except Exception:  # damaged zip files raise a dozen different ones
        return None
    fits = bits.shape == (count, packed_bytes(size)) and labels.shape == (count,)
    return (bits, labels) if fits and bits.dtype == labels.dtype == np.uint8 else None


def _pack(variant: ArrowVariant, split: str, root: str | None, generate: bool) -> tuple[np.ndarray, np.ndarray]:
    source = data_source(variant, split, root, generate)
    count = len(source)
    bits = np.empty((count, packed_bytes(variant.canvas(split).size)), np.uint8)
    labels = np.empty(count, np.uint8)
    print(f"arrow pointing: packing {count:,} images of {split}", file=sys.stderr)
    with quiet_tfds():
        for index, example in enumerate(tqdm(source, f"packing {split}", leave=False, disable=None)):
            bits[index], labels[index] = pack(example["image"][..., 0]), example["label"]
    return bits, labels
