import jax
import numpy as np
import pytest
from flax import nnx

from data.loading import PackedSplit, pack
from plstm.models import VisionConfig, build_model
from tests.training.classifying import SIZE

VIT = {"modes": ["attention"], "pooling": "class_token", "layer_scale": 1.0}


@pytest.fixture(scope="session")
def tiny_config():
    """Function of (kind, changes): a small "pLSTM" or "ViT" for images of 16 pixels and two classes."""

    def make(kind="pLSTM", **changes):
        own = dict(image_size=SIZE, patch_size=4, dim=16, heads=2, depth=2, classes=2, dtype="float32")
        return VisionConfig(**own | (VIT if kind == "ViT" else {}) | changes)

    return make


@pytest.fixture(scope="session")
def filled():
    """Function of a config: its model, every parameter drawn from a normal without compiling anything."""

    def fill(config, seed=0, scale=0.3):
        rng = np.random.default_rng(seed)
        graphdef, params = nnx.split(nnx.eval_shape(lambda: build_model(config, 0)))
        draw = lambda leaf: (scale * rng.normal(size=leaf.shape)).astype(np.float32)  # noqa: E731
        return nnx.merge(graphdef, jax.tree.map(draw, params))

    return fill


@pytest.fixture(scope="session")
def draw_split():
    """Function of (count, seed): a packed split of random black-and-white images of 16 pixels, with random labels."""

    def draw(count, seed=0, size=SIZE):
        rng = np.random.default_rng(seed)
        images = rng.choice(np.array([0, 255], np.uint8), (count, size, size))
        return PackedSplit(pack(images), rng.integers(2, size=count, dtype=np.uint8), size)

    return draw
