"""Scores without a model."""

import numpy as np
import pytest

from scripts.baselines import language_scores, majority_accuracy


def test_the_place_in_a_sorted_row_tells_its_class():
    constant, position = language_scores("bucket_sort", 400, 32)
    assert constant == pytest.approx(0.2, abs=0.02) and 0.8 < position < 1


def test_the_majority_of_each_fold_s_training_graphs():
    labels = np.repeat([0, 1], [60, 40])
    assert majority_accuracy(labels, 10, 42) == pytest.approx(0.6)
    assert majority_accuracy(1 - labels, 10, 42) == pytest.approx(0.6)
