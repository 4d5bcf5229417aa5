"""Pictures of one's own as a task: what a config takes from their folder, and every kind of file from end to end."""

import io
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image, ImageOps

from data.imagenet.batches import GREY
from data.imagenet.folders import TOY, read_pictures
from plstm.errors import UserError
from plstm.runs.compose import check, from_file, to_config
from plstm.runs.identity import plain_config, portable_config, run_id
from plstm.tasks import TASKS
from plstm.training.meshes import Layout, make_mesh
from tests.config.test_config import with_value
from tests.data.batching import assert_same, take
from tests.drawing import encoded, plain_pictures

EXPERIMENT = ["experiment=folder/plstm", "data.size=16", "data.workers=0", "optim.batch_size=4"]
COUNTS = {"cat": 12, "dog": 8}
LAYOUT = Layout(make_mesh(1))


@pytest.fixture
def config_of(composed):
    """Function of (folder, overrides): the config of a run on its pictures."""

    def config_of(folder: Path | str, *overrides: str):
        read_pictures.cache_clear()  # of a folder that has changed
        return to_config(composed(*EXPERIMENT, f"data.path={folder}", *overrides))

    return config_of


def test_the_config_takes_classes_and_counts_from_the_folder(config_of, tmp_path):
    config = config_of(plain_pictures(tmp_path / "set", COUNTS))
    data = config.data
    assert (data.class_names, data.classes, data.train_images) == (["cat", "dog"], 2, 18)
    assert (config.model.classes, config.model.image_size) == (2, 16)
    assert "2 classes, 18 images, 16 pixels" in TASKS["folder"](config).describe_data()
    assert config_of(tmp_path / "set", "model=vit_t", "augment=deit3", "data.held_out=0.5").data.train_images == 10
    with pytest.raises(UserError, match="data.path: name the folder of pictures, data.path=..."):
        config_of("null")


def test_the_id_follows_the_pictures_and_not_their_place(config_of, tmp_path):
    folder = plain_pictures(tmp_path / "set", COUNTS)
    config = config_of(folder)
    moved = Path(shutil.move(folder, tmp_path / "moved"))
    assert run_id(config_of(moved)) == run_id(config)
    portable = portable_config(config)
    assert str(tmp_path) not in str(portable) and run_id(from_file(portable)) == run_id(config)
    (moved / "cat" / "0.png").unlink()
    assert run_id(config_of(moved)) != run_id(config)
    for key, value in (("data.class_names", ["cat", "wolf"]), ("data.digest", "0" * 12), ("data.held_out", 0.1)):
        assert run_id(with_value(config, key, value)) != run_id(config)
    with pytest.raises(
        UserError, match=f"data.train_images=18: data.path={moved} has 17; take the data that the run was"
    ):
        TASKS["folder"](with_value(config, "data.path", str(moved))).split("val")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data.classes", 3, "data.classes=3: the data have 2 classes"),
        ("data.held_out", 0.9, r"data.held_out=0.9: must be in \[0.01, 0.5\]"),
        ("loop.eval_splits", ["test"], "'test'; choose from val"),
        ("augment", None, "photographs need a recipe; choose one with augment=deit3"),
        ("optim.batch_size", 100, "more than the 18 training images"),
    ],
)
def test_values_that_do_not_fit_are_named(config_of, tmp_path, key, value, words):
    config = config_of(plain_pictures(tmp_path, COUNTS))
    check(config)
    with pytest.raises(UserError, match=words):
        check(with_value(config, key, value))


def test_typed_values_that_the_folder_contradicts_are_named(config_of, tmp_path):
    config = config_of(plain_pictures(tmp_path, COUNTS), "data.train_images=7")
    with pytest.raises(
        UserError, match="data.train_images=7: data.path=.* has 18; take .*, or leave out data.train_images if"
    ):
        TASKS["folder"](config).batches(LAYOUT)


def test_a_config_from_elsewhere_makes_nobody_read_a_folder(config_of, tmp_path):
    plain = plain_config(config_of(plain_pictures(tmp_path, COUNTS)))
    plain["data"]["class_names"] = "???"
    with pytest.raises(UserError, match="would be filled in from this machine"):
        from_file(plain)
    del plain["data"]["class_names"]
    with pytest.raises(UserError, match="data.path: no key"):  # which a file cannot set
        from_file(plain)


# ---------------------------------------------------------------------- kinds of files
def kinds(folder: Path) -> dict[str, np.ndarray]:
    """Writes a picture as every kind of file; returns the pixels [24, 24, 3] that each must have, by name."""
    y, x = np.mgrid[:24, :24]
    colour = Image.fromarray(np.stack([9 * y, 9 * x, 0 * x + 60], -1).astype(np.uint8))
    grey = colour.convert("L")
    wide = (np.asarray(grey).astype(np.uint16) * 257).astype(np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    files = {
        "cmyk.jpg": encoded(colour.convert("CMYK"), "JPEG", quality=100),
        "grey.png": encoded(grey),
        "rgba.png": encoded(colour.convert("RGBA")),
        "sixteen.png": encoded(Image.fromarray(wide)),
        "turned.jpg": encoded(colour, "JPEG", quality=100, exif=exif),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    pixels = {name: np.asarray(colour) for name in files}
    pixels["grey.png"] = pixels["sixteen.png"] = np.asarray(grey.convert("RGB"))
    pixels["turned.jpg"] = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(files["turned.jpg"]))))
    assert not np.array_equal(pixels["turned.jpg"], pixels["rgba.png"])
    return pixels


def test_every_kind_of_file_is_read_and_an_unreadable_one_counts_as_wrong(config_of, tmp_path):
    folder = plain_pictures(tmp_path / "train", COUNTS).parent
    plain_pictures(folder / "val", {"dog": 1})
    (folder / "val/cat").mkdir()
    expected = kinds(folder / "val/cat")
    (folder / "val/cat/unreadable.jpg").write_bytes(b"\xff\xd8 not a picture")
    config = config_of(folder, "data.size=24", "data.max_corrupt=0.2", "model.patch_size=8")
    split = TASKS["folder"](config).split("val")
    with pytest.warns(UserWarning, match=f"{folder}/val/cat/unreadable.jpg: cannot be decoded .* counts as"):
        (batch,) = split.batches(8)
    assert batch["label"].tolist() == [0, 0, 0, 0, 0, -1, 1, 0] and batch["mask"].tolist() == [True] * 7 + [False]
    for image, (name, pixels) in zip(batch["image"], sorted(expected.items()), strict=False):
        assert abs(image.astype(int) - pixels).mean() < 6, name  # JPEG's loss, and inks'
    assert (batch["image"][5] == GREY).all()
    strict = TASKS["folder"](with_value(config, "data.max_corrupt", 0.1))
    with (
        pytest.warns(UserWarning),
        pytest.raises(UserError, match=f"1 of 7 .*{folder}/val/cat/u.* more than data.max"),
    ):
        list(strict.split("val").batches(8))


def test_training_replaces_an_unreadable_picture_and_resumes_where_it_was(config_of, tmp_path):
    folder = plain_pictures(tmp_path, COUNTS)
    (folder / "cat/zz.png").write_bytes(b"")
    config = config_of(folder, "data.max_corrupt=0.1", "data.held_out=0.01")
    assert any(name == "cat/zz.png" for name, _ in TASKS["folder"](config).source("train").files)
    with pytest.warns(UserWarning, match="cat/zz.png: cannot be decoded .* the next image takes its place"):
        whole = take(TASKS["folder"](config).batches(LAYOUT), 8)
    assert all(set(np.asarray(batch["label"]).tolist()) <= {0, 1} for batch in whole)
    with pytest.warns(UserWarning):
        resumed = take(TASKS["folder"](config).batches(LAYOUT), 5, 3)
    assert_same(jax.device_get(resumed), jax.device_get(whole[3:]))


def test_the_pictures_of_a_smoke_run_are_there():
    assert {len(read_pictures(str(TOY)).train), len(read_pictures(str(TOY)).val)} == {18, 2}
