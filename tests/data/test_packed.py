"""Images at one bit a pixel."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.packed import PackedSplit, pack, unpack


@pytest.mark.parametrize("size", [1, 3, 8, 13, 48])
@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
def test_unpack_undoes_pack(size, batch):
    images = np.random.default_rng(size).choice(np.array([0, 255], np.uint8), (*batch, size, size))
    bits = pack(images)
    assert bits.dtype == np.uint8 and bits.shape == (*batch, -(-size * size // 8))
    back = unpack(bits, size)
    assert isinstance(back, np.ndarray) and back.dtype == np.uint8
    np.testing.assert_array_equal(back, images)
    on_device = jax.jit(partial(unpack, size=size))(jnp.asarray(bits))
    assert on_device.dtype == jnp.uint8
    np.testing.assert_array_equal(on_device, images)


def test_white_is_one_and_the_first_pixel_is_the_highest_bit():
    image = np.zeros((3, 3), np.uint8)
    image[0, 0] = image[2, 2] = 255
    assert pack(image).tolist() == [0b1000_0000, 0b1000_0000]


@pytest.mark.parametrize("count", [1, 5, 8, 13])
def test_the_parts_of_processes_make_up_each_batch(count):
    bits, labels = np.arange(2 * count, dtype=np.uint8).reshape(count, 2), np.arange(count, dtype=np.uint8)
    parts = [PackedSplit(bits, labels, 4, process, 4).batches(8) for process in range(4)]
    for whole, *shares in zip(PackedSplit(bits, labels, 4).batches(8), *parts, strict=True):
        assert {len(share["label"]) for share in shares} == {2}
        for name, values in whole.items():
            np.testing.assert_array_equal(np.concatenate([share[name] for share in shares]), values)
