"""The benchmark of the input pipeline: what it measures on, and its rows."""

from __future__ import annotations

from data import decoding
from data.augment.recipes import RECIPES
from scripts import benchmark_data


def test_photographs_are_of_the_size_of_imagenets():
    for content in benchmark_data.photographs(3):
        assert decoding.decode(content).size == (500, 375)
        assert 70_000 < len(content) < 105_000


def test_every_recipe_is_measured_with_every_decoder():
    settings, rows = benchmark_data.measure(images=1, repeats=1)
    decoders = {"pillow"} | ({"simplejpeg"} if decoding.simplejpeg else set())
    expected = {(recipe, decoder) for recipe in ("decoding alone", *RECIPES) for decoder in decoders}
    assert {(row["recipe"], row["decoder"]) for row in rows} == expected
    assert all(row["views_per_second"] > 0 and len(row["rates"]) == 1 for row in rows)
    assert settings["images"] == 1
