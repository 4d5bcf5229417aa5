"""Batches of photographs: which views, the same however they are read, and what becomes of corrupt images."""

import gc
import io
import os
import signal
import time
import warnings

import numpy as np
import psutil
import pytest
from grain.multiprocessing import SharedMemoryArray
from PIL import Image

from data.augment.recipes import AugmentConfig
from data.augment.views import augment, view_rng
from data.imagenet import batches as images
from data.imagenet.batches import ImageBatches, ImageSplit
from plstm.errors import UserError
from plstm.preprocessing import evaluation_crop
from tests.commands import ROOT, begin
from tests.data.batching import assert_same, joined, take
from tests.drawing import encoded

COUNT, SIZE, SEED = 23, 16, 5
CONFIG = AugmentConfig(repeats=3, color_jitter=0.3)


def photograph(number: int) -> bytes:
    rng = np.random.default_rng(number)
    return encoded(Image.fromarray(rng.integers(0, 256, (*rng.integers(18, 40, 2), 3), np.uint8)))


def opened(index: int) -> Image.Image:
    return Image.open(io.BytesIO(FILES[index])).convert("RGB")


FILES = [photograph(number) for number in range(COUNT)]


class Source:
    """Image n is labelled 100 + n; those in `corrupt` cannot be decoded. Picklable, for reading processes."""

    def __init__(self, corrupt=()):
        self.corrupt = corrupt

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        content = b"damaged" if index in self.corrupt else FILES[index]
        return {"image": content, "label": 100 + index, "file_name": f"n{index}.JPEG"}


def batches(source=None, batch_size=10, **options) -> ImageBatches:
    return ImageBatches(source or Source(), SIZE, batch_size, CONFIG, SEED, **options)


def view(epoch: int, index: int, number: int) -> np.ndarray:
    return augment(opened(index), SIZE, CONFIG, view_rng(SEED, epoch, index, number))


def test_batches_are_the_views_of_each_epochs_order():
    found = take(batches(), 4)  # two epochs of two batches of ten views: the seventh image has one view in each batch
    for epoch in (0, 1):
        order = np.random.RandomState((SEED, epoch)).permutation(COUNT)
        expected = [(index, number) for index in order for number in range(3)][:20]
        both = {name: np.concatenate([batch[name] for batch in found[2 * epoch :][:2]]) for name in ("image", "label")}
        assert both["image"].dtype == np.uint8 and both["label"].dtype == np.int32
        assert both["label"].tolist() == [100 + index for index, _ in expected]
        np.testing.assert_array_equal(both["image"], [view(epoch, *which) for which in expected])


def test_an_image_is_read_once_for_its_views():
    read = []

    class Counted(Source):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    labels = batches(Counted(), batch_size=12)._batch(0)["label"].tolist()
    assert sorted(labels) == sorted(100 + index for index in read for _ in range(3))


@pytest.mark.parametrize("start", [1, 2, 5])
def test_a_resumed_run_sees_what_it_would_have_seen(start):
    assert_same(take(batches(), 7 - start, start), take(batches(), 7)[start:])


@pytest.mark.parametrize("count", [2, 5])
def test_hosts_read_the_rows_of_one_batch(count):
    parts = [take(batches(process_index=index, process_count=count), 3) for index in range(count)]
    assert_same(joined(parts), take(batches(), 3))


def test_reading_processes_change_nothing_and_report_corrupt_images():
    source = Source(corrupt=(3, 11))
    with pytest.warns(UserWarning) as local:
        expected = take(batches(source, max_corrupt=0.1), 12, 1)
    with pytest.warns(UserWarning) as told:
        assert_same(take(batches(source, max_corrupt=0.1, workers=2), 12, 1), expected)
    both = ([str(one.message) for one in each if one.category is UserWarning] for each in (local, told))
    messages, others = map(sorted, both)
    assert messages == others
    assert [message.split(":")[0] for message in messages] == ["n11.JPEG", "n3.JPEG"]  # each once
    with pytest.raises(UserError, match=r"GiB free, but the batches of data.workers need .*--shm-size"):
        next(batches(workers=2, beside=10**18).from_step(0))


def split(source=None, **options) -> ImageSplit:
    return ImageSplit(source or Source(), SIZE, 0.875, **options)


def crop(index: int) -> np.ndarray:
    return evaluation_crop(opened(index), SIZE, 0.875)


def assert_whole(found: list[dict], batch_size: int) -> None:
    assert [len(batch["label"]) for batch in found] == [batch_size] * -(-COUNT // batch_size)
    whole = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    assert whole["mask"].tolist() == [True] * COUNT + [False] * (len(whole["mask"]) - COUNT)
    assert whole["label"][:COUNT].tolist() == list(range(100, 100 + COUNT))
    np.testing.assert_array_equal(whole["image"][:COUNT], [crop(index) for index in range(COUNT)])


@pytest.mark.parametrize(("batch_size", "hosts"), [(1, 1), (10, 1), (COUNT, 1), (40, 1), (8, 2), (40, 2)])
def test_evaluation_has_every_image_once(batch_size, hosts):
    """Of 40, the second of two hosts has only padding."""
    parts = [list(split(process_index=n, process_count=hosts).batches(batch_size)) for n in range(hosts)]
    assert_whole(joined(parts), batch_size)


def test_the_first_batch_alone_is_the_first():
    expected = next(split().batches(10))
    for workers in (0, 2):
        assert_same([split(workers=workers).first(10)], [expected])
    batch = 10 * SIZE**2 * 3
    assert split().shared_bytes(10) == 0 and split(workers=2).shared_bytes(10) == 3 * batch
    assert split(workers=2).shared_bytes(1) == 11 * batch // 10


@pytest.mark.slow
def test_reading_processes_evaluate_the_same():
    assert_whole(list(split(workers=2).batches(10)), 10)
    assert not [one for one in gc.get_objects() if isinstance(one, SharedMemoryArray)]  # all of it given back


def test_the_next_image_replaces_a_corrupt_one():
    with pytest.warns(UserWarning, match=r"n22.JPEG: cannot be decoded \(\w+: .*\); the next image takes its place"):
        found = take(batches(Source(corrupt=(22,)), max_corrupt=0.05), 20)
    whole = take(batches(), 20)
    for one, other in zip(found, whole, strict=True):
        replaced = other["label"] == 122
        assert one["label"].tolist() == np.where(replaced, 100, other["label"]).tolist()
        np.testing.assert_array_equal(one["image"][~replaced], other["image"][~replaced])


def test_too_many_corrupt_images_end_the_run():
    source, seen = Source(corrupt=(2, 9, 17)), []
    with pytest.warns(UserWarning) as told, pytest.raises(UserError, match="3 of 23 images.*data.max_corrupt=0.1"):
        for batch in batches(source, max_corrupt=0.1).from_step(0):
            seen.append(batch)
    assert len({str(warning.message) for warning in told}) == 3 and len(seen) > 0


def test_without_a_good_image_it_ends(monkeypatch):
    monkeypatch.setattr(images, "TRIES", 4)
    with pytest.raises(UserError, match="and the 3 images after it cannot be decoded"):
        take(batches(Source(corrupt=range(COUNT)), max_corrupt=1), 1)


def test_a_corrupt_image_counts_as_wrong():
    source = split(Source(corrupt=(4,)), max_corrupt=0.05)
    with pytest.warns(UserWarning, match="n4.JPEG: .* it counts as wrong"):
        found = list(source.batches(10))
    assert found[0]["label"][4] == -1 and found[0]["mask"].all() and (found[0]["image"][4] == images.GREY).all()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was reported above
        assert sum(batch["mask"].sum() for batch in source.batches(10)) == COUNT
    with pytest.warns(UserWarning), pytest.raises(UserError, match="1 of 23 images cannot be decoded.* n4.JPEG"):
        list(split(Source(corrupt=(4,))).batches(10))


READER = """
import sys, time
from data.augment.recipes import AugmentConfig
from data.imagenet.batches import ImageBatches
from data.imagenet.folders import folder_source
if __name__ == "__main__":
    stream = ImageBatches(folder_source(sys.argv[1]), 16, 4, AugmentConfig(), 0, workers=2).from_step(0)
    for _ in range(40):
        next(stream)
        print("batch", flush=True)
        time.sleep(0.1)
    stream.close()
"""


@pytest.fixture
def program(tmp_path):
    """A program that reads with two processes."""
    (tmp_path / "images/a").mkdir(parents=True)
    for number, content in enumerate(FILES):
        (tmp_path / f"images/a/{number}.png").write_bytes(content)
    (tmp_path / "reader.py").write_text(READER)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with begin(tmp_path / "reader.py", tmp_path / "images", environment=environment) as process:
        yield process
        process.kill()


def processes_of(program) -> list[psutil.Process]:
    children = psutil.Process(program.pid).children()
    return [child for child in children if "spawn_main" in "".join(child.cmdline())]


@pytest.fixture
def reader(program):
    """The same, once it has batches; and those processes."""
    for _ in range(2):  # one of each
        assert program.stdout.readline() == "batch\n"
    workers = processes_of(program)
    assert len(workers) == 2
    return program, workers


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_reading_processes_outlive_signals_while_they_start(program, number):
    while len(workers := processes_of(program)) < 2:
        assert program.poll() is None
        time.sleep(0.05)
    for _ in range(10):
        for worker in workers:
            worker.send_signal(number)
        time.sleep(0.3)
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out.count("batch")) == (0, 40) and "Interrupt" not in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_reading_processes_outlive_signals_to_the_whole_job(reader, number):
    process, workers = reader
    for worker in workers:
        worker.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.count("batch") == 38


@pytest.mark.slow
def test_a_program_that_waits_for_its_first_batch_takes_interrupts(program):
    while not (workers := processes_of(program)):
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=300)
    assert program.returncode and "batch" not in out and err.count("KeyboardInterrupt") == 1
    assert not psutil.wait_procs(workers, timeout=120)[1]


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["worker", "parent"])
def test_a_killed_process_ends_the_others(reader, killed):
    process, workers = reader
    (workers[0] if killed == "worker" else process).kill()
    _, err = process.communicate(timeout=300)
    if killed == "worker":
        assert process.returncode == 1 and "ReadError: a reading process ended" in err
    assert not psutil.wait_procs(workers, timeout=120)[1]
