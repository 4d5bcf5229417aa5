"""The law of arrow pointing: the published images byte for byte, the sampler, and reduced laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from data.arrow_law import (
    KAPPA,
    SPLITS,
    Arrow,
    ArrowLaw,
    base_seed,
    digest,
    parameters,
    render,
    sample_parameters,
    split_geometry,
    split_law,
)
from plstm.errors import UserError

LAWS = [ArrowLaw(), ArrowLaw(96, 0.5), ArrowLaw(48, 0.25)]
PREFIXES = {  # of the first images, at the paper's sizes; train of seed 43
    "train": (1000, 470, "4a0392e4b4a57134fe91c282"),
    "val_ext": (500, 248, "f66284c1492637fdfefeb74c"),
    "test": (500, 240, "a2c082921b4fe5f3ca24e583"),
    "test_ext": (500, 255, "82102a992391a75e596ef7c3"),
}
WHOLE = {
    "val": (5120, 2606, "7996369f91498d46eef9266f"),
    "val_ext": (5120, 2517, "61e09067958390be7291f618"),
    "test": (10240, 5053, "94030e29ead8a2c26f72554c"),
    "test_ext": (10240, 5113, "bdc54105f404e2708ec05b23"),
}


def split_digest(split: str, count: int) -> tuple[int, int, str]:
    law = split_law(split, ArrowLaw())
    return digest((render(arrow, law), arrow.label) for arrow in split_geometry(split, ArrowLaw(), 43, count))


@pytest.mark.parametrize("split", PREFIXES)
def test_first_images_are_the_papers(split):
    assert split_digest(split, PREFIXES[split][0]) == PREFIXES[split]


def test_validation_split_is_the_papers():
    assert split_digest("val", SPLITS["val"].images) == WHOLE["val"]


@pytest.mark.slow
@pytest.mark.parametrize("split", [split for split in WHOLE if split != "val"])
def test_whole_splits_are_the_papers(split):
    assert split_digest(split, SPLITS[split].images) == WHOLE[split]


def test_table_of_splits_holds_the_same_digests():
    assert {name: split.digest for name, split in SPLITS.items() if split.digest} == {
        name: sha for name, (_, _, sha) in WHOLE.items()
    }


def one_draw_at_a_time(seed: int, index: int, size: int) -> tuple:
    """The paper's law at scale 1 as a plain program: one draw after the other from image `index`'s stream."""
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
        ours = parameters(base, index, ArrowLaw(size))
        assert ours == pytest.approx(one_draw_at_a_time(43, index, size), rel=1e-12)
        assert all(type(value) is int for value in ours[:3])


@pytest.mark.parametrize("law", LAWS)
def test_sampler_follows_the_law_of_the_stream(law):
    base = base_seed(5)
    stream = Arrow(*(np.array(v) for v in zip(*(parameters(base, i, law) for i in range(4000)), strict=True)))
    sampled = sample_parameters(np.random.default_rng(1), 100_000, law)
    assert abs(sampled.label.mean() - 0.5) < 0.008
    for label in (0, 1):
        for name in Arrow._fields[1:]:
            one, other = (getattr(arrow, name)[arrow.label == label] for arrow in (stream, sampled))
            assert stats.ks_2samp(one, other).pvalue > 1e-4, (label, name)


@pytest.mark.parametrize("law", [*LAWS, *(law.extended() for law in LAWS)])
def test_label_says_whether_the_ray_meets_the_circle(law):
    arrow = sample_parameters(np.random.default_rng(2), 50_000, law)
    dx, dy = arrow.cx - arrow.ax, arrow.cy - arrow.ay
    ahead = dx * np.cos(arrow.phi) + dy * np.sin(arrow.phi)
    beside = np.abs(dx * np.sin(arrow.phi) - dy * np.cos(arrow.phi))
    at = arrow.label == 1
    assert np.all(ahead[at] > 0) and np.all(beside[at] <= arrow.radius[at] / KAPPA + 1e-9)
    assert np.all((ahead[~at] < 0) | (beside[~at] >= KAPPA * arrow.radius[~at] - 1e-9))


@pytest.mark.parametrize("law", [*LAWS, *(law.extended() for law in LAWS)])
def test_objects_fit_the_canvas_and_each_other(law):
    arrow = sample_parameters(np.random.default_rng(3), 50_000, law)
    reach = np.maximum(arrow.length // 2 + arrow.width, arrow.radius)
    for centre in (arrow.ax, arrow.ay):
        assert np.all((centre - arrow.length // 2 >= 0) & (centre + arrow.length // 2 <= law.size))
    for centre in (arrow.cx, arrow.cy):
        assert np.all((centre - arrow.radius >= -1e-9) & (centre + arrow.radius <= law.size + 1e-9))
    assert np.all(np.hypot(arrow.cx - arrow.ax, arrow.cy - arrow.ay) > arrow.radius + reach * 0.5)


def test_reduced_law_is_the_papers_scaled():
    base = base_seed(43)
    for index in range(100):
        paper, reduced = (parameters(base, index, law) for law in (LAWS[0], LAWS[2]))
        assert reduced.label == paper.label and reduced.phi == pytest.approx(paper.phi)
        for name in ("ax", "ay", "radius", "cx", "cy"):
            assert 4 * getattr(reduced, name) == pytest.approx(getattr(paper, name))
        assert reduced.length == 12 and reduced.width == 2


@pytest.mark.parametrize("law", LAWS)
def test_images_are_two_coloured_and_show_the_whole_arrow(law):
    for index in range(50):
        arrow = parameters(base_seed(7), index, law)
        image = render(arrow, law)
        assert image.shape == (law.size, law.size) and image.dtype == np.uint8
        assert set(np.unique(image)) == {0, 255}
        y, x = np.nonzero(render(arrow._replace(cx=-1e4), law) == 0)
        assert np.hypot(np.ptp(x), np.ptp(y)) >= 2 * (arrow.length // 2) - 2
        y, x = np.nonzero(render(arrow._replace(ax=-1e4), law) == 0)
        for pixels, centre in ((x, arrow.cx), (y, arrow.cy)):
            assert pixels.min() == int(centre - arrow.radius) and pixels.max() == int(centre + arrow.radius)


@pytest.mark.parametrize(
    "size, scale, key", [(179, 1.0, "size"), (44, 0.25, "size"), (192, 0.0, "scale"), (192, math.nan, "scale")]
)
def test_impossible_laws_are_refused(size, scale, key):
    with pytest.raises(UserError, match=f"data.{key}="):
        ArrowLaw(size, scale)


def test_smallest_canvas_works():
    render(parameters(base_seed(0), 0, ArrowLaw(180)), ArrowLaw(180))
    assert ArrowLaw(45, 0.25).extended() == ArrowLaw(90, 0.25)
