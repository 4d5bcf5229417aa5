import itertools
import zlib

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from data.augment.recipes import RECIPES, AugmentConfig
from data.augment.views import View, augment, draw_view, make_view, random_resized_box, view_rng
from tests.drawing import scene

STREAMS = list(itertools.product((0, 43, 2**40), (0, 799), (0, 1_281_166), (0, 2)))


def test_views_never_change():
    image = scene(60, 80)
    views = [augment(image, 32, config, view_rng(*stream)) for stream in STREAMS for config in RECIPES.values()]
    assert f"{zlib.crc32(np.stack(views).tobytes()):08x}" == "3b44162c"


def test_every_number_makes_its_own_stream():
    grid = itertools.product(range(3), repeat=4)
    starts = [tuple(view_rng(*stream).integers(2**63, size=40)) for stream in grid]
    assert len({number for start in starts for number in start}) == 81 * 40
    draws = np.array([view_rng(7, 0, index, 0).random(2) for index in range(4000)])
    assert np.abs(draws.mean(axis=0) - 0.5).max() < 0.02  # first draws of neighbouring streams are uniform
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.05


def test_flip_and_the_order_of_steps_are_drawn():
    rng = np.random.default_rng(0)
    views = [draw_view(500, 375, RECIPES["deit3"], rng) for _ in range(2000)]
    assert np.mean([view.flip for view in views]) == pytest.approx(0.5, abs=0.04)
    assert {(len(view.steps), view.steps[0][0]) for view in views} == {(4, name) for name in THREE}
    assert len({tuple(name for name, _ in view.steps[1:]) for view in views}) == 6  # every order of the jitter
    factors = [factor for view in views for _, factor in view.steps[1:]]
    assert stats.kstest(factors, stats.uniform(0.7, 0.6).cdf).pvalue > 1e-3
    for flip in (0.0, 1.0):
        plain = [draw_view(500, 375, AugmentConfig(flip=flip), rng) for _ in range(20)]
        assert all(view.flip == flip and not view.steps for view in plain)
    jittered = AugmentConfig(auto_augment="rand-m9-inc1", color_jitter=0.1)
    assert {len(draw_view(50, 37, jittered, rng).steps) for _ in range(200)} == {3, 4, 5}


THREE = ("Solarize", "Grayscale", "GaussianBlur")
GRAY = (("Grayscale", None), ("Color", 0.8), ("Brightness", 1.3))
REFERENCES = {
    (): lambda i: i,
    (("Solarize", 128), ("Contrast", 1.2)): lambda i: ImageEnhance.Contrast(ImageOps.solarize(i, 128)).enhance(1.2),
    GRAY: lambda i: ImageEnhance.Brightness(i.convert("L").convert("RGB")).enhance(1.3),
}


@pytest.mark.parametrize("steps", REFERENCES)
def test_a_view_is_crop_then_flip_then_steps(steps):
    image, box = scene(70, 90), (3, 4, 81, 66)
    cropped = image.crop(box).resize((48, 48), Image.Resampling.BICUBIC)
    ours = make_view(image, 48, View(box, True, steps))
    assert ours.dtype == np.uint8 and ours.shape == (48, 48, 3)
    np.testing.assert_array_equal(ours, np.asarray(REFERENCES[steps](ImageOps.mirror(cropped))))


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P", "1"])
def test_any_picture_becomes_rgb(mode):
    image = scene(40, 50).convert(mode)
    ours = augment(image, 24, RECIPES["deit3"], view_rng(0, 0, 0, 0))
    np.testing.assert_array_equal(ours, augment(image.convert("RGB"), 24, RECIPES["deit3"], view_rng(0, 0, 0, 0)))
    assert ours.shape == (24, 24, 3)


@pytest.mark.parametrize("width, height", [(1, 1), (1, 40), (40, 1), (2, 3)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_tiny_pictures_work(recipe, width, height):
    for n in range(20):
        assert augment(scene(height, width), 8, RECIPES[recipe], view_rng(0, 0, 0, n)).shape == (8, 8, 3)


@pytest.mark.parametrize("width, height", [(500, 375), (375, 500), (2000, 2000)])
def test_area_aspect_and_place_follow_their_distributions(width, height):
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
