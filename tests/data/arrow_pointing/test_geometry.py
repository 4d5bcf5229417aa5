"""The images of arrow pointing: the published ones byte for byte, the sampler, and reduced canvases."""

import math

import numpy as np
import pytest

from data.arrow_pointing.geometry import (
    DISTRIBUTIONS,
    KAPPA,
    SPLITS,
    ArrowVariant,
    Canvas,
    base_seed,
    digest,
    parameters,
    render,
    sample_parameters,
)
from plstm.errors import UserError

CANVASES = [Canvas(), Canvas(96, 0.5), Canvas(48, 0.25), Canvas(96, 0.5, 4)]
WITH_EXTENDED = [*CANVASES, *(Canvas(2 * canvas.size, canvas.scale, canvas.thinnest) for canvas in CANVASES)]
PAPERS = {  # of the first images, at the paper's sizes; train of seed 43
    ("train", 1000): (1000, 470, "4a0392e4b4a57134fe91c282"),
    ("val_ext", 500): (500, 248, "f66284c1492637fdfefeb74c"),
    ("test", 500): (500, 240, "a2c082921b4fe5f3ca24e583"),
    ("test_ext", 500): (500, 255, "82102a992391a75e596ef7c3"),
    ("val", 5120): (5120, 2606, SPLITS["val"].digest),
}
WHOLE = {
    ("val_ext", 5120): (5120, 2517, SPLITS["val_ext"].digest),
    ("test", 10240): (10240, 5053, SPLITS["test"].digest),
    ("test_ext", 10240): (10240, 5113, SPLITS["test_ext"].digest),
}


@pytest.mark.parametrize("split, count", [*PAPERS, *(pytest.param(*which, marks=pytest.mark.slow) for which in WHOLE)])
def test_images_are_the_papers(split, count):
    variant = ArrowVariant()
    images = ((render(arrow, variant.canvas(split)), arrow.label) for arrow in variant.arrows(split, count))
    assert digest(images) == (PAPERS | WHOLE)[split, count]


def one_draw_at_a_time(seed: int, index: int, size: int) -> tuple:
    """The paper's images at scale 1 as a plain program: one draw after the other from image `index`'s stream."""
    rng = np.random.default_rng(np.random.default_rng(seed).integers(1 << 62) + index)
    span = size - 60
    label = 1 if rng.random() < 0.5 else 0
    length, width = int(rng.uniform(15, 30)), int(rng.uniform(2, 4))
    ax, ay = span * rng.random(), span * rng.random()
    r = 15 + 15 * rng.random()
    cx = ax + 2 * r + (span - 4 * r) * rng.random()
    cx -= span if cx > span else 0
    cy = ay + 2 * r + (span - 4 * r) * rng.random()
    cy -= span if cy > span else 0
    d, straight, u = math.hypot(cx - ax, cy - ay), math.atan2(cy - ay, cx - ax), rng.random()
    if label:
        t = math.asin(r / (1.2 * d))
        phi = straight - t + 2 * t * u
    else:
        t = math.asin(1.2 * r / d)
        phi = straight + t + (2 * math.pi - 2 * t) * u
    return label, length, width, ax + 30, ay + 30, r, cx + 30, cy + 30, phi


@pytest.mark.parametrize("size", [192, 384])
def test_stream_draws_in_the_papers_order(size):
    base = base_seed(43)
    for index in range(200):
        ours = parameters(base, index, Canvas(size))
        assert ours == pytest.approx(one_draw_at_a_time(43, index, size), rel=1e-12)
        assert all(type(value) is int for value in ours[:3])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("canvas", WITH_EXTENDED)
def test_objects_fit_and_the_label_says_whether_the_ray_meets_the_circle(canvas, distribution):
    arrow = sample_parameters(np.random.default_rng(2), 50_000, canvas, distribution)
    dx, dy = arrow.cx - arrow.ax, arrow.cy - arrow.ay
    ahead = dx * np.cos(arrow.phi) + dy * np.sin(arrow.phi)
    beside = np.abs(dx * np.sin(arrow.phi) - dy * np.cos(arrow.phi))
    at = arrow.label == 1
    assert np.all(ahead[at] > 0) and np.all(beside[at] <= arrow.radius[at] / KAPPA + 1e-9)
    assert np.all((ahead[~at] < 0) | (beside[~at] >= KAPPA * arrow.radius[~at] - 1e-9))
    reach = np.maximum(arrow.length // 2 + arrow.width, arrow.radius)
    for centre in (arrow.ax, arrow.ay):
        assert np.all((centre - arrow.length // 2 >= 0) & (centre + arrow.length // 2 <= canvas.size))
    for centre in (arrow.cx, arrow.cy):
        assert np.all((centre - arrow.radius >= -1e-9) & (centre + arrow.radius <= canvas.size + 1e-9))
    assert np.all(np.hypot(arrow.cx - arrow.ax, arrow.cy - arrow.ay) > arrow.radius + reach * 0.5)


def test_reduced_images_are_the_papers_scaled():
    base = base_seed(43)
    for index in range(100):
        paper, reduced = (parameters(base, index, canvas) for canvas in (CANVASES[0], CANVASES[2]))
        assert reduced.label == paper.label and reduced.phi == pytest.approx(paper.phi)
        for name in ("ax", "ay", "radius", "cx", "cy"):
            assert 4 * getattr(reduced, name) == pytest.approx(getattr(paper, name))
        assert reduced.length == 12 and reduced.width == 2


def test_no_arrow_is_thinner_or_shorter_than_asked_for():
    variant = ArrowVariant(size=96, object_scale=0.5, thinnest=4)
    arrows = [*variant.arrows("test", 100)]
    assert {(arrow.length, arrow.width) for arrow in arrows} == {(24, 4)}
    images = ((render(arrow, variant.canvas("test")), arrow.label) for arrow in arrows)
    assert digest(images) == (100, 48, "9411be2d1cb6346e244d5d3c")


def test_the_smallest_canvas_works_and_less_is_refused():
    render(parameters(base_seed(0), 0, Canvas(180)), Canvas(180))
    Canvas(45, 0.25)
    bad = {
        "size": (179,),
        "object_scale": (0.0, -1.0, math.nan),
        "thinnest": (11,),
        "train_seed": (-1, 200_042),  # of an evaluation split
    }
    bad |= {"train_images": (0,), "eval_images": (0,), "distribution": ("x",)}
    for key, value in ((key, value) for key, values in bad.items() for value in values):
        with pytest.raises(UserError, match=f"data.{key}={value}"):
            ArrowVariant(**{key: value})
