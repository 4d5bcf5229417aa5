from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from data.augment.crops import evaluation_crop, random_resized_box, resized_crop

SIZES = [(500, 375), (375, 500), (2000, 2000), (1, 1), (3, 2), (10, 1000), (1000, 10), (1, 50)]


@pytest.fixture
def picture():
    rng = np.random.default_rng(0)
    return lambda height, width: Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("width, height", SIZES)
def test_boxes_lie_in_the_image(width, height):
    rng = np.random.default_rng(1)
    for left, upper, right, lower in (random_resized_box(width, height, rng) for _ in range(300)):
        assert 0 <= left < right <= width and 0 <= upper < lower <= height


@pytest.mark.parametrize("width, height", SIZES[:3])
def test_area_aspect_and_place_follow_the_law(width, height):
    rng = np.random.default_rng(2)
    boxes = np.array([random_resized_box(width, height, rng) for _ in range(6000)])
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    share = rng.uniform(0.08, 1, 200_000)
    aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), 200_000))
    fits = (np.sqrt(share * aspect * height / width) < 1) & (np.sqrt(share / aspect * width / height) < 1)
    assert stats.ks_2samp(wide * high / (width * height), share[fits]).pvalue > 1e-3
    assert stats.ks_2samp(wide / high, aspect[fits]).pvalue > 1e-3
    for start, side, size in ((boxes[:, 0], wide, width), (boxes[:, 1], high, height)):
        room = size - side
        place = (start + rng.random(len(start))) / (room + 1)  # uniform over the whole numbers 0 to room
        assert stats.kstest(place, "uniform").pvalue > 1e-3
        assert start.min() == 0 and (start + side).max() == size


@pytest.mark.parametrize("width, height, box", [(10, 1000, (0, 493, 10, 506)), (1000, 10, (493, 0, 506, 10))])
def test_where_nothing_fits_the_central_box_is_taken(width, height, box):
    rng = np.random.default_rng(3)
    assert {random_resized_box(width, height, rng) for _ in range(50)} == {box}


def test_pixels_outside_the_box_play_no_part(picture):
    image, box = picture(50, 60), (10, 5, 47, 40)
    inside = Image.fromarray(np.asarray(image)[5:40, 10:47])
    ours = resized_crop(image, box, 24)
    assert ours.tobytes() == inside.resize((24, 24), Image.Resampling.BICUBIC).tobytes()


@pytest.mark.parametrize(
    "width, height, size, ratio, resized, corner",
    [
        (500, 375, 192, 1.0, (256, 192), (32, 0)),
        (375, 500, 192, 1.0, (192, 256), (0, 32)),
        (500, 375, 224, 0.875, (341, 256), (58, 16)),
        (64, 64, 192, 0.875, (219, 219), (14, 14)),
        (30, 31, 192, 1.0, (192, 198), (0, 3)),
    ],
)
def test_evaluation_crop(picture, width, height, size, ratio, resized, corner):
    image = picture(height, width)
    left, upper = corner
    expected = np.asarray(image.resize(resized, Image.Resampling.BICUBIC))[upper : upper + size, left : left + size]
    ours = evaluation_crop(image, size, ratio)
    assert ours.dtype == np.uint8 and ours.shape == (size, size, 3)
    np.testing.assert_array_equal(ours, expected)


def test_evaluation_crop_keeps_an_image_of_the_right_size(picture):
    image = picture(192, 192)
    np.testing.assert_array_equal(evaluation_crop(image, 192, 1.0), np.asarray(image))
    assert evaluation_crop(image.convert("L"), 16, 0.5).shape == (16, 16, 3)


@pytest.mark.parametrize("ratio", [0.0, 1.1, -1.0])
def test_impossible_ratios_are_refused(picture, ratio):
    with pytest.raises(ValueError, match="ratio"):
        evaluation_crop(picture(8, 8), 8, ratio)
