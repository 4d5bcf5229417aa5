"""Images at one bit a pixel, and the order of training, also after a resume."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.loading import DeviceBatches, PackedSplit, epoch_order, pack, unpack
from tests.data.batching import assert_same, joined, take

COUNT, BATCH, SIZE, SEED = 10, 3, 8, 5
STEPS = COUNT // BATCH  # an epoch; one image is left out of each
IMAGES = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (COUNT, SIZE, SIZE))


def batches(seed=SEED, batch_size=BATCH, **options):
    """The label is the image's number."""
    return DeviceBatches(PackedSplit(pack(IMAGES), np.arange(COUNT, dtype=np.uint8), SIZE), batch_size, seed, **options)


def labels(found):
    return [batch["label"].tolist() for batch in found]


def test_the_order_of_an_epoch_never_changes():
    assert epoch_order(5, 0, 10).tolist() == [5, 1, 7, 3, 4, 6, 8, 9, 2, 0]
    for batch in take(batches(), 2 * STEPS):
        np.testing.assert_array_equal(batch["image"], pack(IMAGES)[batch["label"]])


@pytest.mark.parametrize("start", [1, STEPS, STEPS + 2, 49 * STEPS + 1])
def test_a_resumed_run_sees_what_it_would_have_seen(start):
    orders = [epoch_order(SEED, epoch, COUNT)[: STEPS * BATCH].reshape(STEPS, BATCH) for epoch in range(51)]
    assert labels(take(batches(), STEPS, start)) == np.concatenate(orders)[start:][:STEPS].tolist()


def test_the_seed_decides_the_order():
    assert labels(take(batches(seed=6), STEPS)) != labels(take(batches(), STEPS))


def test_images_labels_and_the_order_of_each_epoch_are_put_by_the_given_function():
    shapes = []

    def put(array):
        shapes.append(array.shape)
        return jnp.asarray(array)

    take(batches(put=put), 2 * STEPS)
    assert shapes == [(COUNT, SIZE * SIZE // 8), (COUNT,), (STEPS, BATCH), (STEPS, BATCH)]


@pytest.mark.parametrize("count", [1, 5, 8, 13])
def test_the_parts_of_processes_make_up_each_batch_of_an_evaluation(count):
    bits, labels = np.arange(2 * count, dtype=np.uint8).reshape(count, 2), np.arange(count, dtype=np.uint8)
    parts = [list(PackedSplit(bits, labels, 4, process, 4).batches(8)) for process in range(4)]
    assert {len(batch["label"]) for part in parts for batch in part} == {2}
    assert_same(joined(parts), list(PackedSplit(bits, labels, 4).batches(8)))


@pytest.mark.parametrize("size", [1, 3, 8, 13, 48])
@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
def test_unpack_undoes_pack(size, batch):
    images = np.random.default_rng(size).choice(np.array([0, 255], np.uint8), (*batch, size, size))
    bits = pack(images)
    assert bits.dtype == np.uint8 and bits.shape == (*batch, -(-size * size // 8))
    back, on_device = unpack(bits, size), jax.jit(partial(unpack, size=size))(jnp.asarray(bits))
    assert isinstance(back, np.ndarray) and back.dtype == on_device.dtype == np.uint8
    np.testing.assert_array_equal(back, images)
    np.testing.assert_array_equal(on_device, images)
    assert pack(np.diag([255, 0, 255]).astype(np.uint8)).tolist() == [0b1000_0000, 0b1000_0000]  # the highest bit first
