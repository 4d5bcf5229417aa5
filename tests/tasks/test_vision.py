"""What the image tasks share: pixels as the model takes them, and the loss."""

import jax
import numpy as np
import pytest

from data.loading import pack, unpack
from plstm.config import Config
from plstm.tasks.vision import VisionTask, normalise
from plstm.training.optimizers import OptimConfig


def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of two colours, packed, and labels."""
    rng = np.random.default_rng(0)
    return pack(rng.choice(np.array([0, 255], np.uint8), (count, 16, 16))), rng.integers(2, size=count, dtype=np.int32)


def test_packed_and_gray_images_are_normalised_alike():
    bits, _ = draw(3)
    gray = unpack(bits, 16)[..., None]
    packed = np.asarray(normalise(bits))
    assert packed.shape == (3, 16, 16, 3) and packed.dtype == np.float32
    np.testing.assert_array_equal(packed, normalise(gray))
    for channel, (mean, deviation) in enumerate(zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)):
        expected = (gray[..., 0] / 255 - mean) / deviation
        np.testing.assert_allclose(packed[..., channel], expected, rtol=1e-5)


def test_label_smoothing():
    bits, labels = draw(8)
    model = lambda images, key: images.sum((1, 2, 3))[:, None] / 100 * np.array([2.0, 1.0])  # noqa: E731
    logits = np.asarray(model(normalise(bits), None), np.float64)
    task = VisionTask(Config(optim=OptimConfig(label_smoothing=0.2)))
    targets = 0.8 * np.eye(2)[labels] + 0.1
    expected = -(targets * (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))).sum(-1).mean()
    loss, _ = task.loss(model, {"image": bits, "label": labels}, jax.random.key(0))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
