"""What the image tasks share: pixels as the model takes them, and the loss."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from data.loading import PackedSplit, pack, unpack
from plstm.config import Config
from plstm.tasks.vision import VisionTask, normalise
from plstm.training.optimizers import OptimConfig


def draw_split(count: int) -> PackedSplit:
    rng = np.random.default_rng(0)
    images = rng.choice(np.array([0, 255], np.uint8), (count, 16, 16))
    return PackedSplit(pack(images), rng.integers(2, size=count, dtype=np.uint8), 16)


def test_packed_and_gray_images_are_normalised_alike():
    bits = draw_split(3).bits
    gray = unpack(bits, 16)[..., None]
    packed = np.asarray(normalise(bits))
    assert packed.shape == (3, 16, 16, 3) and packed.dtype == np.float32
    np.testing.assert_array_equal(packed, normalise(gray))
    for channel, (mean, deviation) in enumerate(zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)):
        expected = (gray[..., 0] / 255 - mean) / deviation
        np.testing.assert_allclose(packed[..., channel], expected, rtol=1e-5)


def test_label_smoothing():
    split = draw_split(8)
    batch = {"image": split.bits, "label": split.labels.astype(np.int32)}
    model = lambda images, key: images.sum((1, 2, 3))[:, None] / 100 * np.array([2.0, 1.0])  # noqa: E731
    logits = np.asarray(model(normalise(batch["image"]), None), np.float64)
    task = VisionTask(Config(optim=OptimConfig(label_smoothing=0.2)))
    targets = 0.8 * np.eye(2)[batch["label"]] + 0.1
    expected = -(targets * (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))).sum(-1).mean()
    assert float(task.loss(model, batch, jax.random.key(0))[0]) == pytest.approx(expected, rel=1e-5)
