from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from plstm.tasks.pictures import gating_figure, samples_figure


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"))


def svg_texts(path):
    """The texts of an SVG: matplotlib writes each as a comment before its outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    return [node.text.strip() for node in ElementTree.parse(path, parser).iter() if node.tag is ElementTree.Comment]


def test_samples_show_prediction_and_correctness(tmp_path):
    images = np.full((8, 48, 48), 255, np.uint8)
    images[:, 20:30, 20:30] = 0
    at = np.array([0.97, 0.02, 0.9, 0.3, 0.5, 0.1, 0.8, 0.6])
    label = np.array([1, 0, 0, 1, 1, 0, 1, 1])
    probabilities, names = np.stack([1 - at, at], axis=1), ("past", "at")
    titles = [f"sample {i}" for i in range(8)]
    png, svg = samples_figure(images, label, probabilities, names, titles, tmp_path / "samples")
    texts = svg_texts(svg)
    assert [text for text in texts if text.startswith(("✓", "✗"))] == [
        *["✓ at 0.97", "✓ past 0.98", "✗ at 0.90", "✗ past 0.70"],
        *["✗ past 0.50", "✓ past 0.90", "✓ at 0.80", "✓ at 0.60"],  # a tie is class 0, as in the accuracy
    ]
    assert [text for text in texts if text.startswith("sample")] == [f"sample {i}" for i in range(8)]
    assert (pixels(png) == 0).all(-1).mean() > 0.01


def test_gating_shows_sign_scale_and_source(tmp_path):
    y, x = np.mgrid[:12, :12]
    pattern = np.where((y >= 4) & (x >= 3), 0.5 ** (y - 4) * (-0.7) ** (x - 3), 0.0)
    png, svg = gating_figure([pattern, np.zeros((6, 9))], ["D-mode", "P-mode"], (4, 3), tmp_path / "gating")
    texts = svg_texts(svg)
    assert "D-mode" in texts and "P-mode" in texts and {"-1", "0", "1"} <= set(texts)
    image = pixels(png).astype(int)
    red, blue = image[..., 0] - image[..., 2], image[..., 2] - image[..., 0]
    assert (red > 80).any() and (blue > 80).any()
    with pytest.raises(ValueError, match="zip"):
        gating_figure([pattern], ["one", "two"], (0, 0), tmp_path / "gating")
