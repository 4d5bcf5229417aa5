"""N-grams of source code against their definition."""

import collections
import math

import numpy as np
import pytest

from data.code import SEPARATOR, as_tokens
from scripts.code_baselines import witten_bell

TEXT = as_tokens([b"abababac", b"abcabc", b"ba"]).astype(np.int64)


def by_definition(text, before, target, order):
    if order == 0:
        return 1 / 256
    lower = by_definition(text, before[1:] if len(before) == order - 1 else before, target, order - 1)
    if len(before) < order - 1:
        return lower
    followers = collections.Counter(
        text[n + order - 1]
        for n in range(len(text) - order + 1)
        if text[n : n + order - 1] == before and text[n + order - 1] != SEPARATOR
    )
    total = followers.total()
    return (followers[target] + len(followers) * lower) / (total + len(followers)) if total else lower


def test_probabilities_are_those_of_the_definition():
    windows = np.array([[97, 98, 97, 99, 256, 97, 98], [120, 97, 98, 99, 97, 98, 120]])
    for order, found in enumerate(witten_bell(TEXT, windows, 4), start=1):
        for row, window in zip(found, windows.tolist(), strict=True):
            for t in range(1, 7):
                if window[t] != SEPARATOR:
                    before = window[max(0, t - order + 1) : t]
                    assert row[t - 1] == pytest.approx(by_definition(TEXT.tolist(), before, window[t], order)), (
                        order,
                        t,
                    )


def test_probabilities_add_up_and_those_of_a_unigram_by_hand():
    windows = np.array([[97, 98, byte] for byte in range(256)])
    *_, found = witten_bell(TEXT, windows, 3)
    assert found[:, -1].sum() == pytest.approx(1)
    (unigram,) = witten_bell(as_tokens([b"abababac"]).astype(np.int64), np.array([[97, 98]]), 1)
    assert math.isclose(unigram[0, 0], (3 + 3 / 256) / (8 + 3))
