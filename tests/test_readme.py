"""The Python of README.md and of the pages in docs, run as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

import plstm
from data.tokens import TASKS
from tests.commands import ROOT

OWN_TEST = "docs/add-your-own.md"  # tests/test_add_your_own.py
PAGES = [str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run(page: str) -> dict:
    """The names that a page's blocks define, run in order in one namespace."""
    names = {}
    for code in PYTHON.findall((ROOT / page).read_text(encoding="utf-8")):
        exec(code, names)
    return names


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder: not the clone, as blocks write files, but with its results."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_page_with_python_has_a_test():
    pages = {page for page in PAGES if PYTHON.search((ROOT / page).read_text(encoding="utf-8"))}
    assert pages == {"README.md", "docs/operators.md", "docs/running.md", OWN_TEST}


def test_the_readme():
    found = run("README.md")
    assert found["mixed"].shape == (1, 12, 16, 64) and found["logits"].shape == (1, 2)
    assert found["hidden"].shape == (12, 16, 32) and np.isfinite(found["hidden"]).all()
    assert found["states"].tolist() == TASKS["s3"].answer(np.array([[1, 2, 4, 3]])).tolist()


@pytest.mark.slow
def test_the_operators():
    found = run("docs/operators.md")
    assert found["mixed"].shape == (8, 16) and found["first_node"].tolist() == [0, 4]
    assert found["hidden"].shape == (2, 100, 16)


@pytest.mark.slow
def test_fine_tuning(folder):
    found = run("docs/running.md")
    assert found["losses"][-1] < found["losses"][0] / 2
    info = plstm.load(folder / "brighter.safetensors").info
    assert info.class_names == ("no", "yes") and info.preprocessing.size == 32
    kernels = [found[name].embedding.project.kernel[...] for name in ("model", "trained")]  # model: with a new head
    np.testing.assert_array_equal(*kernels)
    assert found["model"](found["images"]).shape == (64, 5)
