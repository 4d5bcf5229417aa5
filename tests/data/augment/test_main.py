import functools

import numpy as np
import pytest
from PIL import Image

from data.augment import __main__ as commands
from tests.commands import call_here, refused

run = functools.partial(call_here, commands.main)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with a picture of 8 x 8 pixels and a larger JPEG."""
    monkeypatch.chdir(tmp_path)
    y, x, c = np.indices((8, 8, 3))
    Image.fromarray(((37 * x + 59 * y + 83 * c) % 256).astype(np.uint8)).save(tmp_path / "a.png")
    y, x, c = np.indices((60, 90, 3))
    Image.fromarray(((x * 2 + y * (c + 1)) % 256).astype(np.uint8)).save(tmp_path / "b.jpg")
    return tmp_path


@pytest.mark.parametrize("recipe, count, columns", [("deit3", 5, 4), ("none", 1, 2)])
def test_sheet_holds_the_views(folder, recipe, count, columns):
    assert run("sheet", "b.jpg", "s.png", "--recipe", recipe, "--views", str(count), "--size", "64") == (0, "", "")
    sheet = Image.open(folder / "s.png")
    assert sheet.width > columns * 64 and sheet.height > -(-(count + 1) // columns) * 64
    first = (folder / "s.png").read_bytes()
    for seed, same in (("43", True), ("44", False)):
        run("sheet", "b.jpg", "s.png", "--recipe", recipe, "--views", str(count), "--size", "64", "--seed", seed)
        assert ((folder / "s.png").read_bytes() == first) == same


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("sheet a.png o.png --recipe deit4", "argument --recipe: invalid choice: 'deit4' (choose from"),
        ("sheet missing.jpg o.png", "missing.jpg: No such file"),
        ("sheet text.jpg o.png", "text.jpg: not a picture"),
        ("sheet a.png o.xyz", "o.xyz: Pillow writes no .xyz; take .png"),
        ("sheet a.png b.jpg/o.png", "b.jpg/o.png: cannot write the picture (File exists"),
        ("sheet a.png o.png --views 0", "--views 0: must be 1 to 100"),
        ("sheet a.png o.png --seed -1", "--seed -1: must be 0"),
    ],
)
def test_bad_input_is_one_line(folder, arguments, message):
    (folder / "text.jpg").write_text("no picture")
    before = sorted(path.name for path in folder.iterdir())
    assert refused(commands.main, *arguments.split()).startswith(message)
    assert sorted(path.name for path in folder.iterdir()) == before
