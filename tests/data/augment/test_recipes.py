from collections import Counter

import numpy as np
import pytest
from scipy import stats

from data.augment.operations import GEOMETRIC
from data.augment.recipes import RAND_ARGUMENTS, RECIPES, RandAugment, parse_rand_augment
from plstm.errors import UserError
from plstm.runs.compose import compose_experiment

RAND = "rand-m9-mstd0.5-inc1"


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_those_of_the_configs(name):
    """Which are the paper's: tests/config/test_experiments.py."""
    choice = "variant=finetune" if name == "deit3_finetune" else f"augment={name}"
    assert compose_experiment("imagenet/plstm", choice).augment == RECIPES[name]


@pytest.fixture(scope="module")
def drawn():
    policy, rng = parse_rand_augment(RAND), np.random.default_rng(1)
    return [policy.draw(rng) for _ in range(12_000)]


def uniform(counts: Counter, choices: int) -> bool:
    return len(counts) == choices and stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_operations_are_drawn_uniformly_and_fire_independently(drawn):
    shapes = Counter(name for steps in drawn for name, _ in steps if name.split("/")[0] in GEOMETRIC)
    assert uniform(shapes, 10)  # each bicubic and bilinear
    drawn = [[(name.split("/")[0], argument) for name, argument in steps] for steps in drawn]
    assert uniform(Counter(name for steps in drawn for name, _ in steps), 15)
    fired = Counter(len(steps) for steps in drawn)
    assert stats.chisquare([fired[n] for n in range(3)], [3000, 6000, 3000]).pvalue > 1e-3
    pairs = Counter(tuple(name for name, _ in steps) for steps in drawn if len(steps) == 2)
    assert uniform(pairs, 225)  # with replacement


def test_magnitude_is_a_clipped_normal_and_the_sign_fair(drawn):
    degrees = np.array([argument for steps in drawn for name, argument in steps if name.startswith("Rotate")])
    level = np.abs(degrees) / 3
    assert stats.binomtest(int((degrees > 0).sum()), len(degrees)).pvalue > 1e-3
    assert stats.binomtest(int((level == 10).sum()), len(level), stats.norm.sf(2)).pvalue > 1e-3
    assert stats.kstest(level[level < 10], stats.truncnorm(-18, 2, 9, 0.5).cdf).pvalue > 1e-3
    bits = Counter(argument for steps in drawn for name, argument in steps if name == "Posterize")
    share = stats.norm.cdf([7.5, 10], 9, 0.5)  # 2 bits below 7.5, 0 bits at the clip
    expected = np.array([1 - share[1], share[1] - share[0], share[0]]) * bits.total()
    assert set(bits) <= {0, 1, 2} and abs(bits[1] - expected[1]) < 3 * np.sqrt(expected[0])


def test_low_and_exact_magnitudes():
    rng = np.random.default_rng(2)
    low = [step for _ in range(3000) for step in RandAugment(0, 1.0).draw(rng)]
    low = [argument for name, argument in low if name.startswith("ShearX")]
    assert np.mean(np.array(low) == 0) == pytest.approx(0.5, abs=0.1)  # clipped at 0
    exact = {step for _ in range(3000) for step in RandAugment(9).draw(rng)}
    given = {(name, argument(9.0, sign)) for name, argument in RAND_ARGUMENTS.items() for sign in (1, -1)}
    assert exact == given | {(f"{name}/bilinear", argument) for name, argument in given if name in GEOMETRIC}
    assert max(len(RandAugment(9, layers=5).draw(rng)) for _ in range(300)) == 5


def test_notation():
    assert parse_rand_augment(RAND) == RandAugment(9, 0.5, 2)
    assert parse_rand_augment("rand-inc1-n3-m7.5") == RandAugment(7.5, 0.0, 3)


UNKNOWN = """rand rand-m9 rand-inc1 rand-m9-inc0 rand-m11-inc1 rand-m9-n0-inc1 rand-m9-n1.5-inc1 rand-m9-m8-inc1
rand-m9-x3-inc1 rand-m-1-inc1 rand-m9-mstd-inc1 rand--m9-inc1 augmix three-augment randm9-inc1 rand-m9-inc1-"""


@pytest.mark.parametrize("text", [*UNKNOWN.split(), ""])
def test_unknown_notation_is_refused(text):
    with pytest.raises(UserError, match=f"augment.auto_augment={text}:.*rand-m9-mstd0.5-inc1"):
        parse_rand_augment(text)
