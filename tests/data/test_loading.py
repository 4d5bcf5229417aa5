"""The order of training: the same on the device and streamed, across epochs, and after a resume."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from data.loading import DeviceBatches, StreamedBatches, epoch_order
from data.packed import PackedSplit, pack

COUNT, BATCH, SIZE = 10, 3, 8
STEPS = COUNT // BATCH  # an epoch; one image is left out of each
IMAGES = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (COUNT, SIZE, SIZE))
KEY = 5


class Source:
    """Random access as TFDS gives it; picklable, for reading processes. The label is the image's number."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"image": IMAGES[index][..., None], "label": np.int64(index), "radius": np.float32(1)}


def device(key=KEY, batch_size=BATCH):
    split = PackedSplit(pack(IMAGES), np.arange(COUNT, dtype=np.uint8), SIZE)
    return DeviceBatches(split, batch_size, jax.random.key(key))


def streamed(key=KEY, batch_size=BATCH, workers=0):
    return StreamedBatches(Source(), batch_size, jax.random.key(key), workers)


def take(batches, steps, start=0):
    return [jax.device_get(batch) for batch in itertools.islice(batches.from_step(start), steps)]


def labels(batches):
    return [batch["label"].tolist() for batch in batches]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.keys() == other.keys() == {"image", "label"}
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


def test_images_and_labels_stay_together():
    for batch in take(device(), 2 * STEPS):
        assert batch["image"].dtype == np.uint8 and batch["label"].dtype == np.int32
        np.testing.assert_array_equal(batch["image"], pack(IMAGES)[batch["label"]])


@pytest.mark.parametrize("batch_size", [1, BATCH, COUNT])
def test_streamed_batches_are_those_on_the_device(batch_size):
    steps = 20 * (COUNT // batch_size) + 1  # many threads read ahead, across the ends of epochs
    assert_same(take(streamed(batch_size=batch_size), steps), take(device(batch_size=batch_size), steps))


@pytest.mark.parametrize("make", [device, streamed])
@pytest.mark.parametrize("start", [1, STEPS, STEPS + 2])
def test_a_resumed_run_sees_what_it_would_have_seen(make, start):
    whole = take(make(), 3 * STEPS)
    assert_same(take(make(), 3 * STEPS - start, start), whole[start:])


def test_a_resume_late_in_training():
    start = 49 * STEPS + 1
    expected = np.asarray(epoch_order(jax.random.key(KEY), 49, COUNT, BATCH))[1:].tolist()
    assert labels(take(device(), STEPS - 1, start)) == labels(take(streamed(), STEPS - 1, start)) == expected


def test_an_epoch_has_no_image_twice():
    seen = np.array(labels(take(device(), 30 * STEPS))).reshape(30, STEPS * BATCH)
    assert all(len(set(epoch)) == STEPS * BATCH for epoch in seen.tolist())
    assert set(seen.ravel().tolist()) == set(range(COUNT))  # what an epoch leaves out, others have
    assert len({tuple(epoch) for epoch in seen.tolist()}) == 30


def test_an_epoch_that_the_batch_divides_has_every_image_once():
    for start in (0, 5):
        assert sorted(sum(labels(take(device(batch_size=2), 5, start)), [])) == list(range(COUNT))


def test_the_key_decides_the_order():
    assert labels(take(device(), STEPS)) == labels(take(device(), STEPS)) != labels(take(device(key=6), STEPS))
    assert labels(take(streamed(key=6), STEPS)) == labels(take(device(key=6), STEPS))


def test_arrays_are_put_where_told():
    where = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    split = PackedSplit(pack(IMAGES), np.arange(COUNT, dtype=np.uint8), SIZE)
    put = lambda array: jax.device_put(array, where)  # noqa: E731
    for batches in (
        DeviceBatches(split, BATCH, jax.random.key(KEY), put),
        StreamedBatches(Source(), BATCH, jax.random.key(KEY), put=put),
    ):
        assert all(array.sharding == where for array in next(batches.from_step(0)).values())


@pytest.mark.parametrize("start", [0, STEPS + 1])
def test_the_parts_of_processes_make_up_each_batch(start):
    key, steps = jax.random.key(KEY), 3 * STEPS
    parts = [
        take(StreamedBatches(Source(), BATCH, key, process_index=process, process_count=3), steps, start)
        for process in range(3)
    ]
    joined = [
        {name: np.concatenate([share[name] for share in shares]) for name in shares[0]}
        for shares in zip(*parts, strict=True)
    ]
    assert_same(joined, take(device(), steps, start))


@pytest.mark.multiprocess
def test_reading_processes_change_nothing():
    assert_same(take(streamed(workers=2), STEPS + 2, 1), take(device(), STEPS + 2, 1))
