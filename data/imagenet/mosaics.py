"""Small pictures drawn as they are read: training on them needs nothing prepared, and shows that everything runs."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

CLASSES = 10
WIDTH, HEIGHT = 80, 64
SPLITS = ("train", "val", "test")


class MosaicSource(Sequence):
    """Item i: {"image": a JPEG's bytes, "label": int, "file_name": str}, a function of the split and i alone.

    A class is a blurred mosaic of 4 x 4 colours, seen through noise. The ten classes have the labels 0, 100, ..., 900.
    """

    def __init__(self, split: str, count: int):
        self._split, self._count = split, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = index % CLASSES
        rng = np.random.default_rng((SPLITS.index(self._split), index))
        colours = np.random.default_rng(number).uniform(40, 215, (4, 4, 3)) + rng.normal(0, 15, (4, 4, 3))
        mosaic = Image.fromarray(colours.clip(0, 255).astype(np.uint8))
        file = io.BytesIO()
        mosaic.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(file, "JPEG")
        return {"image": file.getvalue(), "label": number * 100, "file_name": f"{self._split}-{index}.jpg"}
