"""Arrow pointing as a task."""

import pytest

from plstm.errors import UserError
from plstm.models import EfficientNetConfig
from plstm.runs.compose import compose_experiment
from plstm.tasks.arrow import ArrowTask


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
