"""Scores on formal languages without reading a token."""

import pytest

from scripts.language_baselines import scores


def test_the_place_in_a_sorted_row_tells_its_class():
    constant, position = scores("bucket_sort", 400, 32)
    assert constant == pytest.approx(0.2, abs=0.02) and 0.8 < position < 1
