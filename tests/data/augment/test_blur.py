from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter

from data.augment.operations import gaussian_blur


@pytest.mark.parametrize("height, width", [(29, 37), (192, 192), (1, 1), (1, 9), (7, 2)])
def test_bytes_are_those_of_pillows_filter(height, width):
    rng = np.random.default_rng(height)
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    near_the_next_box = [2**0.5, np.nextafter(2**0.5, 0).item(), 1.4142134, 1.4142136]
    for radius in [0.1, 2.0, 3.3, *near_the_next_box, *rng.uniform(0.1, 2, 5 if height == 192 else 60).tolist()]:
        assert gaussian_blur(image, radius).tobytes() == image.filter(ImageFilter.GaussianBlur(radius)).tobytes()


def test_spreads_as_a_gaussian_does():
    image = np.zeros((41, 41, 3), np.uint8)
    image[20, 20] = 255
    image[17:24, 17:24] = 255
    blurred = np.asarray(gaussian_blur(Image.fromarray(image), 2.0))[..., 0].astype(float)
    x = np.arange(41) - 20
    kernel = np.exp(-((x[:, None] - x) ** 2) / 8) / np.sqrt(8 * np.pi)
    np.testing.assert_allclose(blurred, kernel @ image[..., 0] @ kernel.T, atol=6)
