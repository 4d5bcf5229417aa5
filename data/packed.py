"""Black-and-white images at one bit a pixel: 100,000 images of 192 x 192 take 461 MB, and unpack on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PackedSplit:
    """A whole split of square images, in order.

    bits: uint8 [images, ceil(size * size / 8)], row-major pixels, most significant bit first; bit 1 is white (255).
    labels: uint8 [images]. size: pixels a side. process_index, process_count: which part of each batch to give.
    """

    bits: np.ndarray
    labels: np.ndarray
    size: int
    process_index: int = 0
    process_count: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Every image once, in order: "image" packed bits, "label" int32, "mask" bool; the last batch padded with 0.

        `batch_size` is over all processes, which must divide it; the arrays are this process's rows of it.
        """
        rows = batch_size // self.process_count
        for start in range(self.process_index * rows, len(self) + self.process_index * rows, batch_size):
            labels = self.labels[start : start + rows]
            padding = rows - len(labels)
            yield {
                "image": np.pad(self.bits[start : start + rows], ((0, padding), (0, 0))),
                "label": np.pad(labels, (0, padding)).astype(np.int32),
                "mask": np.arange(rows) < rows - padding,
            }

    def first(self, batch_size: int) -> dict[str, np.ndarray]:
        """The first of `batches`."""
        return next(self.batches(batch_size))


def packed_bytes(size: int) -> int:
    """How many bytes an image of `size` x `size` pixels takes."""
    return -(-size * size // 8)


def pack(images: np.ndarray) -> np.ndarray:
    """uint8 [..., size, size] of 0 and 255 -> uint8 [..., ceil(size * size / 8)]."""
    return np.packbits(images.reshape(*images.shape[:-2], -1) == 255, axis=-1)


def unpack(bits: Any, size: int) -> Any:
    """uint8 [..., ceil(size * size / 8)] -> uint8 [..., size, size] of 0 and 255.

    NumPy arrays stay NumPy; JAX arrays stay JAX, also inside jax.jit (with `size` static).
    """
    if isinstance(bits, np.ndarray):
        xp = np
    else:
        import jax.numpy as xp
    pixels = xp.unpackbits(bits, axis=-1, count=size * size)
    return pixels.reshape(*bits.shape[:-1], size, size) * xp.uint8(255)
