"""Class folders of images: labels, order, what is held out, and what is no such tree."""

import os
import pickle
import shutil
from pathlib import Path

import pytest

from data.imagenet.folders import FolderSource, folder_source, read_pictures
from data.imagenet.source import synsets
from plstm.errors import ReadError, UserError
from tests.drawing import plain_pictures


def write(root, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"bytes of {name}".encode())


def test_labels_number_the_sorted_folders(tmp_path):
    write(tmp_path, "dog/b.JPEG", "dog/a.png", "cat/deep/er/x.jpg")
    write(tmp_path, "cat/notes.txt", "dog/c.SVG", "cat/.hidden.png", ".git/y.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.jpg").write_bytes(b"")
    with pytest.warns(UserWarning, match=f"{tmp_path}: files with .svg, .txt are left out; images have .jpeg"):
        source = folder_source(tmp_path)
    assert source.classes == ["cat", "dog", "empty"]
    names = ["cat/deep/er/x.jpg", "dog/a.png", "dog/b.JPEG"]
    assert list(pickle.loads(pickle.dumps(source))) == [
        {"image": f"bytes of {name}".encode(), "label": label, "file_name": f"{tmp_path}/{name}"}
        for name, label in zip(names, (0, 1, 1), strict=True)
    ]


def test_wordnet_ids_have_imagenets_labels(tmp_path):
    write(tmp_path, "n15075141/a.JPEG", "n01440764/b.JPEG", "n01443537/c.JPEG")
    source = folder_source(tmp_path)
    assert [example["label"] for example in source] == [0, 1, 999] and source.classes == list(synsets())
    write(tmp_path, "n00000001/b.JPEG")  # an unknown one makes it another set
    assert folder_source(tmp_path).classes == ["n00000001", "n01440764", "n01443537", "n15075141"]


def test_what_is_no_tree_of_images_is_named(tmp_path):
    write(tmp_path, "flat/a.jpg", "texts/one/a.txt")
    for path, message in ((tmp_path / "no", "no such folder"), (tmp_path / "flat", "no class folders")):
        with pytest.raises(UserError, match=f"{path}: .*{message}"):
            folder_source(path)
    with pytest.raises(UserError, match="no images in its class folders"):
        folder_source(tmp_path / "texts")


def test_labels_are_those_of_a_model(tmp_path):
    write(tmp_path, "past/a.png", "at/b.png", "1/c.png", "0/d.png")
    source = folder_source(tmp_path, ("past", "at"))
    assert dict(source.files) == {
        "past/a.png": 0, "at/b.png": 1, "1/c.png": 1, "0/d.png": 0,
    }  # fmt: skip
    assert source.classes == ["past", "at"]
    write(tmp_path, "2/e.png")
    with pytest.raises(UserError, match=f"{tmp_path}/2: the model has no such class; it has past, at"):
        folder_source(tmp_path, ("past", "at"))


# ---------------------------------------------------------------------- links
def names_of(source: FolderSource) -> list[str]:
    return [name for name, _ in source.files]


def test_linked_folders_and_files_count_and_a_circle_ends(tmp_path):
    write(tmp_path, "set/cat/a.png", "elsewhere/b.png", "elsewhere/deep/c.png", "one.png", "dogs/d.png")
    (tmp_path / "set/cat/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/cat/e.png").symlink_to(tmp_path / "one.png")
    (tmp_path / "set/dog").symlink_to(tmp_path / "dogs")
    (tmp_path / "elsewhere/up").symlink_to(tmp_path / "set/cat")
    source = folder_source(tmp_path / "set")
    assert names_of(source) == ["cat/a.png", "cat/e.png", "cat/linked/b.png", "cat/linked/deep/c.png", "dog/d.png"]
    assert source[2]["image"] == b"bytes of elsewhere/b.png"
    (tmp_path / "one.png").unlink()
    with pytest.raises(ReadError, match=f"{tmp_path}/set/cat/e.png: cannot be read .No such file"):
        source[1]
    with pytest.raises(UserError, match=f"{tmp_path}/set/cat/e.png: neither a file nor a folder"):
        folder_source(tmp_path / "set")


# ---------------------------------------------------------------------- to train on
COUNTS = {"cat": 20, "dog": 12, "emu": 2}


def split_of(folder: Path, held_out: float | None = None) -> tuple[set[str], set[str], str]:
    read_pictures.cache_clear()
    pictures = read_pictures(str(folder), held_out)
    return set(names_of(pictures.train)), set(names_of(pictures.val)), pictures.digest


def test_a_share_of_each_class_is_held_out_by_names_alone(tmp_path):
    folder = plain_pictures(tmp_path / "here", COUNTS)
    train, val, digest = split_of(folder)
    assert not train & val and len(train | val) == 34
    assert {name: sum(file.startswith(name) for file in val) for name in COUNTS} == {"cat": 2, "dog": 1, "emu": 1}
    assert split_of(shutil.copytree(folder, tmp_path / "there/train").parent) == (train, val, digest)
    assert len(split_of(folder, 0.5)[1]) == 17
    (folder / "cat/new.png").write_bytes((folder / "cat/0.png").read_bytes())
    more_train, more_val, other_digest = split_of(folder)
    assert len(more_val ^ val) <= 2 and digest != other_digest and len(more_train) == len(train) + 1


def test_the_digest_follows_names_sizes_and_splits(tmp_path):
    folder = plain_pictures(tmp_path / "train", COUNTS).parent
    digests = [split_of(folder)[2]]

    def change(action) -> None:
        action()
        digests.append(split_of(folder)[2])

    change(lambda: (folder / "train/cat/0.png").rename(folder / "train/cat/00.png"))
    change(lambda: (folder / "train/cat/1.png").open("ab").write(b"more"))
    change(lambda: (folder / "train/dog/1.png").rename(folder / "train/cat/dog.png"))
    change(lambda: (folder / "train/dog").rename(folder / "train/wolf"))
    change(lambda: shutil.copytree(folder / "train", folder / "val"))
    change(lambda: (folder / "val/cat/2.png").unlink())
    assert len(set(digests)) == len(digests) == 7
    os.utime(folder / "train/cat/2.png", (1, 1))
    assert split_of(folder)[2] == digests[-1]


def test_a_folder_val_takes_the_place_of_what_is_held_out(tmp_path):
    folder = plain_pictures(tmp_path / "train", COUNTS).parent
    plain_pictures(folder / "val", {"dog": 3, "emu": 1})
    plain_pictures(folder / "test", {"other": 1})  # for eval.py data.folder=...
    read_pictures.cache_clear()
    pictures = read_pictures(str(folder))
    assert (len(pictures.train), len(pictures.val)) == (34, 4)
    assert [label for _, label in pictures.val.files] == [1, 1, 1, 2]  # as in training
    with pytest.raises(UserError, match=f"data.held_out=0.2: {folder}/val has the pictures to evaluate on; leave it"):
        read_pictures(str(folder), 0.2)


def test_train_may_be_a_class(tmp_path):
    folder = plain_pictures(tmp_path, {"bus": 3, "train": 3})
    assert read_pictures(str(folder)).train.classes == ["bus", "train"]


def garbage(folder: Path) -> None:
    (folder / "dog").mkdir()
    for n in range(3):
        (folder / "dog" / f"{n}.png").write_text("no picture")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shutil.rmtree, "{0}: no such folder of images"),
        (lambda folder: shutil.rmtree(folder / "cat"), "{0}: has no class folders; images must lie in {0}/<class>/"),
        (lambda folder: None, "{0}: has one class, cat; a classifier needs two class folders or more"),
        (lambda folder: (folder / "dog").mkdir(), "{0}/dog: has no pictures; add some, or remove the folder"),
        (garbage, "{0}/dog: none of its 3 pictures can be decoded; add some, or remove the folder"),
        (lambda folder: plain_pictures(folder, {"dog": 1}), "{0}/dog: has one picture, and one is held out"),
        (lambda folder: os.mkdir(os.fsencode(folder) + b"/d\xffg"), "{0}: the name of its class folder 'd\\udcffg' is"),
        (
            lambda folder: (folder / "d\x1bg").mkdir(),
            "{0}: the name of its class folder 'd\\x1bg' is not text; rename it",
        ),
        (lambda folder: plain_pictures(folder / "train", {"cat": 2}), "{0}/cat: beside train/ with class folders only"),
    ],
)
def test_what_nobody_can_train_on_is_named(tmp_path, change, words):
    folder = plain_pictures(tmp_path / "set", {"cat": 3})
    change(folder)
    with pytest.raises(UserError) as caught:
        read_pictures(str(folder))
    assert str(caught.value).startswith(words.format(folder))


def test_what_is_wrong_with_a_layout_of_splits_is_named(tmp_path):
    folder = plain_pictures(tmp_path / "train", {"cat": 3, "dog": 3}).parent
    plain_pictures(tmp_path / "val", {"emu": 1, "0": 1})
    with pytest.raises(UserError, match=f"{folder}/val/0: {folder}/train has no such class; rename or remove it"):
        read_pictures(str(folder))  # a model's classes may be named by numbers, those to train on not
    for path in (folder / "train", folder / "val"):
        shutil.rmtree(path)
        path.mkdir()
        (path / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match=f"{folder}/train: has no class folders"):
        read_pictures(str(folder))
