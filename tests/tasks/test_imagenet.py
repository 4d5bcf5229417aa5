"""ImageNet as a task: what its config may say, its loss, and its data from end to end where nothing is prepared."""

import io
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from data.augment.mixing import mix
from data.augment.recipes import AugmentConfig
from data.imagenet.source import MosaicSource
from plstm.config import Config, LoopConfig, OptimConfig
from plstm.errors import UserError
from plstm.models import VisionConfig
from plstm.runs.identity import run_id
from plstm.tasks.imagenet import ImageNetData, ImageNetTask
from plstm.tasks.photographs import LOSSES
from plstm.tasks.vision import normalise
from plstm.training.meshes import Layout, make_mesh
from tests.data.batching import assert_parts_make_up, take

MIXED = dict(mixup=0.8, cutmix=1.0)
LAYOUT = Layout(make_mesh(1))


def config_of(augment=None, loss="cross_entropy", smoothing=0.0, **data) -> Config:
    data = {"name": "mosaics", "size": 32, "train_images": 100, "held_out": 10, "eval_images": 7, "workers": 0} | data
    return Config(
        task="imagenet",
        model=VisionConfig(classes=1000, image_size=data["size"]),
        data=ImageNetData(**data),
        augment=augment or AugmentConfig(),
        optim=OptimConfig(batch_size=8, loss=loss, label_smoothing=smoothing),
        loop=LoopConfig(eval_splits=["val"], final_splits=["val", "test"]),
    )


def test_there_is_a_reading_process_a_core_unless_given_or_shared_memory_is_small(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(6))

    def free(batches: int) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=batches * 8 * 32 * 32 * 3))

    free(1000)
    assert [ImageNetTask(config_of(workers=given)).batches(LAYOUT).workers for given in (None, 0, 3)] == [6, 0, 3]
    assert ImageNetTask(config_of(workers=None)).split("val").workers == 6
    for batches, expected in ((54, 6), (53, 5), (0, 1)):  # 4 x 6 + 3 of them in half of it
        free(batches)
        assert ImageNetTask(config_of(workers=None)).batches(LAYOUT).workers == expected
    assert run_id(config_of(workers=None)) == run_id(config_of(workers=16))


@pytest.fixture
def batch():
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    return {"image": jnp.asarray(images), "label": jnp.arange(8) * 100}


class Listener:
    """In place of a model: knows the right labels, and keeps what it was called with."""

    def __init__(self, labels):
        self.logits = 3.0 * jax.nn.one_hot(labels, 1000)

    def __call__(self, images, *, key):
        self.images, self.key = images, key
        return self.logits


def test_the_loss_without_mixing_is_the_definition(batch):
    model = Listener(batch["label"])
    loss, metrics = ImageNetTask(config_of(smoothing=0.1)).loss(model, batch, jax.random.key(1))
    log_normaliser = np.log(np.exp(3.0) + 999)
    assert float(loss) == pytest.approx(log_normaliser - 3.0 * (0.9 + 0.1 / 1000), rel=1e-5)
    assert [float(part) for part in metrics["accuracy"]] == [8, 8]
    assert float(metrics["loss"][0]) == pytest.approx(8 * float(loss)) and float(metrics["loss"][1]) == 8
    assert model.key is not None, "stochastic depth needs a key"
    np.testing.assert_array_equal(model.images, normalise(batch["image"]))
    loss, _ = ImageNetTask(config_of(loss="binary_cross_entropy")).loss(model, batch, jax.random.key(1))
    assert float(loss) == pytest.approx((np.log1p(np.exp(-3.0)) + 999 * np.log(2)) / 1000, rel=1e-5)


def test_labels_are_smoothed_before_they_are_mixed_and_accuracy_is_of_the_unmixed(batch, monkeypatch):
    seen = {}
    monkeypatch.setitem(LOSSES, "cross_entropy", lambda logits, targets: seen.update(targets=targets) or jnp.zeros(8))
    model = Listener(batch["label"])
    task = ImageNetTask(config_of(AugmentConfig(**MIXED), smoothing=0.1))
    for seed in range(3):  # mixup and cutmix
        _, metrics = task.loss(model, batch, jax.random.key(seed))
        assert [float(part) for part in metrics["accuracy"]] == [8, 8]
        targets = np.asarray(seen["targets"])
        np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-5)
        np.testing.assert_allclose(targets.min(1), 0.1 / 1000, rtol=1e-4)
        assert ((targets > 2e-4).sum(1) <= 2).all() and ((targets > 2e-4).sum(1) == 2).any()
        share = (targets[:, ::100].max(1) - 1e-4) / 0.9  # of the image itself, or of its partner
        images, mixed = np.asarray(model.images), np.asarray(normalise(batch["image"]))
        assert (images != mixed).any() and (share >= 0.5 - 1e-5).all()


def test_erasing_comes_before_mixing(batch):
    model, plain = Listener(batch["label"]), normalise(batch["image"])
    ImageNetTask(config_of(AugmentConfig(random_erasing=1.0))).loss(model, batch, jax.random.key(0))
    assert np.asarray(model.images != plain).any((1, 2, 3)).all()
    erased = model.images
    ImageNetTask(config_of(AugmentConfig(random_erasing=1.0, mixup=0.8))).loss(model, batch, jax.random.key(0))
    _, mixing_key, _ = jax.random.split(jax.random.key(0), 3)
    labels = jax.nn.one_hot(batch["label"], 1000)
    np.testing.assert_allclose(model.images, mix(erased, labels, mixing_key, 0.8, 0.0)[0], rtol=1e-5, atol=1e-6)


def test_it_trains_and_evaluates_on_pictures_drawn_in_memory():
    config = config_of(AugmentConfig(repeats=2, **MIXED))
    task = ImageNetTask(config)
    assert task.train_examples == 90 and "90 images" in task.describe_data()
    first, again = (next(ImageNetTask(config).batches(LAYOUT).from_step(0)) for _ in range(2))
    assert first["image"].shape == (8, 32, 32, 3) and first["image"].dtype == np.uint8
    assert first["label"].tolist()[::2] == first["label"].tolist()[1::2]  # two views an image
    np.testing.assert_array_equal(first["image"], again["image"])
    batches = list(task.split("val").batches(5))
    assert [batch["mask"].sum() for batch in batches] == [5, 2] and len(task.split("test")) == 7
    assert batches[0]["label"].tolist() == [0, 100, 200, 300, 400]


def test_the_parts_of_processes_make_up_each_batch(monkeypatch):
    layout = SimpleNamespace(place_rows=lambda batch: batch)

    def batches() -> list[dict]:
        task = ImageNetTask(config_of(AugmentConfig()))
        return take(task.batches(layout), 1) + list(task.split("val").batches(6))

    assert_parts_make_up(batches, monkeypatch)


def test_another_number_of_images_than_the_config_s_is_refused(monkeypatch):
    def load(split, root, held_out, most=None):  # of so few images, fewer than asked for are held out
        return MosaicSource(split, 60 - min(held_out, 6) if split == "train" else 50)

    monkeypatch.setattr("plstm.tasks.imagenet.load_source", load)
    task = ImageNetTask(config_of(name="imagenet2012", eval_images=None))
    with pytest.raises(UserError, match="data.train_images=100: the prepared data have 60"):
        task.batches(LAYOUT)
    assert len(task.split("test")) == 50


def test_mosaics_are_pictures_that_classes_tell_apart():
    train = MosaicSource("train", 40)
    test = MosaicSource("test", 40)
    assert train[3] == MosaicSource("train", 40)[3] and train[3]["image"] != test[3]["image"]
    pictures = [np.asarray(Image.open(io.BytesIO(train[n]["image"])), float) for n in range(40)]
    assert [train[n]["label"] for n in (0, 9, 10)] == [0, 900, 0]
    within = abs(pictures[0] - pictures[10]).mean()
    assert all(abs(pictures[0] - other).mean() > within for other in pictures[1:10])
