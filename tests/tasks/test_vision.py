"""What the image tasks share: pixels as the model takes them, and the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.loading import pack
from plstm.config import Config, OptimConfig
from plstm.tasks.base import classification_metrics
from plstm.tasks.vision import VisionTask, normalise

IMAGES = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (8, 16, 16, 1))


def test_packed_and_gray_images_are_normalised_alike():
    packed = np.asarray(normalise(pack(IMAGES[..., 0])))
    assert packed.shape == (8, 16, 16, 3) and packed.dtype == np.float32
    np.testing.assert_array_equal(packed, normalise(IMAGES))
    expected = (IMAGES / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(packed, expected, rtol=1e-5)


def test_label_smoothing():
    labels = np.random.default_rng(1).integers(2, size=8, dtype=np.int32)
    model = lambda images, key: images.sum((1, 2, 3))[:, None] / 100 * np.array([2.0, 1.0])  # noqa: E731
    logits = np.asarray(model(normalise(IMAGES), None), np.float64)
    targets = 0.8 * np.eye(2)[labels] + 0.1
    expected = -(targets * (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))).sum(-1).mean()
    task = VisionTask(Config(optim=OptimConfig(label_smoothing=0.2)))
    loss, _ = task.loss(model, {"image": IMAGES, "label": labels}, jax.random.key(0))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_an_undecodable_image_counts_as_an_error_with_the_loss_of_a_uniform_guess():
    metrics = classification_metrics(jnp.array([[9.0, 0.0, 0.0]]), jnp.array([-1]))
    assert metrics["loss"] == (pytest.approx(np.log(3)), 1) and metrics["accuracy"] == (0, 1)
