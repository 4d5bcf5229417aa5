"""Erasing and mixing against numpy: images are made so that the result shows where each pixel came from."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from data.augment import mixing
from data.augment.mixing import kept_weights, mix, random_erasing

MAPS = 4000
HEIGHT, WIDTH = 24, 30


@jax.jit
@partial(jax.vmap, in_axes=(0, None, None, None))
def _maps(key, *settings):
    return kept_weights(key, HEIGHT, WIDTH, *settings)


def cutmix_oracle(draws: int, alpha: float) -> np.ndarray:
    """Maps of the weight kept, one draw at a time."""
    rng, maps = np.random.default_rng(3), np.ones((draws, HEIGHT, WIDTH), np.float32)
    for kept in maps:
        ratio = np.sqrt(1 - rng.beta(alpha, alpha))
        tall, wide, y, x = int(HEIGHT * ratio), int(WIDTH * ratio), rng.integers(HEIGHT), rng.integers(WIDTH)
        kept[max(y - tall // 2, 0) : y + tall // 2, max(x - wide // 2, 0) : x + wide // 2] = 0
    return maps


def is_cutmix(maps: np.ndarray) -> np.ndarray:
    return np.isin(maps, (0, 1)).all(axis=(1, 2))


def assert_mixup(maps: np.ndarray, alpha: float) -> None:
    """One weight a map, drawn from a Beta distribution."""
    assert np.ptp(maps, axis=(1, 2)).max() == 0
    assert stats.kstest(maps[:, 3, 5], stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_half_the_batches_get_mixup_and_half_boxes_with_the_distribution_of_the_oracle():
    both = np.asarray(_maps(jax.random.split(jax.random.key(0), MAPS), 0.5, 0.8, 1.0))
    cut = is_cutmix(both)
    assert stats.binomtest(int(cut.sum()), MAPS).pvalue > 1e-3
    assert_mixup(both[~cut], 0.8)
    maps, oracle = both[cut], cutmix_oracle(20_000, 1.0)
    assert stats.ks_2samp(maps.mean(axis=(1, 2)), oracle.mean(axis=(1, 2))).pvalue > 1e-3
    np.testing.assert_allclose(maps.mean(axis=0), oracle.mean(axis=0), atol=5 * 0.5 / len(maps) ** 0.5)
    for axis in (1, 2):
        length = [(m == 0).any(axis=axis).sum(axis=1) for m in (maps, oracle)]
        assert stats.ks_2samp(*length).pvalue > 1e-3
    for kept in maps[:100]:
        rows, columns = (kept == 0).any(axis=1), (kept == 0).any(axis=0)
        np.testing.assert_array_equal(kept == 0, rows[:, None] & columns)
        assert all(np.abs(np.diff(side.astype(int), prepend=0, append=0)).sum() in (0, 2) for side in (rows, columns))


def test_mixup_alone_and_cutmix_alone():
    keys = jax.random.split(jax.random.key(2), MAPS)
    assert_mixup(np.asarray(_maps(keys, 0.0, 2.0, 0.0)), 2.0)
    cutmix = np.asarray(_maps(keys, 1.0, 0.0, 3.0))
    assert is_cutmix(cutmix).all()
    assert stats.ks_2samp(cutmix.mean(axis=(1, 2)), cutmix_oracle(10_000, 3.0).mean(axis=(1, 2))).pvalue > 1e-3


@pytest.mark.parametrize("mixup, cutmix, probability", [(0.8, 1.0, 0.5), (0.8, 0.0, 0.0), (0.0, 1.0, 1.0)])
def test_which_kinds_the_alphas_mean(monkeypatch, mixup, cutmix, probability):
    drawn = []
    monkeypatch.setattr(mixing, "kept_weights", lambda *given: drawn.append(given[1:]) or jnp.full((4, 6), 0.25))
    jax.eval_shape(lambda key: mix(jnp.zeros((2, 4, 6, 3)), jnp.eye(2), key, mixup, cutmix), jax.random.key(0))
    assert drawn == [(4, 6, probability, mixup, cutmix)]


def test_one_draw_a_group_partners_a_permutation_and_targets_the_share_of_the_pixels():
    """Image n is 1 in channel n, so that channels are the weights of the images."""
    batch, partners = 6, []
    start = jnp.broadcast_to(jnp.eye(batch)[:, None, None], (batch, 16, 20, batch))
    run = jax.jit(mix, static_argnums=(3, 4))
    for n in range(120):
        images, targets = map(np.asarray, run(start, jnp.eye(batch), jax.random.key(n), 0.8, 1.0))
        np.testing.assert_allclose(targets, images.mean(axis=(1, 2)), atol=1e-5)
        np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-6)
        own = images[np.arange(batch), :, :, np.arange(batch)]
        others = images.mean(axis=(1, 2)) * (1 - np.eye(batch))
        partner = np.where(others.max(axis=1) > 0, others.argmax(axis=1), np.arange(batch))
        moved = partner != np.arange(batch)
        if not moved.any():
            continue
        assert ((others > 0).sum(axis=1) <= 1).all()
        np.testing.assert_allclose(own[moved], np.broadcast_to(own[moved][:1], own[moved].shape), atol=1e-6)
        assert sorted(partner) == list(range(batch))
        partners.append(partner)
    counts = np.array([np.bincount(column, minlength=6) for column in np.array(partners).T])
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3  # every image is as often the partner of every other


def test_each_group_of_a_large_batch_has_its_own_draw_and_partners(monkeypatch):
    monkeypatch.setattr(mixing, "GROUP", 4)
    start = jnp.broadcast_to(jnp.eye(12)[:, None, None], (12, 8, 8, 12))
    targets = np.stack([mix(start, jnp.eye(12), jax.random.key(n), 0.8, 0.0)[1] for n in range(40)])
    blocks = targets.reshape(40, 3, 4, 3, 4).sum(axis=(2, 4))
    np.testing.assert_allclose(blocks, np.broadcast_to(4 * np.eye(3), blocks.shape), atol=1e-5)
    assert (targets.max(axis=0)[np.kron(np.eye(3), np.ones((4, 4))) > 0] > 0).all()  # of these, everybody's
    own = targets[:, np.arange(12), np.arange(12)].reshape(40, 3, 4).min(axis=2)  # 1 where all kept their places
    assert len(np.unique(own.round(5))) > 100


def test_neither_changes_nothing_and_the_type_stays():
    images, targets, key = jnp.ones((2, 4, 4, 3), jnp.bfloat16), jnp.eye(2), jax.random.key(0)
    assert mix(images, targets, key, 0.0, 0.0) == (images, targets)
    assert random_erasing(images, key, 0.0) is images
    mixed = jax.eval_shape(lambda: mix(images, targets, key, 0.8, 1.0))
    assert [each.dtype for each in mixed] == [jnp.bfloat16, jnp.float32]
    assert jax.eval_shape(lambda: random_erasing(images, key, 1.0)).dtype == jnp.bfloat16
    small = jnp.ones((20, 1, 1, 3))  # too small for a box
    np.testing.assert_array_equal(random_erasing(small, key, 1.0), small)


def boxes_of(noise: np.ndarray) -> np.ndarray:
    """Top, left, height, width of the pixels that are not zero, for each image that has some."""
    found = []
    for mask in (noise != 0).any(axis=-1):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        if len(rows):
            inside = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            assert inside.all() and inside.sum() == mask.sum()
            found.append((rows[0], columns[0], len(rows), len(columns)))
    return np.array(found)


def erasing_oracle(height: int, width: int, draws: int) -> np.ndarray:
    rng, found = np.random.default_rng(6), []
    for _ in range(draws):
        for _ in range(10):
            area, aspect = rng.uniform(0.02, 0.33) * height * width, np.exp(rng.uniform(np.log(0.3), np.log(3.3)))
            h, w = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
            if h < height and w < width:
                found.append((rng.integers(height - h + 1), rng.integers(width - w + 1), h, w))
                break
    return np.array(found)


def test_erased_boxes_have_the_oracle_s_distribution_and_independent_normal_noise():
    images = np.random.default_rng(1).uniform(50, 60, (4000, 20, 28, 2)).astype(np.float32)
    result = np.asarray(jax.jit(random_erasing, static_argnums=2)(images, jax.random.key(1), 0.25))
    erased = np.where(result == images, 0, result)  # zero where pixels were left alone
    boxes, oracle = boxes_of(erased), erasing_oracle(*erased.shape[1:3], 20_000)
    assert stats.binomtest(len(boxes), len(erased), 0.25).pvalue > 1e-3
    assert boxes[:, 0].min() == 0 and (boxes[:, 0] + boxes[:, 2]).max() == erased.shape[1]
    for part in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 2] / b[:, 3], lambda b: b[:, 0], lambda b: b[:, 1]):
        assert stats.ks_2samp(part(boxes), part(oracle)).pvalue > 1e-3
    noise = erased[(erased != 0).any(axis=-1)]
    assert stats.kstest(noise.ravel()[:20_000], "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.01
    assert len(np.unique(noise)) > 0.95 * noise.size  # float32 has few values for so many draws
