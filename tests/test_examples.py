"""The example's page and pictures are what its script prints and draws."""

import re

import numpy as np
import pytest
from PIL import Image

from scripts.render_example import SCRIPT, render

DECIMAL = r"\d+\.\d+"  # processors round differently


@pytest.mark.slow
def test_the_page_is_what_the_script_prints_and_draws(tmp_path):
    page = render(SCRIPT, tmp_path).read_text(encoding="utf-8")
    committed = SCRIPT.with_suffix(".md").read_text(encoding="utf-8")
    assert re.split(DECIMAL, page) == re.split(DECIMAL, committed), "run: make examples"
    numbers, expected = (np.array(re.findall(DECIMAL, text), float) for text in (page, committed))
    np.testing.assert_allclose(numbers, expected, atol=0.05)
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == sorted(path.name for path in SCRIPT.parent.glob("*.png"))
    for name in pictures:
        drawn, kept = (
            np.asarray(Image.open(folder / name).convert("RGB"), int) for folder in (tmp_path, SCRIPT.parent)
        )
        assert drawn.shape == kept.shape and np.abs(drawn - kept).mean() < 1, f"{name}: run: make examples"


def test_the_example_is_short():
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) <= 200
    page = [SCRIPT.with_suffix(".md"), *SCRIPT.parent.glob("*.png")]
    assert sum(path.stat().st_size for path in page) <= 600_000
