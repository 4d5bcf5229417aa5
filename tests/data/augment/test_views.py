from __future__ import annotations

import itertools
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from data.augment import RECIPES, AugmentConfig, augment, view_rng
from data.augment.views import View, draw_view, make_view

ROOT = Path(__file__).resolve().parents[3]
STREAMS = list(itertools.product((0, 43, 2**40), (0, 799), (0, 1_281_166), (0, 2)))


def scene(height: int, width: int) -> Image.Image:
    y, x, c = np.indices((height, width, 3))
    return Image.fromarray(((x * (c + 1) + 2 * y + x * y // 40) % 256).astype(np.uint8))


def digests() -> str:
    """A number for every stream and recipe."""
    image = scene(60, 80)
    crcs = (
        zlib.crc32(augment(image, 32, config, view_rng(*stream)).tobytes())
        for stream in STREAMS
        for config in RECIPES.values()
    )
    return " ".join(f"{crc:08x}" for crc in crcs)


def test_another_process_makes_the_same_views():
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]; import test_views; "
    code += "print(test_views.digests())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == digests()


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
    for view in views[:200]:
        first, *jitter = (name for name, _ in view.steps)
        assert first in ("Solarize", "Grayscale", "GaussianBlur") and len(jitter) == 3
    plain = [draw_view(500, 375, AugmentConfig(flip=1.0), rng) for _ in range(20)]
    assert all(view.flip and not view.steps for view in plain)
    assert not any(draw_view(500, 375, AugmentConfig(flip=0.0), rng).flip for _ in range(20))
    jittered = AugmentConfig(auto_augment="rand-m9-inc1", color_jitter=0.1)
    assert {len(draw_view(50, 37, jittered, rng).steps) for _ in range(200)} == {3, 4, 5}


@pytest.mark.parametrize(
    "steps, reference",
    [
        ((), lambda image: image),
        (
            (("Solarize", 128), ("Contrast", 1.2)),
            lambda i: ImageEnhance.Contrast(ImageOps.solarize(i, 128)).enhance(1.2),
        ),
        (
            (("Grayscale", None), ("Color", 0.8), ("Brightness", 1.3)),
            lambda i: ImageEnhance.Brightness(i.convert("L").convert("RGB")).enhance(1.3),
        ),
        (
            (("GaussianBlur", 1.7), ("Color", 0.8)),
            lambda i: ImageEnhance.Color(i.filter(ImageFilter.GaussianBlur(1.7))).enhance(0.8),
        ),
    ],
)
def test_a_view_is_crop_then_flip_then_steps(steps, reference):
    image, box = scene(70, 90), (3, 4, 81, 66)
    cropped = image.crop(box).resize((48, 48), Image.Resampling.BICUBIC)
    ours = make_view(image, 48, View(box, True, steps))
    assert ours.dtype == np.uint8 and ours.shape == (48, 48, 3)
    np.testing.assert_array_equal(ours, np.asarray(reference(ImageOps.mirror(cropped))))


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
