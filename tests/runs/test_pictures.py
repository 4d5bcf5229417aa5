import matplotlib
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from plstm.models.vision import VisionConfig, VisionModel
from plstm.runs import pictures
from plstm.runs.pictures import draw_gating, draw_samples
from tests.studies.conftest import texts_of


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, in order."""
    figures, save = [], pictures.save
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure) or save(figure, path))
    return figures


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"))


def test_samples_show_prediction_and_correctness(drawn, tmp_path):
    images = np.full((8, 48, 48, 1), 255, np.uint8)
    images[:, 20:30, 20:30] = 0
    at = np.array([0.97, 0.02, 0.9, 0.3, 0.5, 0.1, 0.8, 0.6])
    logits, label = np.log(np.stack([1 - at, at], axis=1)), np.array([1, 0, 0, 1, 1, 0, 1, 1])
    samples = {
        name: (images[part], {"label": label[part], "mask": np.ones(len(at[part]), bool)}, logits[part])
        for name, part in (("val", slice(6)), ("test", slice(6, None)))
    }
    (png,) = draw_samples(samples, ("past", "at"), tmp_path / "samples.png")
    texts = texts_of(drawn[0])
    assert [text for text in texts if text.startswith(("✓", "✗"))] == [
        *["✓ at 0.97", "✓ past 0.98", "✗ at 0.90", "✗ past 0.70"],
        *["✗ past 0.50", "✓ past 0.90", "✓ at 0.80", "✓ at 0.60"],  # a tie is class 0, as in the accuracy
    ]
    titles = [*(f"val {n}" for n in range(6)), "test 0", "test 1"]
    assert [text for text in texts if text.startswith(("val", "test"))] == titles
    assert (pixels(png) == 0).all(-1).mean() > 0.01


def test_a_matplotlibrc_changes_nothing(tmp_path, monkeypatch):
    samples = {"val": (np.zeros((1, 48, 48, 1), np.uint8), {"label": [0], "mask": np.ones(1, bool)}, np.zeros((1, 2)))}
    (usual,) = draw_samples(samples, ("past", "at"), tmp_path / "usual.png")
    for key, value in {
        "text.usetex": True,
        "figure.facecolor": "red",
        "savefig.dpi": 20,
        "font.family": "serif",
    }.items():
        monkeypatch.setitem(matplotlib.rcParams, key, value)
    (png,) = draw_samples(samples, ("past", "at"), tmp_path / "samples.png")
    assert png.read_bytes() == usual.read_bytes()
    assert matplotlib.rcParams["text.usetex"], "the user's settings are as they were"


def test_gating_shows_sign_scale_and_source(drawn, tmp_path, monkeypatch):
    y, x = np.mgrid[:12, :12]
    pattern = np.where((y >= 6) & (x >= 6), 0.5 ** (y - 6) * (-0.7) ** (x - 6.0), 0.0)[None]
    patterns = [("P", np.zeros((1, 12, 12))), ("D", pattern), ("P", pattern)]
    monkeypatch.setattr(pictures, "capture_flow", lambda *arguments: patterns)
    model = VisionModel(VisionConfig(image_size=24, patch_size=2, dim=16, depth=2, heads=1, classes=2), nnx.Rngs(0))
    (png,) = draw_gating(model, np.zeros((24, 24, 3), np.float32), tmp_path / "gating.png")
    texts = texts_of(drawn[0])
    assert [text for text in texts if "mode" in text] == ["P-mode, layer 1, head 1", "D-mode, layer 2, head 1"]
    assert {"-1", "0", "1"} <= set(texts)
    image = pixels(png).astype(int)
    red, blue = image[..., 0] - image[..., 2], image[..., 2] - image[..., 0]
    assert (red > 80).any() and (blue > 80).any()
    vit = VisionConfig(image_size=24, patch_size=2, dim=16, depth=1, heads=1, classes=2, modes=["attention"])
    model = VisionModel(vit, nnx.Rngs(0))
    assert draw_gating(model, np.zeros((24, 24, 3), np.float32), tmp_path / "none") == []
