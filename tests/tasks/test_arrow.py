"""Arrow pointing as a task."""

import numpy as np
import pytest

from data.loading import PackedSplit, epoch_order
from plstm.errors import UserError
from plstm.models import EfficientNetConfig
from plstm.runs.compose import compose_experiment
from plstm.tasks import arrow
from plstm.tasks.arrow import ArrowTask
from plstm.training.meshes import Layout, make_mesh
from tests.data.batching import take


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ((), 8),  # 16 images of 36 patches
        (("optim.batch_size=80",), 5),
        (("optim.batch_size=7",), 1),
        (("optim.batch_size=62",), 31),  # 4 parts would do, but do not divide it
        (("data.size=384",), 128),  # an image of 2,304 patches
    ],
)
def test_parts_of_a_batch_divide_it_and_are_small(overrides, parts):
    assert ArrowTask(compose_experiment("arrow_48/plstm", *overrides)).microbatches() == parts


@pytest.mark.parametrize("model", ["vil", "2dmamba", "mamba2d"])
def test_other_models_count_pixels(model):
    assert ArrowTask(compose_experiment(f"arrow_48/{model}")).microbatches() == 8


def test_models_with_batch_norms_take_their_batch_whole():
    config = compose_experiment("arrow_48/plstm")
    config.model = EfficientNetConfig()
    assert ArrowTask(config).microbatches() == 1


def test_a_model_that_does_not_take_the_larger_images_is_refused():
    """48 patches a side are fine, and twice as many are not."""
    with pytest.raises(UserError, match=r"^model.method=fused: takes 64 patches a side"):
        compose_experiment("arrow_48/plstm", "model.patch_size=1", "model.method=fused")


def test_the_order_of_training_follows_the_run_s_seed_and_not_that_of_its_images(monkeypatch):
    task = ArrowTask(compose_experiment("arrow_48/plstm", "seed=44", "data.train_seed=7", "optim.batch_size=9"))
    bits, numbers = np.zeros((9, 1), np.uint8), np.arange(9, dtype=np.uint8)

    def load(variant, split, *_):
        return PackedSplit(bits, numbers, 2) if (variant.train_seed, split) == (7, "train") else None

    monkeypatch.setattr(arrow, "load_packed", load)
    (batch,) = take(task.batches(Layout(make_mesh(9))), 1)
    assert batch["label"].tolist() == epoch_order(44, 0, 9).tolist()
